// The device that a process computes on: which one, why, and whether it still works. A value that
// is passed to whoever needs it; there is no current device.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace akv {

enum class DeviceKind { kCpu, kCuda };

std::string_view device_kind_name(DeviceKind kind);  // "cpu", "cuda"

// Whether a device has been lost (an error after which it does no more work in this process: a
// fault of the hardware, a kernel that failed). Shared by all owners of its memory and streams; any
// thread. Never recovers: the process must be started again.
class DeviceHealth {
 public:
  // The first error that lost the device, kUnavailable; nothing while it works.
  std::optional<Error> lost() const;
  void mark_lost(std::string message);

 private:
  mutable std::mutex mutex_;
  std::string message_;
};

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int ordinal = 0;
  std::string name = "CPU";
  uint64_t memory_bytes = 0;    // of the device; 0 for the CPU
  int multiprocessors = 0;      // 0 for the CPU
  int compute_capability = 0;   // 10 * major + minor; 0 for the CPU
  int shared_memory_bytes = 0;  // the most that a block can have
  std::shared_ptr<DeviceHealth> health = std::make_shared<DeviceHealth>();

  bool is_cuda() const { return kind == DeviceKind::kCuda; }
};

struct DeviceChoice {
  Device device;
  std::string reason;  // one line for people: why this one
};

// wanted: "auto" (CUDA where it works, else the CPU), "cpu", "cuda" or "cuda:N". kInvalidArgument
// for other text; kUnavailable where CUDA is asked for and does not work (no driver, a driver too
// old, no device, a device too old); kUnsupported where this build has no CUDA. Starts no context
// on other devices.
Result<DeviceChoice> choose_device(std::string_view wanted);

// All CUDA devices of compute capability 8.0 and later; the error says why there are none.
Result<std::vector<Device>> find_cuda_devices();

// Lets the calling thread launch kernels on the device. Streams, memory and graphs do so by
// themselves; who calls operators (kernels/) on a thread of its own calls this first.
Status use_device(const Device& device);

// Whether the host reads and writes this device's memory by the same addresses, as on the tests'
// shim of CUDA; a real one's is never. Makes a small allocation to find out.
Result<bool> memory_is_host(const Device& device);

// Bytes of device memory that no process has taken.
Result<uint64_t> free_memory_bytes(const Device& device);

}  // namespace akv
