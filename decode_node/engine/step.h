// One decode step: a single batched forward over the new tokens of all live sessions.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/result.h"
#include "common/kv/state.h"
#include "common/model/graph.h"
#include "common/model/model.h"
#include "decode_node/cache/suffix.h"
#include "kernels/compressed_attention.h"
#include "kernels/parallel.h"

namespace akv::decode {

// The new tokens of one session in this step.
struct StepEntry {
  const kv::StateView* prompt = nullptr;
  Suffix* suffix = nullptr;         // room for suffix->tokens() + tokens.size() was made
  std::span<const int32_t> tokens;  // at positions position, position + 1, ...
  int64_t position = 0;
  int window_drop = 0;  // newest prompt entries left out (the last prompt token run again)
  enum class Want { kNone, kLast, kAll } want = Want::kLast;
  // Out: logits of the last token or of all, [1 or tokens.size(), vocab], null if none. The caller
  // may overwrite them; valid until the next forward().
  float* logits = nullptr;
};

// Used by one thread (the engine's). Allocates when the batch grows past any before, never in a
// steady state. A session's logits are bitwise independent of the rest of the batch.
class StepEngine {
 public:
  StepEngine(std::shared_ptr<const model::Model> model, const Parallel& parallel);

  // Runs all entries through the model; their suffixes grow by their tokens. kInvalidArgument when
  // a token id is outside the vocabulary: no suffix has grown then.
  Status forward(std::span<StepEntry> entries);

  const model::Model& model() const { return *model_; }
  uint64_t scratch_bytes() const;

 private:
  void gather(std::span<StepEntry> entries);
  void run_layer(int layer, std::span<StepEntry> entries);
  void store_kv(int layer, std::span<StepEntry> entries);
  void head(std::span<StepEntry> entries);

  std::shared_ptr<const model::Model> model_;
  const Parallel parallel_;
  model::Graph graph_;
  kernels::DecodeAttentionScratch attention_scratch_;
  // Of the current step, [rows, ...].
  std::vector<int32_t> ids_;
  std::vector<int64_t> positions_;
  std::vector<float> x_;     // [rows, d_model]
  std::vector<float> q_;     // [rows, Hq, D]
  std::vector<bf16> k_;      // [rows, H, D] post-RoPE
  std::vector<bf16> v_;      // [rows, H, D]
  std::vector<float> attn_;  // [rows, Hq, D]
  std::vector<kernels::AttentionRow> attention_rows_;
  std::vector<int64_t> logit_rows_;
  std::vector<float> logits_;  // [wanted rows, vocab]
};

}  // namespace akv::decode
