// Of builds without CUDA, where no weights are ever on a GPU.
#include "prefill_node/engine/make_device_engine.h"

namespace akv::prefill {

Result<std::unique_ptr<PromptEngine>> make_device_engine(
    std::shared_ptr<const model::DeviceWeights>, const StreamOptions&) {
  return make_error(Code::kUnsupported, "this build has no CUDA (AKV_CUDA)");
}

}  // namespace akv::prefill
