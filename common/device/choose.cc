#include <algorithm>
#include <charconv>

#include "common/device/device.h"

namespace akv {
namespace {

// "cuda:N" -> N; -1 for other text.
int ordinal_of(std::string_view wanted) {
  constexpr std::string_view kPrefix = "cuda:";
  if (!wanted.starts_with(kPrefix)) return -1;
  int value = -1;
  const char* end = wanted.data() + wanted.size();
  const auto [parsed, error] = std::from_chars(wanted.data() + kPrefix.size(), end, value);
  return error == std::errc() && parsed == end ? value : -1;
}

std::string describe(const Device& device) {
  return device.name + ", " + std::to_string(device.memory_bytes >> 20) +
         " MiB, compute capability " + std::to_string(device.compute_capability / 10) + "." +
         std::to_string(device.compute_capability % 10);
}

Result<DeviceChoice> choose_cuda(int ordinal) {
  AKV_ASSIGN_OR_RETURN(std::vector<Device> devices, find_cuda_devices());
  const auto it = ordinal < 0 ? devices.begin()
                              : std::find_if(devices.begin(), devices.end(),
                                             [&](auto& d) { return d.ordinal == ordinal; });
  if (it == devices.end()) {
    return make_error(Code::kUnavailable,
                      "device: there is no usable CUDA device " + std::to_string(ordinal),
                      "device");
  }
  const std::string reason = describe(*it);
  return DeviceChoice{std::move(*it), reason};
}

}  // namespace

std::string_view device_kind_name(DeviceKind kind) {
  return kind == DeviceKind::kCuda ? "cuda" : "cpu";
}

std::optional<Error> DeviceHealth::lost() const {
  const std::lock_guard lock(mutex_);
  if (message_.empty()) return std::nullopt;
  return make_error(Code::kUnavailable, message_);
}

void DeviceHealth::mark_lost(std::string message) {
  const std::lock_guard lock(mutex_);
  if (message_.empty()) message_ = std::move(message);
}

Result<DeviceChoice> choose_device(std::string_view wanted) {
  if (wanted == "cpu") return DeviceChoice{Device{}, "the configuration says cpu"};
  const int ordinal = ordinal_of(wanted);
  if (wanted != "auto" && wanted != "cuda" && ordinal < 0) {
    return make_error(
        Code::kInvalidArgument,
        "device: got \"" + std::string(wanted) + "\", takes auto, cpu, cuda or cuda:N", "device");
  }
  Result<DeviceChoice> cuda = choose_cuda(ordinal);
  if (cuda.ok() || wanted != "auto") return cuda;
  return DeviceChoice{Device{}, cuda.error().message};
}

}  // namespace akv
