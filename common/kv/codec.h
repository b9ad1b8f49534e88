// Compresses one layer's K, V into a record of a planned state, and writes dense records. Runs on
// the caller's thread and the given Parallel; results do not depend on the number of workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/result.h"
#include "common/kv/plan.h"
#include "kernels/compressed_view.h"
#include "kernels/parallel.h"
#include "kernels/rope.h"
#include "kernels/types.h"

namespace akv::kv {

// A layer at the end of its prefill; views, nothing is kept. K, V and Q are rounded to bf16: that
// is what the codec is defined on.
struct LayerInput {
  int layer = 0;                // the model's layer index
  const bf16* k_pre = nullptr;  // [S, H, D], after bias and QK-norm, before RoPE
  const bf16* v = nullptr;      // [S, H, D]
  const bf16* q_obs = nullptr;  // [W, Hq, D] post-RoPE, the last W positions (compressed only)
  const kernels::RopeTable* rope = nullptr;
};

// Scratch memory of compress_layer, reused across layers and prompts; it grows and never shrinks
// until it is destroyed. One thread at a time.
class LayerEncoder;
class Workspace {
 public:
  Workspace();
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  // Bytes held now, and what a layer of this plan needs (m * S floats and some change).
  size_t bytes() const;
  static size_t required_bytes(const StatePlan& plan);
  LayerEncoder& encoder() { return *encoder_; }

 private:
  std::unique_ptr<LayerEncoder> encoder_;
};

// Encodes `input` into `record`, which is exactly plan.record_bytes[input.layer] bytes, and seals
// it with its checksum: an anchorkv record, or for a dense plan K post-RoPE and V in bf16.
// state_checksum is that of the state's header (write_header) and binds the record to it.
// Errors: kInvalidArgument (sizes), kDataLoss if the input holds NaN or infinity.
Status compress_layer(const LayerInput& input, const StatePlan& plan, uint64_t state_checksum,
                      std::span<std::byte> record, Workspace& workspace, const Parallel& parallel);

// For tests and measurements only: K^ (pre-RoPE, also for a post-RoPE residual) and V^ as floats,
// [S, H, D] each, from a verified view.
void reconstruct_layer(const kernels::CompressedLayerView& view, const kernels::RopeTable& rope,
                       float* k_hat, float* v_hat);

}  // namespace akv::kv
