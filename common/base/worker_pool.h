// The engine's worker threads. One pool per daemon, passed as context; only the engine uses it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace akv {

// run() executes fn(task, worker) for every task in [0, tasks), worker in [0, workers()), and
// returns when all are done. The calling thread is worker 0. Tasks are handed out one by one in
// increasing order, so unequal tasks balance. fn must not throw. run() is called from one thread
// at a time and does not nest. Idle workers spin for at most 50 us, then sleep.
class WorkerPool {
 public:
  // threads >= 1 counts the caller of run().
  explicit WorkerPool(int threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int workers() const { return static_cast<int>(threads_.size()) + 1; }

  using TaskFn = void (*)(void* arg, int task, int worker);
  void run(int tasks, TaskFn fn, void* arg);

  template <class F>
  void run(int tasks, F&& fn) {
    run(
        tasks, [](void* arg, int task, int worker) { (*static_cast<F*>(arg))(task, worker); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  void worker_loop(int worker);
  void work(int worker, uint64_t generation);
  bool wait_for_job(uint64_t seen);

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<uint64_t> generation_{0};
  std::atomic<bool> stop_{false};
  // Of the current job. tickets_ holds (generation << 32 | tasks not yet taken): a late worker
  // cannot take a task of a job that it has not seen, nor one of a job that is exhausted.
  std::atomic<TaskFn> fn_{nullptr};
  std::atomic<void*> arg_{nullptr};
  std::atomic<int> tasks_{0};
  std::atomic<uint64_t> tickets_{0};
  std::atomic<int> remaining_{0};
};

}  // namespace akv
