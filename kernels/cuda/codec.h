// The codec's operators on a CUDA device (anchorkv.md sections 1 to 4 and 9), each over all KV
// heads of one layer: what window_attention.h, anchor_select.h, anchor_assign.h, utility.h and
// residual_codec.h are for one head on the CPU, with the same results up to the rounding of f32
// sums. common/kv/device_encoder.h puts them together.
//
// Every pointer is device memory, every function only enqueues work on `stream`. No operator waits
// for a count to come back to the host: counts stay on the device. Nothing is checked but
// contracts; values that are not finite set bits of `faults` and never lead out of a buffer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device_stream.h"
#include "kernels/rope.h"
#include "kernels/types.h"

namespace akv::kernels::cuda {

// Bits of `faults`.
inline constexpr uint32_t kInputNotFinite = 1;
inline constexpr uint32_t kGammaNotFinite = 2;
inline constexpr uint32_t kScaleNotFinite = 4;

// Tokens whose weights share one maximum.
inline constexpr int kObserveChunk = 64;
// Query lanes are padded to a multiple of this.
inline constexpr int kObserveLanes = 32;

constexpr int64_t observe_chunks(int64_t tokens) {
  return (tokens + kObserveChunk - 1) / kObserveChunk;
}

// A layer at the end of its prefill. Row of token t and KV head h: k + (t * H + h) * D; query of
// window row w and query head j: q + (w * H * group + j) * D. Rows are aligned to 16 bytes.
struct CodecLayer {
  int64_t tokens = 0;       // S
  int window = 0;           // W
  int kv_heads = 0;         // H
  int group = 0;            // g
  int head_dim = 0;         // D, a multiple of 16 up to 256
  const bf16* k = nullptr;  // pre-RoPE
  const bf16* v = nullptr;
  const bf16* q = nullptr;     // post-RoPE, the last W positions
  DeviceRope rope;             // positions >= S
  uint32_t* faults = nullptr;  // [1]

