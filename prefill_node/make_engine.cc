#include "prefill_node/make_engine.h"

#include "prefill_node/engine/cpu_engine.h"

namespace akv::prefill {

Result<std::unique_ptr<PromptEngine>> make_engine(const Config& config,
                                                  std::shared_ptr<const model::Model> model) {
  return std::unique_ptr<PromptEngine>(std::make_unique<CpuPromptEngine>(
      std::move(model), config.stream_options(), config.effective_threads()));
}

}  // namespace akv::prefill
