// The prompt engine of CPUs: a LayerStream, and the codec behind each of its layers.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "common/base/worker_pool.h"
#include "common/kv/codec.h"
#include "prefill_node/engine/layer_stream.h"
#include "prefill_node/engine/prompt_engine.h"

namespace akv::prefill {

class CpuPromptEngine : public PromptEngine {
 public:
  // Owns a pool of `threads` workers.
  CpuPromptEngine(std::shared_ptr<const model::Model> model, const StreamOptions& options,
                  int threads);

  Result<std::unique_ptr<Prompt>> begin(std::span<const int32_t> ids, int window) override;
  Status run_layer(Prompt& prompt, const std::atomic<bool>& cancelled,
                   const LayerOrder& order) override;
  uint64_t work_bytes(int64_t tokens) const override;
  uint64_t dense_kv_bytes() const override { return stream_.dense_kv_bytes(); }

 private:
  Status compress(const LayerKv& layer, const RecordOrder& order);

  std::shared_ptr<const model::Model> model_;
  WorkerPool pool_;
  LayerStream stream_;
  kv::Workspace workspace_;
  std::vector<bf16> q_window_;  // [W, Hq, D]
  std::vector<float> logits_;   // [vocab]
};

}  // namespace akv::prefill