  constexpr int64_t prefix() const { return tokens - window; }  // P
  constexpr int queries() const { return window * group; }      // m, of one KV head: w * g + j
  constexpr int lanes() const {
    return (queries() + kObserveLanes - 1) / kObserveLanes * kObserveLanes;
  }
};

// Exact attention of the last W queries over the whole prompt, for `heads` KV heads from `first`.
// Indices of heads are relative to `first`.
struct LayerObservation {
  int first = 0;
  int heads = 0;
  // Weight of token t for lane w: alpha[t][w] * factor[t / kObserveChunk][w]; padded lanes have
  // factor 0.
  float* alpha = nullptr;       // [heads][S][lanes]
  float* factor = nullptr;      // [heads][chunks][lanes]; the chunks' maxima on the way
  float* chunk_sum = nullptr;   // [heads][chunks][lanes]
  float* y_parts = nullptr;     // [heads][spans][lanes][D]
  bf16* y_planes = nullptr;     // [heads][3][lanes][D]: attention outputs, y = sum of the planes
  float* y2 = nullptr;          // [heads][lanes], |y|^2
  float* q2 = nullptr;          // [heads][lanes], |q|^2 / D
  float* mean_alpha = nullptr;  // [heads][P], over the m queries
};
// Spans of tokens whose outputs are summed apart and joined in order; depends on S alone.
int observe_spans(int64_t tokens);
// Sets kInputNotFinite for keys, values and queries.
void observe_layer(const CodecLayer& layer, const LayerObservation& out, DeviceStream stream);

// Pooled scores and the choice of anchors. score: [heads][P]; positions: [heads][k], ascending, the
// window last; scratch: [heads][2 k]. The uniform share is drawn with anchor_seed(seed,
// layer_index, head), head counted from the layer's first.
struct SelectParams {
  int first = 0;
  int heads = 0;
  int kernel = 7;        // width of the average pooling
  int k = 0;             // anchors, window included
  int rho_percent = 70;  // share of k - W that the score decides
  uint64_t seed = 42;
  int layer_index = 0;
  const float* mean_alpha = nullptr;  // [heads][P]
  float* score = nullptr;
  int32_t* positions = nullptr;
  int32_t* scratch = nullptr;
};
void select_anchors(const CodecLayer& layer, const SelectParams& params, DeviceStream stream);

// Both sides' anchors of `heads` KV heads from `first`, gathered for the products.
struct LayerAnchors {
  int first = 0;
  int heads = 0;
  int k = 0;
  int padded = 0;                      // k rounded up to 64
  const int32_t* positions = nullptr;  // [heads][k]
  bf16* rows = nullptr;                // [2][heads][padded][D]; padding is zero
  // [2][heads][padded]: 1 / |x_a|, NaN for a zero anchor, for padding, and for an anchor that
  // repeats one of a lower slot, which would win every tie.
  float* inv_norm = nullptr;
  double* norm2 = nullptr;   // [2][heads][padded]
  uint64_t* hash = nullptr;  // [2][heads][padded], scratch
};
constexpr int padded_anchors(int k) { return (k + 63) / 64 * 64; }
void load_anchors(const CodecLayer& layer, const LayerAnchors& out, DeviceStream stream);

// Nearest anchor and coefficient of every non-window token of both sides (Eq. 1, 2). Arrays of the
// whole layer, [2 sides][H][P]; the operator writes the heads of `anchors`.
struct LayerAssignment {
  uint16_t* slot = nullptr;
  float* gamma = nullptr;      // the stored value
  float* residual2 = nullptr;  // |x - gamma x_a|^2
  // The record's sections, index_bytes and coefficient_bytes wide.
  void* slots_out = nullptr;
  void* gammas_out = nullptr;
  int index_bytes = 1;
  bool log8 = true;
};
void assign_anchors(const CodecLayer& layer, const LayerAnchors& anchors,
                    const LayerAssignment& out, DeviceStream stream);

// uK, uV (Eq. 6 or the pooled form) of the heads of `observation`, [2][H][P] of the whole layer; -1
// on anchors.
struct UtilityOptions {
  bool eq6 = false;
  int pool = 31;
};
void rate_residuals(const CodecLayer& layer, const LayerObservation& observation,
                    const LayerAnchors& anchors, const LayerAssignment& assignment,
                    const UtilityOptions& options, double* utility, DeviceStream stream);

// Which residuals are stored and how wide (common/kv/allocation.h says the rule), for both sides.
struct AllocateParams {
  int kv_heads = 0;
  int64_t prefix = 0;               // P
  const double* utility = nullptr;  // [2][H * P]
  bool two_widths = true;           // else none or 2 bits
  uint64_t bytes[2] = {};           // of keys, of values
  uint32_t cost2[2] = {};           // of none -> 2 bits
  uint32_t cost4 = 0;               // of 2 -> 4 bits
  // The record's sections: u64 [2][H][1 or 2][words], u32 alike, int32 [2][H + 1].
  uint64_t* masks = nullptr;
  uint32_t* prefixes = nullptr;
  int32_t* head_offsets = nullptr;
  // [2][H][2]: residuals of 2 and of 4 bits in the heads before, and in this one.
  uint32_t* first = nullptr;
  uint32_t* count = nullptr;
  void* scratch = nullptr;  // allocate_scratch_bytes, aligned to 8
};
size_t allocate_scratch_bytes(int kv_heads, int64_t prefix);
void allocate_residuals(const AllocateParams& params, DeviceStream stream);

// Codes the chosen residuals (A.1) into the record's two regions, whose inner layout follows from
// the counts (kv::region_layout).
struct EncodeParams {
  // All heads' anchors, [H][k]: the row of slot a of head h is that of token positions[h * k + a].
  const int32_t* positions = nullptr;
  int k = 0;
  LayerAssignment assignment;
  const uint64_t* masks = nullptr;
  const uint32_t* prefixes = nullptr;
  const uint32_t* first = nullptr;
  const uint32_t* count = nullptr;
  bool two_widths = true;
  bool least_squares = true;
  bool scale_f32 = false;
  bool chunk_byte = false;
  bool post_rope = true;  // keys
  uint64_t seed = 42;     // of the signs
  std::byte* region[2] = {};
};
void encode_residuals(const CodecLayer& layer, const EncodeParams& params, DeviceStream stream);

// The record's sections that only repeat chosen positions and rows. Null sections are left out.
struct RecordRows {
  int k = 0;
  const int32_t* positions = nullptr;  // [H][k]
  bf16* anchors = nullptr;             // [2][H][k][D], aligned to 4
  uint32_t* positions32 = nullptr;     // [H][k - W]
  int64_t* positions64 = nullptr;      // [H][k - W]
  int32_t* token_positions = nullptr;  // [P]
};
void write_record_rows(const CodecLayer& layer, const RecordRows& out, DeviceStream stream);

// A dense record's payload: K post-RoPE and V, [H][S][D] each. `window` and q of the layer are not
// used. Sets kInputNotFinite.
void write_dense_record(const CodecLayer& layer, bf16* k_out, bf16* v_out, DeviceStream stream);

// cudaMemsetAsync to zero, and cudaMemcpyAsync to and from host memory (pinned, or it waits).
void clear_bytes(void* device, size_t bytes, DeviceStream stream);
void copy_to_device(void* device, const void* host, size_t bytes, DeviceStream stream);
void copy_to_host(void* host, const void* device, size_t bytes, DeviceStream stream);

}  // namespace akv::kernels::cuda
