// The layer-streamed forward pass of prompts: all tokens through one layer before the next, so that
// one layer's dense K/V is alive at a time whatever the model's depth.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/base/result.h"
#include "common/model/graph.h"
#include "common/model/model.h"
#include "kernels/flash_prefill.h"
#include "kernels/parallel.h"
#include "kernels/types.h"
#include "prefill_node/engine/prompt_engine.h"

namespace akv::prefill {

struct KvBuffer;  // one layer's dense K/V; in the .cc

struct StreamOptions {
  int64_t chunk_rows =
      512;           // rows of one GEMM call; bounds the activations beside the hidden state
  bool f32 = false;  // f32 GEMM and attention even where bf16 is faster
};

// One finished layer, valid during the call that hands it over.
struct LayerKv {
  int layer = 0;
  int64_t tokens = 0;               // S
  const bf16* k_pre = nullptr;      // [S, H, D] before RoPE
  const bf16* v = nullptr;          // [S, H, D]
  int window = 0;                   // W, at most S
  const float* q_window = nullptr;  // [W, Hq, D] post-RoPE queries of the last positions
};
using OnLayer = std::function<Status(const LayerKv&)>;

// A prompt between layers: its hidden states and nothing else.
class HostPrompt : public Prompt {
 public:
  uint64_t bytes() const override { return hidden_.size() * sizeof(float); }

 private:
  friend class LayerStream;
  int window_ = 0;
  std::vector<float> hidden_;  // [S, d_model] residual stream
  // Where its layers' dense K/V go; prompts in work share one, and the last one frees it.
  std::shared_ptr<KvBuffer> kv_;
};

// Used by one thread (the engine's), which calls into the pool. Prompts may interleave at layer
// borders; two that meet at a layer share one packing of its weights.
class LayerStream {
 public:
  LayerStream(std::shared_ptr<const model::Model> model, const StreamOptions& options,
              const Parallel& parallel);

  // Embeds the prompt, of whose last min(window, S) positions each layer hands the queries over.
  // kInvalidArgument: empty, or an id outside the vocabulary; kContextLength:
  // longer than the model's context.
  Result<std::unique_ptr<HostPrompt>> begin(std::span<const int32_t> ids, int window = 32);

  // Runs layer prompt.next_layer() over all rows, then hands its K/V over before they are
  // overwritten by the next layer's.
  // kCancelled as soon as `cancelled` is seen (between chunks); else the error of on_layer.
  // REQUIRES: next_layer() < layers.
  Status run_layer(HostPrompt& prompt, const std::atomic<bool>& cancelled, const OnLayer& on_layer);

  // The same in two steps for the last layer, so that the first token does not wait for its codec:
  // on_last_hidden is called once the last position's hidden state is final, before on_layer.
  Status run_layer(HostPrompt& prompt, const std::atomic<bool>& cancelled, const OnLayer& on_layer,
                   const std::function<Status()>& on_hidden_final);

  // Logits [vocab] of the prompt's last position. REQUIRES: the last layer's hidden state is final.
  void last_logits(const HostPrompt& prompt, float* out);

  // Bytes that a prompt of S tokens holds between layers.
  uint64_t prompt_bytes(int64_t tokens) const;
  // Dense K/V bytes alive now: 4 S H D while a layer runs, else 0. Any thread.
  uint64_t dense_kv_bytes() const { return dense_kv_bytes_.load(std::memory_order_relaxed); }
  const model::Model& model() const { return *model_; }

 private:
  Status run_chunk(HostPrompt& prompt, int64_t begin, int64_t rows, KvBuffer& kv);
  void keep_window(const HostPrompt& prompt, int64_t begin, int64_t rows);

  std::shared_ptr<const model::Model> model_;
  const StreamOptions options_;
  const Parallel parallel_;
  model::Graph graph_;
  kernels::FlashPrefillScratch flash_scratch_;
  std::weak_ptr<KvBuffer> kv_;   // of the prompts in work
  std::vector<float> q_;         // [chunk, Hq, D]
  std::vector<float> attn_;      // [chunk, Hq, D]
  std::vector<float> q_window_;  // [W, Hq, D]
  std::atomic<uint64_t> dense_kv_bytes_{0};
};

}  // namespace akv::prefill
