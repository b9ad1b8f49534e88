#include "common/app/engine_device.h"
#include "common/device/device.h"
#include "common/model/device_weights.h"

namespace akv {

Result<EngineDevice> open_gpu(std::shared_ptr<const model::Model> model) {
  AKV_ASSIGN_OR_RETURN(const DeviceChoice choice, choose_device("cuda"));
  const Device& device = choice.device;
  EngineDevice opened;
  AKV_ASSIGN_OR_RETURN(opened.weights, model::DeviceWeights::upload(std::move(model), device));
  AKV_ASSIGN_OR_RETURN(opened.free_bytes, free_memory_bytes(device));
  AKV_ASSIGN_OR_RETURN(opened.memory_is_host, memory_is_host(device));
  opened.bind_thread = [device] { (void)use_device(device).ok(); };
  opened.name = device.name;
  return opened;
}

}  // namespace akv
