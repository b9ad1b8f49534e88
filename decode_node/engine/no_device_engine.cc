// Of builds without CUDA, where no weights are ever on a GPU.
#include "decode_node/engine/make_device_engine.h"

namespace akv::decode {

Result<std::unique_ptr<StepEngine>> make_device_engine(std::shared_ptr<const model::DeviceWeights>,
                                                       const DeviceStepOptions&) {
  return make_error(Code::kUnsupported, "this build has no CUDA (AKV_CUDA)");
}

}  // namespace akv::decode
