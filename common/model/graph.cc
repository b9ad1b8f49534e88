#include "common/model/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <initializer_list>
#include <new>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "kernels/activation.h"
#include "kernels/dequant.h"
#include "kernels/gemm.h"
#include "kernels/gemv.h"
#include "kernels/norm.h"
#include "kernels/rope.h"

namespace akv::model {
namespace {

// Which matrix of a layer; one PackedWeights each.
enum Role : size_t { kQ, kK, kV, kO, kGate, kUp, kDown, kRoles };

const Matrix& weight_of(const LayerWeights& layer, Role role) {
  const Matrix* const matrices[kRoles] = {&layer.wq,     &layer.wk,   &layer.wv,    &layer.wo,
                                          &layer.w_gate, &layer.w_up, &layer.w_down};
  return *matrices[role];
}

// An owner of floats on a cache line's border.
class FloatBuffer {
 public:
  FloatBuffer() = default;
  explicit FloatBuffer(int64_t count) : bytes_((static_cast<size_t>(count) * 4 + 63) / 64 * 64) {
    data_ = static_cast<float*>(std::aligned_alloc(64, std::max<size_t>(bytes_, 64)));
    if (data_ == nullptr) throw std::bad_alloc();
  }
  ~FloatBuffer() { std::free(data_); }
  FloatBuffer(const FloatBuffer&) = delete;
  FloatBuffer& operator=(const FloatBuffer&) = delete;

  float* get() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  float* data_ = nullptr;
  size_t bytes_ = 0;
};

// Positions of a call's rows: a list, or consecutive from pos0 where the list is null.
struct Positions {
  const int64_t* list = nullptr;
  int64_t pos0 = 0;
};

}  // namespace

struct Graph::State {
  State(std::shared_ptr<const Model> m, const GraphOptions& o, const Parallel& p);

  // One product of a step: y [rows, N] from the step's shared input, += where accumulate.
  struct Product {
    Role role;
    float* y;
  };
  void project(int layer, const float* x, int64_t rows, std::initializer_list<Product> products);
  void project_add(int layer, Role role, const float* x, int64_t rows, float* y);
  void rotate(float* x, int64_t rows, int heads, const Positions& at);
  void qkv(int layer, const float* x, int64_t rows, const Positions& at, const QkvRows& out);
  void store_keys(int64_t rows, const Positions& at, const QkvRows& out);
  void norm_rows(const float* x, int64_t rows, const float* weight, float* out) {
    kernels::rmsnorm(x, rows, config.d_model, weight, eps, out, parallel);
  }
  void check_rows(int64_t rows) const { AKV_CHECK(rows >= 1 && rows <= options.max_rows); }

