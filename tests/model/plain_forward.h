// The graph driven in the plainest way, as an engine would: tests of the graph and of whole models.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/model/graph.h"
#include "kernels/flash_prefill.h"
#include "kernels/parallel.h"

namespace akv::model {

// Runs tokens one layer at a time in chunks, keeps K (before RoPE) and V of all positions in f32,
// and attends to them in f32: the path that the golden logits are held against. Few rows go by the
// low-bit path whatever the options say, as the decode node's do.
class PlainForward {
 public:
  PlainForward(std::shared_ptr<const Model> model, const GraphOptions& options,
               const Parallel& parallel)
      : graph_(model, options, parallel),
        decode_(model, {}, parallel),
        config_(model->config()),
        parallel_(parallel) {
    layers_.resize(static_cast<size_t>(config_.layers));
  }

  // Appends tokens and returns the logits of the last one.
  std::vector<float> append(const std::vector<int32_t>& ids) {
    const auto rows = static_cast<int64_t>(ids.size());
    Graph& graph = rows <= decode_.options().max_rows ? decode_ : graph_;
    std::vector<float> x(ids.size() * static_cast<size_t>(config_.d_model));
    AKV_CHECK(graph.embed(ids, x.data()).ok());
    for (int layer = 0; layer < config_.layers; ++layer) run_layer(graph, layer, rows, x.data());
    length_ += rows;
    std::vector<float> logits(static_cast<size_t>(config_.vocab));
    graph.logits(x.data() + (rows - 1) * config_.d_model, logits.data());
    return logits;
  }

  int64_t length() const { return length_; }
  // [length, H, D] of a layer, and the rotated queries [rows, Hq, D] of its last append().
  const std::vector<float>& keys(int layer) const { return layers_[static_cast<size_t>(layer)].k; }
  const std::vector<float>& values(int layer) const {
    return layers_[static_cast<size_t>(layer)].v;
  }
  const std::vector<float>& queries(int layer) const {
    return layers_[static_cast<size_t>(layer)].q;
  }

 private:
  struct Layer {
    std::vector<float> k, v, q;
  };

  void run_layer(Graph& graph, int index, int64_t rows, float* x) {
    Layer& layer = layers_[static_cast<size_t>(index)];
    const auto kv_dim = static_cast<size_t>(config_.kv_dim());
    layer.k.resize(static_cast<size_t>(length_ + rows) * kv_dim);
    layer.v.resize(layer.k.size());
    layer.q.resize(static_cast<size_t>(rows * config_.q_dim()));
    const int64_t chunk = graph.options().max_rows;
    std::vector<float> attn(static_cast<size_t>(chunk * config_.q_dim()));
    for (int64_t at = 0; at < rows; at += chunk) {
      const int64_t m = std::min(chunk, rows - at);
      const int64_t pos0 = length_ + at;
      float* hidden = x + at * config_.d_model;
      float* q = layer.q.data() + at * config_.q_dim();
      QkvRows out;
      out.q = q;
      out.k_pre_f32 = layer.k.data() + pos0 * config_.kv_dim();
      out.v_f32 = layer.v.data() + pos0 * config_.kv_dim();
      graph.qkv(index, hidden, m, pos0, out);
      attend(layer, q, m, pos0, attn.data());
      graph.attn_out(index, attn.data(), m, hidden);
      graph.mlp(index, m, hidden);
    }
  }

  void attend(const Layer& layer, const float* q, int64_t rows, int64_t pos0, float* out) {
    kernels::FlashPrefillParams params;
    params.q = q;
    params.k_f32 = layer.k.data();
    params.v_f32 = layer.v.data();
    params.rope = &graph_.model().rope();
    params.out = out;
    params.rows = rows;
    params.pos0 = pos0;
    params.q_heads = config_.heads;
    params.kv_heads = config_.kv_heads;
    params.head_dim = config_.head_dim;
    kernels::flash_prefill(params, scratch_, parallel_);
  }

  Graph graph_;
  Graph decode_;
  const ModelConfig& config_;
  Parallel parallel_;
  kernels::FlashPrefillScratch scratch_;
  std::vector<Layer> layers_;
  int64_t length_ = 0;
};

inline int32_t argmax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

inline float max_difference(std::span<const float> a, std::span<const float> b) {
  AKV_CHECK(a.size() == b.size());
  float worst = 0.0f;
  for (size_t i = 0; i < a.size(); ++i) {
    const float apart = std::abs(a[i] - b[i]);
    if (!(apart <= worst)) worst = apart;  // a NaN sticks
  }
  return worst;
}

}  // namespace akv::model
