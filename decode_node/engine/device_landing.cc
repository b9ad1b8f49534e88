#include "decode_node/engine/device_landing.h"

#include <pthread.h>

#include <utility>

namespace akv::decode {

Result<std::shared_ptr<LandingThread>> LandingThread::create(const Device& device) {
  AKV_ASSIGN_OR_RETURN(auto copies, Stream::create(device));
  AKV_ASSIGN_OR_RETURN(auto allocations, Stream::create(device));
  return std::shared_ptr<LandingThread>(
      new LandingThread(std::move(copies), std::move(allocations)));
}

LandingThread::LandingThread(Stream copies, Stream allocations)
    : copies_(std::move(copies)), allocations_(std::move(allocations)) {
  thread_ = std::thread([this] { loop(); });
  pthread_setname_np(thread_.native_handle(), "state-landing");
}

void LandingThread::put(std::function<void()> job) {
  {
    std::lock_guard lock(mutex_);
    if (!stop_) {
      jobs_.push_back(std::move(job));
      wake_.notify_one();
      return;
    }
  }
  job();
}

void LandingThread::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void LandingThread::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;  // what it held goes without the lock
    lock.lock();
  }
}

// The memory is usable for every stream, and for transports, once the allocation has passed.
Result<std::shared_ptr<DeviceLanding>> DeviceLanding::create(std::shared_ptr<LandingThread> thread,
                                                             DevicePool& pool,
                                                             const kv::StatePlan& plan,
                                                             std::span<std::byte> host) {
  AKV_ASSIGN_OR_RETURN(auto state, DeviceState::reserve(pool, plan, thread->allocations()));
  AKV_RETURN_IF_ERROR(thread->allocations().synchronize());
  return std::shared_ptr<DeviceLanding>(
      new DeviceLanding(std::move(thread), plan, host, std::move(state)));
}

std::span<std::byte> DeviceLanding::host_record(uint32_t record) const {
  if (record == 0) return host_.first(plan_.header_bytes);
  return host_.subspan(plan_.record_offset[record - 1], plan_.record_bytes[record - 1]);
}

std::byte* DeviceLanding::place(uint32_t record) {
  return state_->bytes() + (host_record(record).data() - host_.data());
}

// Host memory is not pinned, so the copy returns once CUDA has staged it: on this thread, that
// holds nobody up.
void DeviceLanding::upload(uint32_t record) {
  thread_->put([self = shared_from_this(), record] {
    if (!self->status_.ok()) return;
    self->status_ =
        self->thread_->copies().copy_to_device(self->place(record), self->host_record(record));
  });
}

void DeviceLanding::fetch(uint32_t record, ThenFn then) {
  thread_->put([self = shared_from_this(), record, then = std::move(then)] {
    const Stream& stream = self->thread_->copies();
    Status fetched = stream.copy_to_host(self->host_record(record), self->place(record));
    if (fetched.ok()) fetched = stream.synchronize();
    if (!fetched.ok() && self->status_.ok()) self->status_ = fetched;
    then(fetched);
  });
}

void DeviceLanding::finish(ThenFn then) {
  thread_->put([self = shared_from_this(), then = std::move(then)] {
    const Status waited = self->thread_->copies().synchronize();
    then(self->status_.ok() ? waited : self->status_);
  });
}

Status DeviceLanding::describe() { return state_->describe(host_, thread_->copies()); }

}  // namespace akv::decode
