// States on their way into device memory: one stream and one thread bring their records there while
// steps go on.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

#include "common/base/result.h"
#include "common/device/memory.h"
#include "common/device/stream.h"
#include "common/kv/plan.h"
#include "decode_node/cache/landing_memory.h"
#include "decode_node/engine/device_state.h"

namespace akv::decode {

// Runs jobs in order. Any thread.
class LandingThread {
 public:
  static Result<std::shared_ptr<LandingThread>> create(const Device& device);
  ~LandingThread() { stop(); }
  LandingThread(const LandingThread&) = delete;
  LandingThread& operator=(const LandingThread&) = delete;

  void put(std::function<void()> job);
  // Runs what was put and ends the thread; later jobs run on the thread that puts them. Not from a
  // job.
  void stop();

  const Stream& copies() const { return copies_; }
  // Only for allocating: nothing in it waits for work.
  const Stream& allocations() const { return allocations_; }

 private:
  LandingThread(Stream copies, Stream allocations);
  void loop();

  const Stream copies_;
  const Stream allocations_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;  // guarded by mutex_
  bool stop_ = false;                       // guarded by mutex_
  std::thread thread_;
};

class DeviceLanding : public LandingMemory, public std::enable_shared_from_this<DeviceLanding> {
 public:
  // Takes the device memory. `host`: plan.total_bytes. kResourceExhausted: the memory is short.
  static Result<std::shared_ptr<DeviceLanding>> create(std::shared_ptr<LandingThread> thread,
                                                       DevicePool& pool, const kv::StatePlan& plan,
                                                       std::span<std::byte> host);

  std::byte* place(uint32_t record) override;
  void upload(uint32_t record) override;
  void fetch(uint32_t record, ThenFn then) override;
  void finish(ThenFn then) override;
  Status describe() override;

  // The state, once describe() was ok and whoever asked for it knows; once.
  std::unique_ptr<DeviceState> take() { return std::move(state_); }

 private:
  DeviceLanding(std::shared_ptr<LandingThread> thread, const kv::StatePlan& plan,
                std::span<std::byte> host, std::unique_ptr<DeviceState> state)
      : thread_(std::move(thread)), plan_(plan), host_(host), state_(std::move(state)) {}
  std::span<std::byte> host_record(uint32_t record) const;

  const std::shared_ptr<LandingThread> thread_;
  const kv::StatePlan plan_;
  const std::span<std::byte> host_;
  std::unique_ptr<DeviceState> state_;
  Status status_;  // landing thread: the first copy that failed
};

}  // namespace akv::decode
