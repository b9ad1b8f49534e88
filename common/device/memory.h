// Device memory and pinned host memory: owners, and pools with a limit.
//
// Errors: kResourceExhausted where a limit or the memory is used up (retry once something is
// freed), kUnavailable once the device is lost.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/device/device.h"
#include "common/device/stream.h"
#include "kernels/device_stream.h"

namespace akv {

class DevicePool;

// Owner of device memory, aligned to 256 bytes. One from a pool is given back in the order of the
// stream it was allocated in, or of the one that release_in() names; the stream must outlive it.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // Outside any pool, for memory that is exported to others (transports); slow, waits for the
  // device when it is freed.
  static Result<DeviceBuffer> allocate(const Device& device, uint64_t bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    DeviceBuffer(std::move(other)).swap(*this);
    return *this;
  }
  ~DeviceBuffer();

  std::byte* data() const { return data_; }
  uint64_t size() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }
  // The memory as T; T is trivially copyable.
  template <class T>
  T* as() const {
    static_assert(std::is_trivially_copyable_v<T>);
    return reinterpret_cast<T*>(data_);
  }
  // From now on the last user of a pool's memory is `stream`.
  void release_in(DeviceStream stream) { stream_ = stream; }

 private:
  friend class DevicePool;
  void swap(DeviceBuffer& other) noexcept;

  Device device_;
  std::shared_ptr<DevicePool> pool_;
  DeviceStream stream_;
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// Stream-ordered memory of one device up to a limit. Freed memory is kept for the next allocation.
// Any thread.
class DevicePool : public std::enable_shared_from_this<DevicePool> {
 public:
  // kUnsupported where the device has no memory pools.
  static Result<std::shared_ptr<DevicePool>> create(const Device& device, uint64_t limit_bytes);
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  // `bytes` that work of `stream` may use from here on (other streams: after an event). Does not
  // wait. 0 bytes give an empty buffer.
  Result<DeviceBuffer> allocate(uint64_t bytes, DeviceStream stream);
  // Gives memory that nobody uses back to the device. Waits for the device.
  Status trim();

  uint64_t limit_bytes() const { return limit_bytes_; }
  uint64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }
  uint64_t peak_bytes() const { return peak_bytes_.load(std::memory_order_relaxed); }
  const Device& device() const { return device_; }

 private:
  friend class DeviceBuffer;
  DevicePool(const Device& device, void* handle, uint64_t limit_bytes)
      : device_(device), handle_(handle), limit_bytes_(limit_bytes) {}
  bool reserve(uint64_t bytes);
  void give_back(std::byte* data, uint64_t bytes, DeviceStream stream);

  Device device_;
  void* handle_ = nullptr;
  uint64_t limit_bytes_ = 0;
  std::atomic<uint64_t> used_bytes_{0};
  std::atomic<uint64_t> peak_bytes_{0};
};

class PinnedPool;

// Owner of host memory that devices read and write directly, aligned to 4096 bytes.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(PinnedBuffer&& other) noexcept { swap(other); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    PinnedBuffer(std::move(other)).swap(*this);
    return *this;
  }
  ~PinnedBuffer();

  std::byte* data() const { return data_; }
  uint64_t size() const { return bytes_; }
  std::span<std::byte> bytes() const { return {data_, static_cast<size_t>(bytes_)}; }
  explicit operator bool() const { return data_ != nullptr; }
  template <class T>
  std::span<T> as() const {
    static_assert(std::is_trivially_copyable_v<T>);
    return {reinterpret_cast<T*>(data_), static_cast<size_t>(bytes_ / sizeof(T))};
  }

 private:
  friend class PinnedPool;
  void swap(PinnedBuffer& other) noexcept;

  std::shared_ptr<PinnedPool> pool_;
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// Pinned memory up to a limit. Pinning costs milliseconds, so freed memory is kept by its size, a
// power of two, until the pool ends. Any thread.
class PinnedPool : public std::enable_shared_from_this<PinnedPool> {
 public:
  static Result<std::shared_ptr<PinnedPool>> create(const Device& device, uint64_t limit_bytes);
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  // A buffer must not be given back while work that uses it is under way.
  Result<PinnedBuffer> allocate(uint64_t bytes);

  uint64_t limit_bytes() const { return limit_bytes_; }
  uint64_t held_bytes() const;  // in use and kept

 private:
  friend class PinnedBuffer;
  PinnedPool(const Device& device, uint64_t limit_bytes)
      : device_(device), limit_bytes_(limit_bytes) {}
  void give_back(std::byte* data, uint64_t bytes);
  void drop_kept(uint64_t needed_bytes);

  Device device_;
  uint64_t limit_bytes_ = 0;
  mutable std::mutex mutex_;
  uint64_t held_bytes_ = 0;
  std::map<uint64_t, std::vector<std::byte*>> kept_;  // by size
};

}  // namespace akv