  std::shared_ptr<const Model> model;
  const ModelConfig& config;
  GraphOptions options;
  Parallel parallel;
  float eps;
  kernels::Compute compute;
  FloatBuffer normed;  // [max_rows, d], the input of the current products
  FloatBuffer k;       // [max_rows, H*D]
  FloatBuffer v;       // [max_rows, H*D]
  FloatBuffer gate;    // [max_rows, ff]
  FloatBuffer up;      // [max_rows, ff]
  FloatBuffer branch;  // [max_rows, d], kLowBit: a branch's output before it joins the stream
  std::array<kernels::PackedWeights, kRoles> packed;
  int packed_layer = -1;
};

Graph::State::State(std::shared_ptr<const Model> m, const GraphOptions& o, const Parallel& p)
    : model(std::move(m)),
      config(model->config()),
      options(o),
      parallel(p),
      eps(static_cast<float>(config.rms_eps)),
      compute(o.f32 ? kernels::Compute::kF32 : kernels::best_compute()),
      normed(o.max_rows * config.d_model),
      k(o.max_rows * config.kv_dim()),
      v(o.max_rows * config.kv_dim()),
      gate(o.max_rows * config.d_ff),
      up(o.max_rows * config.d_ff),
      branch(o.path == WeightPath::kLowBit ? o.max_rows * config.d_model : 0) {
  AKV_CHECK(o.max_rows >= 1);
}

void Graph::State::project(int layer, const float* x, int64_t rows,
                           std::initializer_list<Product> products) {
  if (options.path == WeightPath::kPacked) {
    for (const Product& product : products) {
      kernels::gemm(x, rows, packed[product.role], product.y, parallel);
    }
    return;
  }
  std::array<kernels::LowbitProduct, kRoles> batch;
  for (int64_t row = 0; row < rows; row += kernels::kMaxLowbitRows) {
    size_t count = 0;
    int64_t cols = 0;
    for (const Product& product : products) {
      const Matrix& w = weight_of(model->layer(layer), product.role);
      batch[count++] = {w, product.y + row * w.rows};
      cols = w.cols;
    }
    const auto block = static_cast<int>(std::min<int64_t>(rows - row, kernels::kMaxLowbitRows));
    kernels::matmul_lowbit(x + row * cols, block, {batch.data(), count}, parallel);
  }
}

void Graph::State::project_add(int layer, Role role, const float* x, int64_t rows, float* y) {
  if (options.path == WeightPath::kPacked) {
    kernels::gemm(x, rows, packed[role], y, parallel, /*accumulate=*/true);
    return;
  }
  project(layer, x, rows, {{role, branch.get()}});
  kernels::add(y, branch.get(), rows * config.d_model, parallel);
}

void Graph::State::rotate(float* x, int64_t rows, int heads, const Positions& at) {
  const kernels::RopeTable& rope = model->rope();
  if (at.list != nullptr) {
    kernels::rope_apply(rope, x, rows, heads, at.list, parallel);
  } else {
    kernels::rope_apply(rope, x, rows, heads, at.pos0, parallel);
  }
}

void Graph::State::qkv(int layer, const float* x, int64_t rows, const Positions& at,
                       const QkvRows& out) {
  AKV_CHECK(out.q != nullptr);
  const LayerWeights& w = model->layer(layer);
  norm_rows(x, rows, w.attn_norm, normed.get());
  project(layer, normed.get(), rows, {{kQ, out.q}, {kK, k.get()}, {kV, v.get()}});
  if (w.bq != nullptr) {
    kernels::add_bias(out.q, rows, config.q_dim(), w.bq, parallel);
    kernels::add_bias(k.get(), rows, config.kv_dim(), w.bk, parallel);
    kernels::add_bias(v.get(), rows, config.kv_dim(), w.bv, parallel);
  }
  if (w.q_norm != nullptr) {
    const int dim = config.head_dim;
    kernels::rmsnorm(out.q, rows * config.heads, dim, w.q_norm, eps, out.q, parallel);
    kernels::rmsnorm(k.get(), rows * config.kv_heads, dim, w.k_norm, eps, k.get(), parallel);
  }
  rotate(out.q, rows, config.heads, at);
  store_keys(rows, at, out);
  const int64_t values = rows * config.kv_dim();
  if (out.v != nullptr) kernels::convert_to_bf16(v.get(), values, out.v);
  if (out.v_f32 != nullptr) std::copy_n(v.get(), values, out.v_f32);
}

// Writes the keys before rotation, then rotates them in place and writes them again.
void Graph::State::store_keys(int64_t rows, const Positions& at, const QkvRows& out) {
  const int64_t values = rows * config.kv_dim();
  if (out.k_pre != nullptr) kernels::convert_to_bf16(k.get(), values, out.k_pre);
  if (out.k_pre_f32 != nullptr) std::copy_n(k.get(), values, out.k_pre_f32);
  if (out.k_rot == nullptr && out.k_rot_f32 == nullptr) return;
  rotate(k.get(), rows, config.kv_heads, at);
  if (out.k_rot != nullptr) kernels::convert_to_bf16(k.get(), values, out.k_rot);
  if (out.k_rot_f32 != nullptr) std::copy_n(k.get(), values, out.k_rot_f32);
}

Graph::Graph(std::shared_ptr<const Model> model, const GraphOptions& options,
             const Parallel& parallel)
    : state_(std::make_unique<State>(std::move(model), options, parallel)) {}

Graph::~Graph() = default;

const Model& Graph::model() const { return *state_->model; }
const GraphOptions& Graph::options() const { return state_->options; }

uint64_t Graph::scratch_bytes() const {
  const State& s = *state_;
  uint64_t total = s.normed.bytes() + s.k.bytes() + s.v.bytes() + s.gate.bytes() + s.up.bytes() +
                   s.branch.bytes();
  for (const kernels::PackedWeights& weights : s.packed) total += weights.bytes();
  return total;
}

void Graph::release_packed() {
  state_->packed_layer = -1;
  for (kernels::PackedWeights& weights : state_->packed) weights.clear();
}

Status Graph::embed(std::span<const int32_t> ids, float* x) {
  const State& s = *state_;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= s.config.vocab) {
      return make_error(Code::kInvalidArgument,
                        fmt::format("token {} at index {} is outside the vocabulary of {}", ids[i],
                                    i, s.config.vocab));
    }
  }
  constexpr size_t kRowsPerTask = 64;
  const auto tasks = static_cast<int>((ids.size() + kRowsPerTask - 1) / kRowsPerTask);
  s.parallel.run(tasks, [&](int task, int /*worker*/) {
    const size_t begin = static_cast<size_t>(task) * kRowsPerTask;
    const size_t end = std::min(ids.size(), begin + kRowsPerTask);
    for (size_t i = begin; i < end; ++i) {
      float* row = x + i * static_cast<size_t>(s.config.d_model);
      kernels::dequantize_rows(s.model->embedding(), ids[i], 1, row);
    }
  });
  return {};
}

