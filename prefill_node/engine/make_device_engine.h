// The prompt engine of a GPU, behind a declaration that builds without CUDA share.
#pragma once

#include <memory>

#include "common/base/result.h"
#include "prefill_node/engine/layer_stream.h"
#include "prefill_node/engine/prompt_engine.h"

namespace akv::model {
class DeviceWeights;
}

namespace akv::prefill {

// kResourceExhausted where its scratch does not fit beside the weights. One definition for each
// backend: a binary links akv_prefill_device_cuda, _none, or, in tests, _shim.
Result<std::unique_ptr<PromptEngine>> make_device_engine(
    std::shared_ptr<const model::DeviceWeights> weights, const StreamOptions& options);

}  // namespace akv::prefill
