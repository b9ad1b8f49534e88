// Of builds without CUDA.
#include "common/app/engine_device.h"

namespace akv {

Result<EngineDevice> open_gpu(std::shared_ptr<const model::Model>) {
  return make_error(Code::kUnsupported, "this build has no CUDA (AKV_CUDA)");
}

}  // namespace akv
