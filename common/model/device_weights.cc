#include "common/model/device_weights.h"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "common/device/stream.h"
#include "kernels/cuda/decode_attention.h"
#include "kernels/dequant.h"
#include "kernels/flash_prefill.h"

namespace akv::model {
namespace {

constexpr uint64_t kAlignment = 256;

Status check_shape(const ModelConfig& config) {
  const kernels::cuda::DecodeAttentionShape shape{
      .heads = config.heads, .kv_heads = config.kv_heads, .head_dim = config.head_dim};
  if (const char* reason = kernels::cuda::decode_attention_unsupported(shape)) {
    return make_error(Code::kUnsupported,
                      fmt::format("the GPU's kernels do not take this model: {}", reason));
  }
  if (!kernels::cuda::flash_prefill_supports(config.heads, config.kv_heads, config.head_dim)) {
    return make_error(Code::kUnsupported,
                      fmt::format("the GPU's kernels do not take this model: {} query heads, {} KV "
                                  "heads of {}",
                                  config.heads, config.kv_heads, config.head_dim));
  }
  return {};
}

}  // namespace

// Divides one allocation. The first pass, without memory, only counts.
class DeviceWeights::Packing {
 public:
  explicit Packing(std::byte* base) : base_(base) {}

  const void* add(const void* host, uint64_t bytes) {
    if (host == nullptr) return nullptr;
    const uint64_t at = size_;
    size_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (base_ == nullptr) return nullptr;
    copies_.push_back({host, base_ + at, bytes});
    return base_ + at;
  }
  Matrix add(const Matrix& m) {
    Matrix copy = m;
    const auto rows = static_cast<uint64_t>(m.rows);
    copy.data = add(m.data, rows * kernels::row_bytes(m.type, m.cols));
    return copy;
  }
  const float* add(const float* host, int64_t count) {
    return static_cast<const float*>(
        add(static_cast<const void*>(host), static_cast<uint64_t>(count) * sizeof(float)));
  }

  uint64_t size() const { return size_; }
  struct Copy {
    const void* from;
    std::byte* to;
    uint64_t bytes;
  };
  const std::vector<Copy>& copies() const { return copies_; }

 private:
  std::byte* base_;
  uint64_t size_ = 0;
  std::vector<Copy> copies_;
};

// The RoPE rows are one array on the device; the host's table holds them in blocks.
void DeviceWeights::describe(Packing& packing) {
  const ModelConfig& config = model_->config();
  layers_.clear();
  for (int i = 0; i < config.layers; ++i) {
    const LayerWeights& from = model_->layer(i);
    LayerWeights to;
    to.wq = packing.add(from.wq);
    to.wk = packing.add(from.wk);
    to.wv = packing.add(from.wv);
    to.wo = packing.add(from.wo);
    to.w_gate = packing.add(from.w_gate);
    to.w_up = packing.add(from.w_up);
    to.w_down = packing.add(from.w_down);
    to.attn_norm = packing.add(from.attn_norm, config.d_model);
    to.ffn_norm = packing.add(from.ffn_norm, config.d_model);
    to.bq = packing.add(from.bq, config.q_dim());
    to.bk = packing.add(from.bk, config.kv_dim());
    to.bv = packing.add(from.bv, config.kv_dim());
    to.q_norm = packing.add(from.q_norm, config.head_dim);
    to.k_norm = packing.add(from.k_norm, config.head_dim);
    layers_.push_back(to);
  }
  embedding_ = packing.add(model_->embedding());
  head_ = config.tied ? embedding_ : packing.add(model_->head());
  output_norm_ = packing.add(model_->output_norm(), config.d_model);
}

Status DeviceWeights::health() const {
  if (auto lost = device_.health->lost()) return *std::move(lost);
  return {};
}

Result<std::shared_ptr<const DeviceWeights>> DeviceWeights::upload(
    std::shared_ptr<const Model> model, const Device& device) {
  const ModelConfig& config = model->config();
  AKV_RETURN_IF_ERROR(check_shape(config));
  AKV_ASSIGN_OR_RETURN(auto stream, Stream::create(device));
  std::shared_ptr<DeviceWeights> weights(new DeviceWeights(std::move(model), device));
  const kernels::RopeTable& rope = weights->model().rope();
  const int64_t rope_row = int64_t{2} * rope.half();
  const auto rope_bytes = static_cast<uint64_t>(config.context_length * rope_row) * sizeof(float);
  Packing sizes(nullptr);
  weights->describe(sizes);
  AKV_ASSIGN_OR_RETURN(weights->memory_, DeviceBuffer::allocate(device, sizes.size() + rope_bytes));
  Packing packing(weights->memory_.data());
  weights->describe(packing);
  for (const Packing::Copy& copy : packing.copies()) {
    AKV_RETURN_IF_ERROR(stream.copy_to_device(
        copy.to, {static_cast<const std::byte*>(copy.from), static_cast<size_t>(copy.bytes)}));
  }
  auto* rope_rows = reinterpret_cast<float*>(weights->memory_.data() + packing.size());
  for (int64_t p = 0; p < config.context_length; p += kernels::RopeTable::kBlock) {
    const int64_t rows = std::min<int64_t>(kernels::RopeTable::kBlock, config.context_length - p);
    AKV_RETURN_IF_ERROR(stream.upload(
        rope_rows + p * rope_row,
        std::span<const float>(rope.cos_row(p), static_cast<size_t>(rows * rope_row))));
  }
  AKV_RETURN_IF_ERROR(stream.synchronize());
  weights->rope_ = {.rows = rope_rows,
                    .half = rope.half(),
                    .head_dim = rope.head_dim(),
                    .pairs = rope.pairs(),
                    .positions = config.context_length};
  return std::shared_ptr<const DeviceWeights>(std::move(weights));
}

}  // namespace akv::model
