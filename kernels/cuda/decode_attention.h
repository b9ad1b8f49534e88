// Attention of decode steps on a CUDA device: what compressed_attention.h is on the CPU, for the
// same formulas, views and tolerances. One persistent split-KV kernel and one combine kernel per
// layer; what changes from step to step lies in a plan in device memory that all layers share, so
// that a step of any batch within the limits is the same CUDA graph.
//
//   const auto config = decode_attention_config(shape, limits);          // once, per graph
//   bytes = build_decode_attention_plan(config, rows, pinned);           // each step, on the host
//   copy `bytes` from pinned to the device, in the stream
//   for each layer: decode_attention(config, {plan, layer, ...}, stream);  // capturable
//
// A row's result is bitwise independent of the other rows, of the device's size and of the limits:
// splits follow from the row's own lengths alone, the plan only deals them out to blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/compressed_view.h"
#include "kernels/device_stream.h"
#include "kernels/rope.h"

namespace akv::kernels::cuda {

// The same for all rows and layers of an engine.
struct DecodeAttentionShape {
  int heads = 0;     // query heads
  int kv_heads = 0;  // H; heads / H, the GQA group, is 1..16
  int head_dim = 0;  // D: 64, 96, 128 or 256
};

// Null where the kernels take this shape, else why not.
const char* decode_attention_unsupported(const DecodeAttentionShape& shape);

// What one graph must have room for; memory follows from it, speed does not.
struct DecodeAttentionLimits {
  int rows = 1;                  // of a step
  int64_t prompt_tokens = 0;     // longest prompt, S
  int64_t suffix_tokens = 0;     // longest suffix
  int anchors = 0;               // largest k of any session and layer; 0: dense prompts only
  bool shared_anchors = true;    // false: never copy anchors to shared memory (for measuring)
  int blocks = 0;                // of the persistent grid; 0: as many as the device holds at once
  int64_t shared_bytes_max = 0;  // of shared memory per block; 0: what two blocks per SM leave
};

// How the kernels are launched on the current device. Plain data; keep it with the graph.
struct DecodeAttentionConfig {
  DecodeAttentionShape shape;
  DecodeAttentionLimits limits;
  int blocks = 0;
  int anchor_capacity = 0;     // rows of anchors that fit in shared memory
  int histogram_capacity = 0;  // anchors whose histogram fits there; more go to scratch
  int64_t shared_bytes = 0;    // dynamic, per block
  int64_t max_pieces = 0;
  int64_t plan_bytes = 0;        // room for any plan within the limits
  int64_t histogram_offset = 0;  // in scratch
  int64_t halves_offset = 0;     // likewise: anchors that do not fit in shared memory
  int64_t scratch_bytes = 0;     // device memory of one step, all layers in turn
};

// REQUIRES: decode_attention_unsupported(shape) == nullptr. Asks the current device for its size.
DecodeAttentionConfig decode_attention_config(const DecodeAttentionShape& shape,
                                              const DecodeAttentionLimits& limits);

// One new token of one session. Rows may share prompts and pages: several new tokens of one session
// are rows whose suffixes grow by one.
struct DecodeAttentionRow {
  // DEVICE arrays with one view per layer, and everything that the views point at is device memory
  // as well (heads, signs, records). At most one is set; with none the row attends to its suffix.
  // Memory around a record must be readable up to the 16-byte boundaries that enclose it. As in
  // records, anchors are aligned to 4 bytes and dense rows to 8; 16 reads faster. Keys of anchors
  // lie below 65504 / sqrt(2) in magnitude: they are held as halves.
  const CompressedLayerView* prompt = nullptr;
  const DenseLayerView* dense_prompt = nullptr;
  int32_t prompt_tokens = 0;  // S, the same in all layers
  int32_t window = 0;         // W, compressed only
  int32_t window_drop = 0;    // as AttentionRow's
  int32_t anchors = 0;        // largest k of any layer, compressed only
  // HOST array of device pointers, ceil(suffix_tokens / kSuffixPageTokens) or more. Pages are
  // aligned to 16 bytes.
  const bf16* const* pages = nullptr;
  int32_t suffix_tokens = 0;  // with this row's own token
};

// Writes the plan of a step into host memory (pinned, for a copy that does not block), aligned to
// 16 bytes; returns its size, at most config.plan_bytes. Allocates nothing; time O(pieces).
// REQUIRES: rows within config.limits.
int64_t build_decode_attention_plan(const DecodeAttentionConfig& config,
                                    std::span<const DecodeAttentionRow> rows, std::byte* host);

// One layer of a step. All pointers are device memory.
struct DecodeAttentionArgs {
  const std::byte* plan = nullptr;  // a built plan, aligned to 16 bytes
  int layer = 0;                    // index into the rows' arrays of views
  int64_t suffix_offset = 0;        // elements from a page's start to this layer's part
  const float* q = nullptr;         // [rows][heads][D], post-RoPE, not scaled; 16-byte aligned
  float* out = nullptr;             // [rows][heads][D]; rows beyond the plan's are left alone
  DeviceRope rope;                  // positions: at least 128 and the longest prompt
  std::byte* scratch = nullptr;     // config.scratch_bytes, aligned to 256
};

// Enqueues the two kernels, or three where anchors do not fit in shared memory. Errors stay with
// the stream.
void decode_attention(const DecodeAttentionConfig& config, const DecodeAttentionArgs& args,
                      DeviceStream stream);

// The side with every pointer moved by `to - from`: the view of a copy of the bytes that `side`
// points into. Null pointers stay null.
CompressedSideView rebased(const CompressedSideView& side, const void* from, const void* to);

}  // namespace akv::kernels::cuda
