#include "common/model/device_graph.h"

#include <algorithm>
#include <array>
#include <utility>

#include "common/base/check.h"
#include "kernels/activation.h"
#include "kernels/dequant.h"
#include "kernels/finish_qkv.h"
#include "kernels/gemv.h"
#include "kernels/norm.h"

namespace akv::model {
namespace {

namespace cuda = kernels::cuda;

constexpr uint64_t kAlignment = 256;

// Divides scratch memory; without a base it only counts.
class Carving {
 public:
  explicit Carving(std::byte* base) : base_(base) {}
  template <class T>
  void take(T*& pointer, int64_t count) {
    const auto bytes = static_cast<uint64_t>(count) * sizeof(T);
    if (base_ != nullptr) pointer = reinterpret_cast<T*>(base_ + size_);
    size_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  uint64_t size() const { return size_; }

 private:
  std::byte* base_;
  uint64_t size_ = 0;
};

template <class Scratch>
struct Carved {
  DeviceBuffer memory;
  Scratch scratch;
};

// A graph's scratch in memory of its own.
template <class Scratch>
Result<Carved<Scratch>> carve_memory(const DeviceWeights& weights, int64_t max_rows) {
  Carved<Scratch> carved;
  const uint64_t bytes = Scratch{}.carve(weights.config(), max_rows, nullptr);
  AKV_ASSIGN_OR_RETURN(carved.memory, DeviceBuffer::allocate(weights.device(), bytes));
  carved.scratch.carve(weights.config(), max_rows, carved.memory.data());
  return carved;
}

// The bias, norm and RoPE of one call's rows.
cuda::FinishQkvParams finish_params(const DeviceWeights& weights, int layer, int64_t rows) {
  const LayerWeights& w = weights.layer(layer);
  const ModelConfig& config = weights.config();
  cuda::FinishQkvParams params;
  params.bq = w.bq;
  params.bk = w.bk;
  params.bv = w.bv;
  params.q_norm = w.q_norm;
  params.k_norm = w.k_norm;
  params.eps = static_cast<float>(config.rms_eps);
  params.rope = weights.rope();
  params.rows = rows;
  params.heads = config.heads;
  params.kv_heads = config.kv_heads;
  return params;
}

}  // namespace

uint64_t DevicePrefillGraph::Scratch::carve(const ModelConfig& config, int64_t max_rows,
                                            std::byte* base) {
  const int64_t d = config.d_model, ff = config.d_ff;
  const int64_t q_dim = config.q_dim(), kv_dim = config.kv_dim();
  const int64_t sizes[kRoles] = {q_dim * d, kv_dim * d, kv_dim * d, d * q_dim,
                                 ff * d,    ff * d,     d * ff};
  Carving carving(base);
  for (int role = 0; role < kRoles; ++role) carving.take(expanded[role], sizes[role]);
  carving.take(normed, max_rows * d);
  carving.take(act, max_rows * ff);
  carving.take(q, max_rows * q_dim);
  carving.take(k, max_rows * kv_dim);
  carving.take(v, max_rows * kv_dim);
  carving.take(gate, max_rows * ff);
  carving.take(up, max_rows * ff);
  carving.take(last, d);
  carving.take(workspace, static_cast<int64_t>(cuda::Gemm::kWorkspaceBytes));
  return carving.size();
}

uint64_t DevicePrefillGraph::scratch_bytes(const ModelConfig& config, int64_t max_rows) {
  return Scratch{}.carve(config, max_rows, nullptr);
}

Result<std::unique_ptr<DevicePrefillGraph>> DevicePrefillGraph::create(
    std::shared_ptr<const DeviceWeights> weights, int64_t max_rows, DeviceStream stream) {
  AKV_ASSIGN_OR_RETURN(auto carved, carve_memory<Scratch>(*weights, max_rows));
  return std::unique_ptr<DevicePrefillGraph>(new DevicePrefillGraph(
      std::move(weights), max_rows, stream, std::move(carved.memory), carved.scratch));
}

DevicePrefillGraph::DevicePrefillGraph(std::shared_ptr<const DeviceWeights> weights,
                                       int64_t max_rows, DeviceStream stream, DeviceBuffer memory,
                                       const Scratch& scratch)
    : weights_(std::move(weights)),
      max_rows_(max_rows),
      stream_(stream),
      memory_(std::move(memory)),
      scratch_(scratch),
      gemm_(scratch_.workspace, cuda::Gemm::kWorkspaceBytes) {}

void DevicePrefillGraph::embed(const int32_t* ids, int64_t count, float* x) {
  cuda::embed(weights_->embedding(), ids, count, x, stream_);
}

void DevicePrefillGraph::prepare_layer(int layer) {
  AKV_CHECK(layer >= 0 && layer < weights_->config().layers);
  if (expanded_layer_ == layer) return;
  const LayerWeights& w = weights_->layer(layer);
  const Matrix* const matrices[kRoles] = {&w.wq,     &w.wk,   &w.wv,    &w.wo,
                                          &w.w_gate, &w.w_up, &w.w_down};
  for (int role = 0; role < kRoles; ++role) {
    cuda::dequantize(*matrices[role], scratch_.expanded[role], stream_);
  }
  expanded_layer_ = layer;
}

void DevicePrefillGraph::product(Role role, const bf16* x, int64_t rows, float* y,
                                 bool accumulate) {
  const LayerWeights& w = weights_->layer(expanded_layer_);
  const Matrix* const matrices[kRoles] = {&w.wq,     &w.wk,   &w.wv,    &w.wo,
                                          &w.w_gate, &w.w_up, &w.w_down};
  gemm_.run(x, rows, scratch_.expanded[role], matrices[role]->rows, matrices[role]->cols, y,
            accumulate, stream_);
}

void DevicePrefillGraph::qkv(int layer, const float* x, int64_t rows, int64_t pos0,
                             const DeviceQkv& out) {
  const ModelConfig& config = weights_->config();
  AKV_CHECK(rows >= 1 && rows <= max_rows_ && pos0 >= 0 && pos0 + rows <= config.context_length);
  prepare_layer(layer);
  cuda::FinishQkvParams params = finish_params(*weights_, layer, rows);
  cuda::rmsnorm(x, rows, config.d_model, weights_->layer(layer).attn_norm, params.eps,
                scratch_.normed, stream_);
  product(kQ, scratch_.normed, rows, scratch_.q, false);
  product(kK, scratch_.normed, rows, scratch_.k, false);
  product(kV, scratch_.normed, rows, scratch_.v, false);
  params.q = scratch_.q;
  params.k = scratch_.k;
  params.v = scratch_.v;
  params.pos0 = pos0;
  params.q_bf16 = out.q;
  params.k_pre = out.k_pre;
  params.k_rot = out.k_rot;
  params.v_bf16 = out.v;
  cuda::finish_qkv(params, stream_);
}

void DevicePrefillGraph::attn_out(int layer, const bf16* attn, int64_t rows, float* x) {
  AKV_CHECK(rows >= 1 && rows <= max_rows_);
  prepare_layer(layer);
  product(kO, attn, rows, x, true);
}

void DevicePrefillGraph::mlp(int layer, int64_t rows, float* x) {
  AKV_CHECK(rows >= 1 && rows <= max_rows_);
  const ModelConfig& config = weights_->config();
  prepare_layer(layer);
  cuda::rmsnorm(x, rows, config.d_model, weights_->layer(layer).ffn_norm,
                static_cast<float>(config.rms_eps), scratch_.normed, stream_);
  product(kGate, scratch_.normed, rows, scratch_.gate, false);
  product(kUp, scratch_.normed, rows, scratch_.up, false);
  cuda::silu_mul(scratch_.gate, scratch_.up, rows * config.d_ff, scratch_.act, stream_);
  product(kDown, scratch_.act, rows, x, true);
}

void DevicePrefillGraph::logits(const float* x_row, float* out) {
  const ModelConfig& config = weights_->config();
  cuda::rmsnorm(x_row, 1, config.d_model, weights_->output_norm(),
                static_cast<float>(config.rms_eps), scratch_.last, stream_);
  cuda::matmul_lowbit(scratch_.last, 1, weights_->head(), out, false, stream_);
}

uint64_t DeviceStepGraph::Scratch::carve(const ModelConfig& config, int64_t max_rows,
                                         std::byte* base) {
  Carving carving(base);
  carving.take(normed, max_rows * config.d_model);
  carving.take(gathered, max_rows * config.d_model);
  carving.take(k, max_rows * config.kv_dim());
  carving.take(v, max_rows * config.kv_dim());
  carving.take(gate, max_rows * config.d_ff);
  carving.take(up, max_rows * config.d_ff);
  return carving.size();
}

Result<std::unique_ptr<DeviceStepGraph>> DeviceStepGraph::create(
    std::shared_ptr<const DeviceWeights> weights, int64_t max_rows, DeviceStream stream) {
  AKV_ASSIGN_OR_RETURN(auto carved, carve_memory<Scratch>(*weights, max_rows));
  return std::unique_ptr<DeviceStepGraph>(new DeviceStepGraph(
      std::move(weights), max_rows, stream, std::move(carved.memory), carved.scratch));
}

DeviceStepGraph::DeviceStepGraph(std::shared_ptr<const DeviceWeights> weights, int64_t max_rows,
                                 DeviceStream stream, DeviceBuffer memory, const Scratch& scratch)
    : weights_(std::move(weights)),
      max_rows_(max_rows),
      stream_(stream),
      memory_(std::move(memory)),
      scratch_(scratch) {}

// Products that share x, in blocks of as many rows as one pass over the weights serves.
void DeviceStepGraph::products(const float* x, int64_t rows, std::span<const Product> products,
                               bool accumulate) {
  std::array<kernels::LowbitProduct, cuda::kMaxLowbitProducts> batch;
  AKV_CHECK(products.size() <= batch.size());
  const int64_t cols = products[0].weight->cols;
  for (int64_t row = 0; row < rows; row += kernels::kMaxLowbitRows) {
    const auto block = static_cast<int>(std::min<int64_t>(rows - row, kernels::kMaxLowbitRows));
    for (size_t i = 0; i < products.size(); ++i) {
      const Matrix& w = *products[i].weight;
      batch[i] = {w, products[i].y + row * w.rows};
    }
    cuda::matmul_lowbit(x + row * cols, block, {batch.data(), products.size()}, accumulate,
                        stream_);
  }
}

void DeviceStepGraph::embed(const int32_t* ids, int64_t count, float* x) {
  cuda::embed(weights_->embedding(), ids, count, x, stream_);
}

void DeviceStepGraph::qkv(int layer, const float* x, int64_t rows, const DeviceStepRows& at,
                          float* q) {
  AKV_CHECK(rows >= 1 && rows <= max_rows_);
  const ModelConfig& config = weights_->config();
  const LayerWeights& w = weights_->layer(layer);
  cuda::FinishQkvParams params = finish_params(*weights_, layer, rows);
  cuda::rmsnorm(x, rows, config.d_model, w.attn_norm, params.eps, scratch_.normed, stream_);
  const Product three[] = {{&w.wq, q}, {&w.wk, scratch_.k}, {&w.wv, scratch_.v}};
  products(scratch_.normed, rows, three, false);
  params.q = q;
  params.k = scratch_.k;
  params.v = scratch_.v;
  params.positions = at.positions;
  params.q_f32 = q;
  params.pages = at.pages;
  params.slots = at.slots;
  params.layer_offset = at.layer_stride * layer;
  cuda::finish_qkv(params, stream_);
}

void DeviceStepGraph::attn_out(int layer, const float* attn, int64_t rows, float* x) {
  AKV_CHECK(rows >= 1 && rows <= max_rows_);
  const Product one[] = {{&weights_->layer(layer).wo, x}};
  products(attn, rows, one, true);
}

void DeviceStepGraph::mlp(int layer, int64_t rows, float* x) {
  AKV_CHECK(rows >= 1 && rows <= max_rows_);
  const ModelConfig& config = weights_->config();
  const LayerWeights& w = weights_->layer(layer);
  cuda::rmsnorm(x, rows, config.d_model, w.ffn_norm, static_cast<float>(config.rms_eps),
                scratch_.normed, stream_);
  const Product two[] = {{&w.w_gate, scratch_.gate}, {&w.w_up, scratch_.up}};
  products(scratch_.normed, rows, two, false);
  cuda::silu_mul(scratch_.gate, scratch_.up, rows * config.d_ff, scratch_.gate, stream_);
  const Product one[] = {{&w.w_down, x}};
  products(scratch_.gate, rows, one, true);
}

void DeviceStepGraph::logits(const float* x, const int32_t* rows, int64_t count, float* out) {
  AKV_CHECK(count >= 1 && count <= max_rows_);
  const ModelConfig& config = weights_->config();
  cuda::gather_rows(x, rows, count, config.d_model, scratch_.gathered, stream_);
  cuda::rmsnorm(scratch_.gathered, count, config.d_model, weights_->output_norm(),
                static_cast<float>(config.rms_eps), scratch_.normed, stream_);
  const Product one[] = {{&weights_->head(), out}};
  products(scratch_.normed, count, one, false);
}

}  // namespace akv::model
