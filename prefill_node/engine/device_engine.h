// The prompt engine of a GPU: weights, hidden states, one layer's K/V and the codec in device
// memory; what comes back is the finished record, copied while the next layer computes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "common/base/result.h"
#include "common/device/export_pool.h"
#include "common/device/memory.h"
#include "common/device/stream.h"
#include "common/kv/device_encoder.h"
#include "common/model/device_graph.h"
#include "common/model/device_weights.h"
#include "prefill_node/engine/layer_stream.h"
#include "prefill_node/engine/prompt_engine.h"

namespace akv::prefill {

// One layer's K/V and the window's queries, shared by the prompts in work: layers take turns in it.
struct DeviceLayerMemory {
  DeviceBuffer kv;       // k_pre, k_rot and v, [S, H, D] each; the window's queries [W, Hq, D]
  DeviceBuffer encoder;  // kv::DeviceEncoder's
};

class DevicePromptEngine : public PromptEngine {
 public:
  // kResourceExhausted where scratch and weights do not fit together.
  static Result<std::unique_ptr<PromptEngine>> create(
      std::shared_ptr<const model::DeviceWeights> weights, const StreamOptions& options);
  ~DevicePromptEngine() override;

  Result<std::unique_ptr<Prompt>> begin(std::span<const int32_t> ids, int window) override;
  Status run_layer(Prompt& prompt, const std::atomic<bool>& cancelled,
                   const LayerOrder& order) override;
  uint64_t work_bytes(int64_t tokens) const override;
  uint64_t dense_kv_bytes() const override {
    return dense_kv_bytes_.load(std::memory_order_relaxed);
  }
  Status health() const override { return weights_->health(); }

 private:
  // A record between its encoding and its arrival in host memory.
  struct Pending {
    RecordOrder order;
    int layer = 0;
    kv::DeviceEncoder encoder;
    const std::byte* host = nullptr;  // where it arrives
    std::shared_ptr<std::byte>
        device;  // where it stays; null: in the encoder's memory, not for long
  };
  class WorkingPrompt;
  struct Events {
    Event layer_done, encode_begin, encoded, copied;
  };

  DevicePromptEngine(std::shared_ptr<const model::DeviceWeights> weights,
                     const StreamOptions& options, Stream compute, Stream copy, Events events);
  Status allocate();
  Status reserve_layer(WorkingPrompt& prompt, const RecordOrder& record);
  Status run_chunk(WorkingPrompt& prompt, int64_t begin, int64_t rows);
  void rest(WorkingPrompt& prompt, int64_t begin, int64_t rows);
  Status keep_window(WorkingPrompt& prompt, int64_t begin, int64_t rows);
  Status last_logits(WorkingPrompt& prompt, const LayerOrder& order);
  Status encode(WorkingPrompt& prompt, int layer, const RecordOrder& record);
  Status settle();
  Status seal_on_device(const Pending& pending);

  const std::shared_ptr<const model::DeviceWeights> weights_;
  const StreamOptions options_;
  Stream compute_;
  Stream copy_;
  const Events events_;
  std::shared_ptr<DevicePool> pool_;  // of prompts in work
  std::shared_ptr<PinnedPool> pinned_;
  std::unique_ptr<model::DevicePrefillGraph> graph_;
  DeviceBuffer chunk_;  // x [chunk, d], q, attn [chunk, Hq, D] bf16, logits [vocab]
  float* x_ = nullptr;  // the hidden states of the chunk in work
  bf16* q_ = nullptr;
  bf16* attn_ = nullptr;
  float* logits_ = nullptr;
  PinnedBuffer host_logits_;
  PinnedBuffer staging_;  // a record between the device and its place; empty: copied directly
  PinnedBuffer seal_;     // a record's header on its way to the device
  std::shared_ptr<ExportPool> exports_;  // records that are sent from the device
  std::weak_ptr<DeviceLayerMemory> layer_memory_;
  std::optional<Pending> pending_;
  std::atomic<uint64_t> dense_kv_bytes_{0};
};

}  // namespace akv::prefill
