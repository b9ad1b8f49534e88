#include "common/base/worker_pool.h"

#include <pthread.h>

#include "common/base/check.h"
#include "common/base/clock.h"

namespace akv {
namespace {

constexpr auto kSpin = std::chrono::microseconds(50);

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

WorkerPool::WorkerPool(int threads) {
  AKV_CHECK(threads >= 1);
  for (int worker = 1; worker < threads; ++worker) {
    threads_.emplace_back([this, worker] { worker_loop(worker); });
    pthread_setname_np(threads_.back().native_handle(), "worker");
  }
}

WorkerPool::~WorkerPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void WorkerPool::run(int tasks, TaskFn fn, void* arg) {
  if (tasks <= 0) return;
  if (threads_.empty() || tasks == 1) {
    for (int task = 0; task < tasks; ++task) fn(arg, task, 0);
    return;
  }
  const uint64_t generation = generation_.load(std::memory_order_relaxed) + 1;
  // No worker holds a ticket here: the last run() returned only when remaining_ was 0.
  fn_.store(fn, std::memory_order_relaxed);
  arg_.store(arg, std::memory_order_relaxed);
  tasks_.store(tasks, std::memory_order_relaxed);
  remaining_.store(tasks, std::memory_order_relaxed);
  tickets_.store((generation & 0xffffffffu) << 32 | static_cast<uint32_t>(tasks),
                 std::memory_order_release);
  {
    std::lock_guard lock(mutex_);
    generation_.store(generation, std::memory_order_release);
  }
  wake_.notify_all();
  work(0, generation);
  // A worker may still be inside its last task; tasks are short, but the machine may be shared.
  const TimePoint start = SteadyClock::now();
  while (remaining_.load(std::memory_order_acquire) != 0) {
    if (SteadyClock::now() - start < kSpin) {
      cpu_relax();
    } else {
      const int left = remaining_.load(std::memory_order_acquire);
      if (left != 0) remaining_.wait(left, std::memory_order_acquire);
    }
  }
}

void WorkerPool::work(int worker, uint64_t generation) {
  for (;;) {
    uint64_t ticket = tickets_.load(std::memory_order_acquire);
    do {
      if ((ticket >> 32) != (generation & 0xffffffffu)) return;
      if ((ticket & 0xffffffffu) == 0) return;
    } while (!tickets_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel));
    // Holding a ticket keeps the job alive, so its fields are stable until remaining_ is lowered.
    const int task =
        tasks_.load(std::memory_order_relaxed) - static_cast<int>(ticket & 0xffffffffu);
    fn_.load(std::memory_order_relaxed)(arg_.load(std::memory_order_relaxed), task, worker);
    if (remaining_.fetch_sub(1, std::memory_order_acq_rel) == 1) remaining_.notify_all();
  }
}

bool WorkerPool::wait_for_job(uint64_t seen) {
  const TimePoint start = SteadyClock::now();
  while (generation_.load(std::memory_order_acquire) == seen && !stop_) {
    if (SteadyClock::now() - start < kSpin) {
      cpu_relax();
      continue;
    }
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return stop_ || generation_.load() != seen; });
  }
  return !stop_;
}

void WorkerPool::worker_loop(int worker) {
  uint64_t seen = 0;
  while (wait_for_job(seen)) {
    seen = generation_.load(std::memory_order_acquire);
    work(worker, seen);
  }
}

}  // namespace akv
