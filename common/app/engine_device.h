// Where a daemon's engines compute: the choice of --device, and the weights on a GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/base/result.h"
#include "common/model/model.h"

namespace akv::model {
class DeviceWeights;
}

namespace akv {

enum class DevicePreference { kAuto, kCpu, kCuda };

// The device that was chosen, for all engines of the process.
struct EngineDevice {
  std::shared_ptr<const model::DeviceWeights> weights;  // null: the CPUs
  uint64_t free_bytes = 0;                              // of the GPU's memory, beside the weights
  std::string name = "cpu";                             // or the GPU's, with its driver
  std::string reason;                                   // why this one
  bool memory_is_host = false;        // the GPU is the tests' shim, whose memory the host reads
  std::function<void()> bind_thread;  // lets the calling thread use the GPU; empty for the CPUs
  bool is_gpu() const { return weights != nullptr; }
  const char* kind() const { return is_gpu() ? "cuda" : "cpu"; }
};

// Opens the first GPU and copies the model's weights to it; kUnsupported with the reason where this
// build, machine or model cannot, kResourceExhausted where the weights do not fit. One definition
// for each backend: a binary links akv_app_device_cuda, _none, or, in tests, _shim.
Result<EngineDevice> open_gpu(std::shared_ptr<const model::Model> model);

// kCpu: the CPUs. kCuda: a GPU, or kUnsupported with why not. kAuto: a GPU where one can be opened,
// else the CPUs with why.
Result<EngineDevice> choose_engine_device(DevicePreference preference,
                                          std::shared_ptr<const model::Model> model);

// After an engine could not be made on `chosen`: the CPUs where kAuto had chosen a GPU, else why
// not, as an error of the configuration.
Result<EngineDevice> device_instead_of(const EngineDevice& chosen, DevicePreference preference,
                                       const Error& error);

}  // namespace akv
