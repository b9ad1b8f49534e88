// A model's weights in device memory, in their stored low-bit formats.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/result.h"
#include "common/device/device.h"
#include "common/device/memory.h"
#include "common/model/model.h"
#include "kernels/rope.h"

namespace akv::model {

// Immutable after upload; shared by the engines of a process. Holds the model alive, whose config
// and host weights stay in use.
class DeviceWeights {
 public:
  // Copies every matrix, norm and bias, and the rows of the RoPE table up to the context's end; one
  // allocation, each part aligned to 256 bytes. Waits for the copies. kUnsupported where the
  // device's kernels do not take the model's shape (the message says what), kResourceExhausted
  // where the memory is short.
  static Result<std::shared_ptr<const DeviceWeights>> upload(std::shared_ptr<const Model> model,
                                                             const Device& device);

  const Model& model() const { return *model_; }
  const ModelConfig& config() const { return model_->config(); }
  const Device& device() const { return device_; }
  // [thread-safe] kUnavailable once the device is lost.
  Status health() const;
  // The same views as Model's, into device memory.
  const LayerWeights& layer(int i) const { return layers_[static_cast<size_t>(i)]; }
  const Matrix& embedding() const { return embedding_; }
  const Matrix& head() const { return head_; }
  const float* output_norm() const { return output_norm_; }
  const kernels::DeviceRope& rope() const { return rope_; }
  uint64_t bytes() const { return memory_.size(); }

 private:
  class Packing;
  DeviceWeights(std::shared_ptr<const Model> model, const Device& device)
      : model_(std::move(model)), device_(device) {}
  void describe(Packing& packing);

  const std::shared_ptr<const Model> model_;
  const Device device_;
  DeviceBuffer memory_;
  std::vector<LayerWeights> layers_;
  Matrix embedding_;
  Matrix head_;
  const float* output_norm_ = nullptr;
  kernels::DeviceRope rope_;
};

}  // namespace akv::model
