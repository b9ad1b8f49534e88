#include "prefill_node/make_engine.h"

#include "prefill_node/engine/cpu_engine.h"
#include "prefill_node/engine/make_device_engine.h"

namespace akv::prefill {

Result<std::unique_ptr<PromptEngine>> make_engine(const Config& config, const EngineDevice& device,
                                                  std::shared_ptr<const model::Model> model) {
  const StreamOptions options = config.stream_options(device);
  if (device.is_gpu()) return make_device_engine(device.weights, options);
  return std::unique_ptr<PromptEngine>(
      std::make_unique<CpuPromptEngine>(std::move(model), options, config.effective_threads()));
}

}  // namespace akv::prefill
