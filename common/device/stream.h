// Streams and events of a CUDA device. Owners; DeviceStream (kernels/device_stream.h) is the view.
//
// Errors of all members: kUnavailable once the device is lost, kInternal for what cannot be.
// Members are safe on any thread, but work that two threads put into one stream has no order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "common/base/result.h"
#include "common/device/device.h"
#include "kernels/device_stream.h"

namespace akv {

class Event;

// A queue of work of a device. Destroying it waits for its work.
class Stream {
 public:
  enum class Priority { kNormal, kHigh };

  // kUnavailable, kUnsupported (the device is a CPU).
  static Result<Stream> create(const Device& device, Priority priority = Priority::kNormal);
  Stream(Stream&& other) noexcept
      : device_(std::move(other.device_)), handle_(std::exchange(other.handle_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept;
  ~Stream();

  operator DeviceStream() const { return DeviceStream{handle_}; }
  DeviceStream view() const { return DeviceStream{handle_}; }
  const Device& device() const { return device_; }

  // Waits for all work so far; its errors.
  Status synchronize() const;
  // Whether all work so far is done; never waits.
  Result<bool> idle() const;
  // The errors of launches by the calling thread since its last check (operators report none), and
  // of work that has ended.
  Status check() const;
  // Work put here from now on starts after what `event` recorded last. Of the same device.
  Status wait(const Event& event) const;

  // Copies between the host and the device's memory, in stream order. Host memory must stay as it
  // is until the stream has passed, and be pinned for the host to go on at once.
  Status copy_to_device(std::byte* to, std::span<const std::byte> from) const;
  Status copy_to_host(std::span<std::byte> to, const std::byte* from) const;
  Status copy_on_device(std::byte* to, const std::byte* from, size_t bytes) const;
  Status fill(std::byte* to, uint8_t value, size_t bytes) const;
  // The same for arrays of T.
  template <class T>
  Status upload(T* to, std::span<const T> from) const {
    return copy_to_device(reinterpret_cast<std::byte*>(to), std::as_bytes(from));
  }
  template <class T>
  Status download(std::span<T> to, const T* from) const {
    return copy_to_host(std::as_writable_bytes(to), reinterpret_cast<const std::byte*>(from));
  }

 private:
  Stream(const Device& device, void* handle) : device_(device), handle_(handle) {}

  Device device_;
  void* handle_ = nullptr;
};

// A mark in a stream.
class Event {
 public:
  // timing: seconds_between() works, and waiting costs a little more.
  static Result<Event> create(const Device& device, bool timing = false);
  Event(Event&& other) noexcept
      : device_(std::move(other.device_)), handle_(std::exchange(other.handle_, nullptr)) {}
  Event& operator=(Event&& other) noexcept;
  ~Event();

  void* handle() const { return handle_; }
  const Device& device() const { return device_; }

  // Marks the work so far. A later record replaces the mark.
  Status record(DeviceStream stream) const;
  Status synchronize() const;
  // Whether the marked work is done (or nothing was marked); never waits.
  Result<bool> reached() const;
  // Between two reached marks of events with timing.
  static Result<double> seconds_between(const Event& start, const Event& end);

 private:
  Event(const Device& device, void* handle) : device_(device), handle_(handle) {}

  Device device_;
  void* handle_ = nullptr;
};

}  // namespace akv
