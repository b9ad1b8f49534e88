// A landed state in device memory, its views, and the pages after it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "common/base/result.h"
#include "common/device/memory.h"
#include "common/device/stream.h"
#include "common/kv/state.h"
#include "decode_node/cache/page_memory.h"
#include "decode_node/engine/step.h"
#include "kernels/compressed_view.h"

namespace akv::decode {

// The bytes of one state and the kernels' views of them, both in device memory; parked, the bytes
// alone, in host memory.
class DeviceState : public PromptState {
 public:
  // Copies verified bytes to the device and describes them there. Waits for the copies.
  // kResourceExhausted: the device's memory is short.
  static Result<std::unique_ptr<DeviceState>> create(DevicePool& pool, const LandedState& landed,
                                                     const Stream& stream);

  // Takes the memory alone: the bytes come by other ways, then describe() makes the state whole.
  static Result<std::unique_ptr<DeviceState>> reserve(DevicePool& pool, const kv::StatePlan& plan,
                                                      const Stream& stream);
  // [plan.total_bytes]. REQUIRES: !parked().
  std::byte* bytes() const { return memory_.data(); }
  // Puts the views behind the bytes; `host`: the same bytes, verified. Waits for the copy.
  Status describe(std::span<const std::byte> host, const Stream& stream);
  // Steps, which read it, run in this stream from now on.
  void used_by(DeviceStream stream) { memory_.release_in(stream); }

  Status park(const Stream& stream);
  Status restore(DevicePool& pool, const Stream& stream);
  bool parked() const { return memory_.size() == 0; }

  // Device arrays of one view a layer; the other is null. REQUIRES: !parked().
  const kernels::CompressedLayerView* compressed() const { return compressed_; }
  const kernels::DenseLayerView* dense() const { return dense_; }
  int64_t tokens() const { return plan_.tokens; }
  int window() const { return is_dense() ? 0 : plan_.options.window; }
  int anchors() const { return is_dense() ? 0 : plan_.layer.k; }
  bool is_dense() const { return plan_.codec == kv::Codec::kNone; }

 private:
  explicit DeviceState(const kv::StatePlan& plan) : plan_(plan) {}
  Status allocate(DevicePool& pool, const Stream& stream);
  Status load(std::span<const std::byte> host, DevicePool& pool, const Stream& stream);

  const kv::StatePlan plan_;
  DeviceBuffer memory_;  // the state's bytes, then the views
  uint64_t views_at_ = 0;
  const kernels::CompressedLayerView* compressed_ = nullptr;
  const kernels::DenseLayerView* dense_ = nullptr;
  kv::StateBuffer host_;  // while parked
};

// Suffix pages in device memory, taken and given back in the order of one stream.
class DevicePages : public PageMemory {
 public:
  DevicePages(std::shared_ptr<DevicePool> pool, DeviceStream stream)
      : pool_(std::move(pool)), stream_(stream) {}
  void* allocate(uint64_t bytes) override;
  void free(void* page, uint64_t bytes) override;

 private:
  const std::shared_ptr<DevicePool> pool_;
  const DeviceStream stream_;
  std::map<void*, DeviceBuffer> pages_;
};

}  // namespace akv::decode
