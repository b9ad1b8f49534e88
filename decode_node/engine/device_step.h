// The step engine of a GPU: weights, landed states and suffix pages in device memory. A step of
// one token a session is a CUDA graph per batch size; replays and first steps run eagerly.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/base/result.h"
#include "common/device/graph.h"
#include "common/device/memory.h"
#include "common/device/stream.h"
#include "common/model/device_graph.h"
#include "common/model/device_weights.h"
#include "decode_node/engine/device_landing.h"
#include "decode_node/engine/device_state.h"
#include "decode_node/engine/make_device_engine.h"
#include "decode_node/engine/step.h"
#include "kernels/cuda/decode_attention.h"
#include "kernels/sampling.h"

namespace akv::decode {

class DeviceStepEngine : public StepEngine {
 public:
  static Result<std::unique_ptr<StepEngine>> create(
      std::shared_ptr<const model::DeviceWeights> weights, const DeviceStepOptions& options);
  ~DeviceStepEngine() override;

  PageMemory& pages() override { return pages_; }
  Result<std::shared_ptr<LandingMemory>> begin_landing(const kv::StatePlan& plan,
                                                       std::span<std::byte> host) override;
  void finish_landings() override { landings_->stop(); }
  Result<std::unique_ptr<PromptState>> adopt(const LandedState& landed) override;
  bool has_own_memory() const override { return true; }
  Status park(PromptState& state) override;
  Status restore(PromptState& state) override;
  Status forward(std::span<StepEntry> entries) override;
  Status health() const override { return weights_->health(); }

  // Steps that were replayed as graphs, for tests and measurements.
  uint64_t graph_steps() const { return graph_steps_; }

 private:
  // Everything of a step that depends on the number of its rows, padded to a power of two.
  struct Bucket {
    kernels::cuda::DecodeAttentionConfig attention;
    std::optional<Graph> graph;  // empty until captured
    bool warm = false;           // ran once without
    bool uncapturable = false;
  };
  // Host and device side of what changes from step to step, one copy.
  struct Inputs {
    int32_t* ids = nullptr;                      // [rows]
    int64_t* positions = nullptr;                // [rows]
    bf16** pages = nullptr;                      // [rows]
    int32_t* slots = nullptr;                    // [rows]
    int32_t* wanted = nullptr;                   // [rows]: rows whose logits are wanted
    kernels::cuda::SampleRule* rules = nullptr;  // [rows], of the wanted ones
    uint64_t carve(int64_t max_rows, std::byte* base);
  };

  DeviceStepEngine(std::shared_ptr<const model::DeviceWeights> weights,
                   const DeviceStepOptions& options, Stream stream,
                   std::shared_ptr<DevicePool> pool, std::shared_ptr<PinnedPool> pinned,
                   std::shared_ptr<LandingThread> landings)
      : weights_(std::move(weights)),
        options_(options),
        stream_(std::move(stream)),
        pool_(std::move(pool)),
        pinned_(std::move(pinned)),
        landings_(std::move(landings)),
        pages_(pool_, stream_) {}
  Status allocate();
  Status check(std::span<const StepEntry> entries) const;
  Status ensure_bucket(int64_t rows, std::span<const StepEntry> entries, Bucket*& bucket);
  void gather(std::span<const StepEntry> entries, int64_t padded);
  Status upload(const Bucket& bucket);
  Status enqueue(const Bucket& bucket, int64_t rows, int64_t wanted);
  Status run(Bucket& bucket, int64_t padded);
  Status collect(std::span<StepEntry> entries);
  Status ensure_logits(int64_t rows);

  const std::shared_ptr<const model::DeviceWeights> weights_;
  const DeviceStepOptions options_;
  Stream stream_;
  const std::shared_ptr<DevicePool> pool_;
  const std::shared_ptr<PinnedPool> pinned_;
  const std::shared_ptr<LandingThread> landings_;
  DevicePages pages_;
  std::unique_ptr<model::DeviceStepGraph> graph_;
  DeviceBuffer activations_;  // x [rows, d], q and attn [rows, Hq, D]
  float* x_ = nullptr;
  float* q_ = nullptr;
  float* attn_ = nullptr;
  DeviceBuffer device_inputs_;
  PinnedBuffer host_inputs_;
  Inputs on_device_;
  Inputs on_host_;
  DeviceBuffer plan_;
  PinnedBuffer host_plan_;
  DeviceBuffer attention_scratch_;
  DeviceBuffer logits_;   // [wanted rows, vocab]
  DeviceBuffer sampled_;  // tokens [rows], and the sampler's scratch
  PinnedBuffer host_tokens_;
  PinnedBuffer host_logits_;
  kernels::cuda::DecodeAttentionLimits limits_;
  std::map<int64_t, Bucket> buckets_;  // by padded rows
  std::vector<kernels::cuda::DecodeAttentionRow> rows_;
  int64_t wanted_ = 0;
  uint64_t graph_steps_ = 0;
};

}  // namespace akv::decode
