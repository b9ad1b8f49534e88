// The step engine of a GPU, behind a declaration that builds without CUDA share.
#pragma once

#include <cstdint>
#include <memory>

#include "common/base/result.h"
#include "decode_node/engine/step.h"

namespace akv::model {
class DeviceWeights;
}

namespace akv::decode {

struct DeviceStepOptions {
  int64_t max_rows = 256;  // of a step: new tokens of all sessions
  bool graphs = true;      // false: every step runs eagerly (tests, measurements)
};

// kResourceExhausted where its scratch does not fit beside the weights. One definition for each
// backend: a binary links akv_decode_device_cuda, _none, or, in tests, _shim.
Result<std::unique_ptr<StepEngine>> make_device_engine(
    std::shared_ptr<const model::DeviceWeights> weights, const DeviceStepOptions& options);

}  // namespace akv::decode