void Graph::prepare_layer(int layer) {
  State& s = *state_;
  AKV_CHECK(layer >= 0 && layer < s.config.layers);
  if (s.options.path != WeightPath::kPacked || s.packed_layer == layer) return;
  s.packed_layer = -1;  // pack() may throw half way
  for (size_t role = 0; role < kRoles; ++role) {
    const Matrix& w = weight_of(s.model->layer(layer), static_cast<Role>(role));
    s.packed[role].pack(w, s.compute, s.parallel);
  }
  s.packed_layer = layer;
}

void Graph::qkv(int layer, const float* x, std::span<const int64_t> positions, const QkvRows& out) {
  const auto rows = static_cast<int64_t>(positions.size());
  state_->check_rows(rows);
  for (const int64_t p : positions) AKV_CHECK(p >= 0 && p < state_->config.context_length);
  prepare_layer(layer);
  state_->qkv(layer, x, rows, {positions.data(), 0}, out);
}

void Graph::qkv(int layer, const float* x, int64_t rows, int64_t pos0, const QkvRows& out) {
  state_->check_rows(rows);
  AKV_CHECK(pos0 >= 0 && pos0 + rows <= state_->config.context_length);
  prepare_layer(layer);
  state_->qkv(layer, x, rows, {nullptr, pos0}, out);
}

void Graph::attn_out(int layer, const float* attn, int64_t rows, float* x) {
  state_->check_rows(rows);
  prepare_layer(layer);
  state_->project_add(layer, kO, attn, rows, x);
}

void Graph::mlp(int layer, int64_t rows, float* x) {
  State& s = *state_;
  s.check_rows(rows);
  prepare_layer(layer);
  s.norm_rows(x, rows, s.model->layer(layer).ffn_norm, s.normed.get());
  float* gate = s.gate.get();
  s.project(layer, s.normed.get(), rows, {{kGate, gate}, {kUp, s.up.get()}});
  kernels::silu_mul(gate, s.up.get(), rows * s.config.d_ff, gate, s.parallel);
  s.project_add(layer, kDown, gate, rows, x);
}

void Graph::logits(const float* x, std::span<const int64_t> rows, float* out) {
  State& s = *state_;
  if (rows.empty()) return;
  const auto count = static_cast<int64_t>(rows.size());
  s.check_rows(count);
  const int64_t d = s.config.d_model;
  for (int64_t i = 0; i < count; ++i) {
    std::copy_n(x + rows[static_cast<size_t>(i)] * d, d, s.normed.get() + i * d);
  }
  s.norm_rows(s.normed.get(), count, s.model->output_norm(), s.normed.get());
  for (int64_t row = 0; row < count; row += kernels::kMaxLowbitRows) {
    const auto block = static_cast<int>(std::min<int64_t>(count - row, kernels::kMaxLowbitRows));
    kernels::matmul_lowbit(s.normed.get() + row * d, block, s.model->head(),
                           out + row * s.config.vocab, s.parallel);
  }
}

void Graph::logits(const float* x_row, float* out) {
  const int64_t first = 0;
  logits(x_row, {&first, 1}, out);
}

}  // namespace akv::model
