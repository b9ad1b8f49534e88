#include "prefill_node/engine/layer_stream.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "common/base/check.h"

namespace akv::prefill {

// The one layer whose dense K/V is alive.
struct LayerStream::LayerBuffers {
  LayerBuffers(size_t elements, std::atomic<uint64_t>& gauge)
      : k(new bf16[elements]), v(new bf16[elements]), gauge_(gauge) {
    gauge_.store(2 * elements * sizeof(bf16), std::memory_order_relaxed);
  }
  ~LayerBuffers() { gauge_.store(0, std::memory_order_relaxed); }
  LayerBuffers(const LayerBuffers&) = delete;
  LayerBuffers& operator=(const LayerBuffers&) = delete;

  std::unique_ptr<bf16[]> k;  // [S, H, D] before RoPE
  std::unique_ptr<bf16[]> v;  // [S, H, D]

 private:
  std::atomic<uint64_t>& gauge_;
};

LayerStream::LayerStream(std::shared_ptr<const model::Model> model, const StreamOptions& options,
                         const Parallel& parallel)
    : model_(std::move(model)),
      options_(options),
      parallel_(parallel),
      graph_(model_,
             model::GraphOptions{.path = model::WeightPath::kPacked,
                                 .max_rows = options.chunk_rows,
                                 .f32 = options.f32},
             parallel) {
  const auto& config = model_->config();
  const auto chunk = static_cast<size_t>(options.chunk_rows * config.q_dim());
  q_.resize(chunk);
  attn_.resize(chunk);
  q_window_.resize(static_cast<size_t>(options.window) * static_cast<size_t>(config.q_dim()));
}

uint64_t LayerStream::prompt_bytes(int64_t tokens) const {
  return static_cast<uint64_t>(tokens) * static_cast<uint64_t>(model_->config().d_model) *
         sizeof(float);
}

Result<std::unique_ptr<Prompt>> LayerStream::begin(std::span<const int32_t> ids) {
  const auto& config = model_->config();
  if (ids.empty()) return make_error(Code::kInvalidArgument, "the prompt has no tokens", "prompt");
  if (static_cast<int64_t>(ids.size()) > config.context_length) {
    return make_error(Code::kContextLength,
                      fmt::format("the prompt has {} tokens, the model's context is {}", ids.size(),
                                  config.context_length),
                      "prompt");
  }
  auto prompt = std::make_unique<Prompt>();
  prompt->tokens_ = static_cast<int64_t>(ids.size());
  prompt->hidden_.resize(ids.size() * static_cast<size_t>(config.d_model));
  AKV_RETURN_IF_ERROR(graph_.embed(ids, prompt->hidden_.data()));
  return prompt;
}

Status LayerStream::run_layer(Prompt& prompt, const std::atomic<bool>& cancelled,
                              const OnLayer& on_layer) {
  return run_layer(prompt, cancelled, on_layer, nullptr);
}

Status LayerStream::run_layer(Prompt& prompt, const std::atomic<bool>& cancelled,
                              const OnLayer& on_layer,
                              const std::function<Status()>& on_hidden_final) {
  const auto& config = model_->config();
  AKV_CHECK(prompt.next_layer_ < config.layers);
  LayerBuffers kv(static_cast<size_t>(prompt.tokens_ * config.kv_dim()), dense_kv_bytes_);
  graph_.prepare_layer(prompt.next_layer_);
  for (int64_t begin = 0; begin < prompt.tokens_; begin += options_.chunk_rows) {
    if (cancelled.load(std::memory_order_relaxed)) {
      return make_error(Code::kCancelled, "the prefill was cancelled");
    }
    const int64_t rows = std::min(options_.chunk_rows, prompt.tokens_ - begin);
    AKV_RETURN_IF_ERROR(run_chunk(prompt, begin, rows, kv));
  }
  if (on_hidden_final) AKV_RETURN_IF_ERROR(on_hidden_final());
  const LayerKv finished{.layer = prompt.next_layer_,
                         .tokens = prompt.tokens_,
                         .k_pre = kv.k.get(),
                         .v = kv.v.get(),
                         .q_window = q_window_.data()};
  ++prompt.next_layer_;
  return on_layer(finished);
}

// In the last layer only the last position's hidden state is read afterwards, so earlier rows stop
// at their K/V and, inside the window, their queries.
Status LayerStream::run_chunk(Prompt& prompt, int64_t begin, int64_t rows, LayerBuffers& kv) {
  const auto& config = model_->config();
  const int layer = prompt.next_layer_;
  const auto offset = begin * config.kv_dim();
  float* x = prompt.hidden_.data() + begin * config.d_model;
  graph_.qkv(
      layer, x, rows, begin,
      model::QkvRows{.q = q_.data(), .k_pre = kv.k.get() + offset, .v = kv.v.get() + offset});
  keep_window(begin, rows, prompt.tokens_);
  const bool last_layer = layer + 1 == config.layers;
  const bool last_chunk = begin + rows == prompt.tokens_;
  if (last_layer && !last_chunk) return {};
  const int64_t skip = last_layer ? rows - 1 : 0;
  kernels::FlashPrefillParams params;
  params.q = q_.data() + skip * config.q_dim();
  params.k = kv.k.get();
  params.v = kv.v.get();
  params.rope = &model_->rope();
  params.out = attn_.data();
  params.rows = rows - skip;
  params.pos0 = begin + skip;
  params.q_heads = config.heads;
  params.kv_heads = config.kv_heads;
  params.head_dim = config.head_dim;
  params.compute = options_.f32 ? kernels::Compute::kF32 : kernels::best_compute();
  kernels::flash_prefill(params, flash_scratch_, parallel_);
  graph_.attn_out(layer, attn_.data(), rows - skip, x + skip * config.d_model);
  graph_.mlp(layer, rows - skip, x + skip * config.d_model);
  return {};
}

// The window may straddle a chunk border, so its queries are gathered from whichever chunks they
// fall in.
void LayerStream::keep_window(int64_t begin, int64_t rows, int64_t tokens) {
  const int64_t q_dim = model_->config().q_dim();
  const int64_t first = std::max<int64_t>(tokens - options_.window, 0);
  const int64_t from = std::max(begin, first);
  const int64_t to = begin + rows;
  if (from >= to) return;
  std::memcpy(q_window_.data() + (from - first) * q_dim, q_.data() + (from - begin) * q_dim,
              static_cast<size_t>((to - from) * q_dim) * sizeof(float));
}

void LayerStream::last_logits(const Prompt& prompt, float* out) {
  graph_.logits(prompt.hidden_.data() + (prompt.tokens_ - 1) * model_->config().d_model, out);
}

}  // namespace akv::prefill
