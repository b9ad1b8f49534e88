#include "common/app/engine_device.h"

#include <fmt/format.h>

namespace akv {

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
    return make_error(
        Code::kUnsupported,
        fmt::format("device: got cuda, takes it only where a GPU works: {}", gpu.error().message),
        "device");
  }
  cpu.reason = "no GPU: " + gpu.error().message;
  return cpu;
}

}  // namespace akv
