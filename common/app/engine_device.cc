#include "common/app/engine_device.h"

#include <fmt/format.h>

namespace akv {
namespace {

Error not_on_gpu(const Error& error) {
  return make_error(
      Code::kUnsupported,
      fmt::format("device: got cuda, takes it only where a GPU works: {}", error.message),
      "device");
}

}  // namespace

Result<EngineDevice> choose_engine_device(DevicePreference preference,
                                          std::shared_ptr<const model::Model> model) {
  EngineDevice cpu;
  if (preference == DevicePreference::kCpu) {
    cpu.reason = "--device cpu";
    return cpu;
  }
  auto gpu = open_gpu(std::move(model));
  if (gpu.ok()) {
    gpu->reason = preference == DevicePreference::kCuda ? "--device cuda" : "a GPU was found";
    return gpu;
  }
  if (preference == DevicePreference::kCuda) {
    return not_on_gpu(gpu.error());
  }
  cpu.reason = "no GPU: " + gpu.error().message;
  return cpu;
}

Result<EngineDevice> device_instead_of(const EngineDevice& chosen, DevicePreference preference,
                                       const Error& error) {
  if (!chosen.is_gpu()) return error;
  if (preference != DevicePreference::kAuto) return not_on_gpu(error);
  EngineDevice cpu;
  cpu.reason = "no GPU: " + error.message;
  return cpu;
}

}  // namespace akv
