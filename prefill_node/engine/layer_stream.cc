#include "prefill_node/engine/layer_stream.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"

namespace akv::prefill {

// Memory of the one layer whose dense K/V is alive: layers and prompts take turns in it, so that
// none of them waits for fresh pages from the system.
struct KvBuffer {
  std::unique_ptr<bf16[]> memory;
  size_t capacity = 0;  // elements
  bf16* k = nullptr;    // [S, H, D] before RoPE
  bf16* v = nullptr;    // [S, H, D]

  void prepare(size_t elements) {
    if (2 * elements > capacity) {
      memory.reset();  // before the larger one is taken: nothing in it is alive
      capacity = 2 * elements;
      memory.reset(new bf16[capacity]);
    }
    k = memory.get();
    v = k + elements;
  }
};

namespace {

// Says how many bytes of dense K/V are alive while it is.
class DenseKvGauge {
 public:
  DenseKvGauge(std::atomic<uint64_t>& gauge, uint64_t bytes) : gauge_(gauge) {
    gauge_.store(bytes, std::memory_order_relaxed);
  }
  ~DenseKvGauge() { gauge_.store(0, std::memory_order_relaxed); }
  DenseKvGauge(const DenseKvGauge&) = delete;
  DenseKvGauge& operator=(const DenseKvGauge&) = delete;

 private:
  std::atomic<uint64_t>& gauge_;
};

}  // namespace

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
}

uint64_t LayerStream::prompt_bytes(int64_t tokens) const {
  return static_cast<uint64_t>(tokens) * static_cast<uint64_t>(model_->config().d_model) *
         sizeof(float);
}

Result<std::unique_ptr<HostPrompt>> LayerStream::begin(std::span<const int32_t> ids, int window) {
  const auto& config = model_->config();
  AKV_RETURN_IF_ERROR(check_prompt(ids, config));
  auto prompt = std::make_unique<HostPrompt>();
  prompt->tokens_ = static_cast<int64_t>(ids.size());
  prompt->window_ = static_cast<int>(std::min<int64_t>(window, prompt->tokens_));
  prompt->hidden_.resize(ids.size() * static_cast<size_t>(config.d_model));
  AKV_RETURN_IF_ERROR(graph_.embed(ids, prompt->hidden_.data()));
  prompt->kv_ = kv_.lock();
  if (!prompt->kv_) {
    prompt->kv_ = std::make_shared<KvBuffer>();
    kv_ = prompt->kv_;
  }
  return prompt;
}

Status LayerStream::run_layer(HostPrompt& prompt, const std::atomic<bool>& cancelled,
                              const OnLayer& on_layer) {
  return run_layer(prompt, cancelled, on_layer, nullptr);
}

Status LayerStream::run_layer(HostPrompt& prompt, const std::atomic<bool>& cancelled,
                              const OnLayer& on_layer,
                              const std::function<Status()>& on_hidden_final) {
  const auto& config = model_->config();
  AKV_CHECK(prompt.next_layer_ < config.layers);
  const auto elements = static_cast<size_t>(prompt.tokens_ * config.kv_dim());
  KvBuffer& kv = *prompt.kv_;
  kv.prepare(elements);
  q_window_.resize(static_cast<size_t>(prompt.window_) * static_cast<size_t>(config.q_dim()));
  const DenseKvGauge gauge(dense_kv_bytes_, 2 * elements * sizeof(bf16));
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
                         .k_pre = kv.k,
                         .v = kv.v,
                         .window = prompt.window_,
                         .q_window = q_window_.data()};
  ++prompt.next_layer_;
  return on_layer(finished);
}

// In the last layer only the last position's hidden state is read afterwards, so earlier rows stop
// at their K/V and, inside the window, their queries.
Status LayerStream::run_chunk(HostPrompt& prompt, int64_t begin, int64_t rows, KvBuffer& kv) {
  const auto& config = model_->config();
  const int layer = prompt.next_layer_;
  const auto offset = begin * config.kv_dim();
  float* x = prompt.hidden_.data() + begin * config.d_model;
  graph_.qkv(layer, x, rows, begin,
             model::QkvRows{.q = q_.data(), .k_pre = kv.k + offset, .v = kv.v + offset});
  keep_window(prompt, begin, rows);
  const bool last_layer = layer + 1 == config.layers;
  const bool last_chunk = begin + rows == prompt.tokens_;
  if (last_layer && !last_chunk) return {};
  const int64_t skip = last_layer ? rows - 1 : 0;
  kernels::FlashPrefillParams params;
  params.q = q_.data() + skip * config.q_dim();
  params.k = kv.k;
  params.v = kv.v;
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
void LayerStream::keep_window(const HostPrompt& prompt, int64_t begin, int64_t rows) {
  const int64_t q_dim = model_->config().q_dim();
  const int64_t first = prompt.tokens_ - prompt.window_;
  const int64_t from = std::max(begin, first);
  const int64_t to = begin + rows;
  if (from >= to) return;
  std::memcpy(q_window_.data() + (from - first) * q_dim, q_.data() + (from - begin) * q_dim,
              static_cast<size_t>((to - from) * q_dim) * sizeof(float));
}

void LayerStream::last_logits(const HostPrompt& prompt, float* out) {
  graph_.logits(prompt.hidden_.data() + (prompt.tokens_ - 1) * model_->config().d_model, out);
}

}  // namespace akv::prefill
