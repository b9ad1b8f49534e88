// The step engine of CPUs: landed states are read where they landed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/result.h"
#include "common/kv/state.h"
#include "common/model/graph.h"
#include "common/model/model.h"
#include "decode_node/engine/step.h"
#include "kernels/compressed_attention.h"
#include "kernels/parallel.h"

namespace akv::decode {

// Allocates when the batch grows past any before, never in a steady state. A session's logits are
// bitwise independent of the rest of the batch.
class CpuStepEngine : public StepEngine {
 public:
  CpuStepEngine(std::shared_ptr<const model::Model> model, const Parallel& parallel);

  PageMemory& pages() override { return HostPages::shared(); }
  Result<std::unique_ptr<PromptState>> adopt(const LandedState& landed) override;
  Status forward(std::span<StepEntry> entries) override;

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
