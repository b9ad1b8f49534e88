// The layer graph as steps that an engine drives. The engine owns hidden states, K/V and attention;
// the graph owns weights in use and scratch. Prefill and decode run the same steps.
//
//   embed(ids, x)
//   for each layer:  qkv(layer, x, positions, out)      x: [M, d] residual stream, f32
//                    <attention by the engine: out.q and its K/V -> attn [M, Hq, D]>
//                    attn_out(layer, attn, M, x)          x += attn Wo^T
//                    mlp(layer, M, x)                     x += Wdown(silu(gate) * up)
//   logits(x, rows, out)                                  final norm and head, chosen rows only
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "common/base/result.h"
#include "common/model/model.h"
#include "kernels/parallel.h"
#include "kernels/types.h"

namespace akv::model {

// How weights meet activations.
enum class WeightPath {
  // Prefill: the matrices of ONE layer are expanded and packed for a blocked GEMM, in buffers that
  // are reused from layer to layer. Worth it from about 32 rows per layer visit.
  kPacked,
  // Decode and short prompts: weights stay in their stored low-bit format, rows go in blocks of
  // <= 16. Nothing to prepare; layers may be visited in any order at no cost.
  kLowBit,
};

struct GraphOptions {
  WeightPath path = WeightPath::kLowBit;
  int64_t max_rows = 16;  // most rows M of one call; sizes the scratch (prefill: chunk length)
  bool f32 = false;       // kPacked: f32 GEMM even where bf16 is faster (fidelity, tests)
};

// Where qkv() puts its rows. All are [M, heads, D], dense, caller-owned; null ones are not written.
// Rounding to bf16 happens once, from the f32 value.
struct QkvRows {
  float* q = nullptr;          // [M, Hq, D] after bias, QK-norm, RoPE; required
  bf16* k_pre = nullptr;       // [M, H, D] after bias and QK-norm, BEFORE RoPE: the codec's input
  bf16* k_rot = nullptr;       // [M, H, D] after RoPE: dense suffix pages, dense records
  bf16* v = nullptr;           // [M, H, D] after bias
  float* k_pre_f32 = nullptr;  // the same before rounding: f32 path of tests
  float* k_rot_f32 = nullptr;
  float* v_f32 = nullptr;
};

// One per engine; used by one thread, which calls into `parallel`. Allocates in the constructor
// (kPacked also on the first visit of a layer) and never afterwards. Holds the model alive.
// For one path and one thread count a row's results are bitwise the same whatever other rows are in
// the call and however rows are cut into calls.
class Graph {
 public:
  Graph(std::shared_ptr<const Model> model, const GraphOptions& options, const Parallel& parallel);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  const Model& model() const;
  const GraphOptions& options() const;
  // Scratch and packed weights, bytes; constant after the first layer was visited.
  uint64_t scratch_bytes() const;

  // x[i] = embedding row of ids[i]; any number of rows. kInvalidArgument naming the index where an
  // id is outside [0, vocab): x is then untouched.
  Status embed(std::span<const int32_t> ids, float* x);

  // kPacked: expands and packs the matrices of `layer`; free if it is the current one (so chunks,
  // and prompts that meet at a layer border, share one packing). The steps below call it
  // themselves; call it ahead to time it apart. kLowBit: nothing. Throws std::bad_alloc where the
  // packed layer does not fit in memory.
  void prepare_layer(int layer);

  // Gives the packed layer's buffers back, for an idle prefill node; the next visit allocates them.
  void release_packed();

  // q, k, v of M rows at their positions. REQUIRES: 1 <= M = positions.size() <= max_rows, each
  // position in [0, context_length).
  void qkv(int layer, const float* x, std::span<const int64_t> positions, const QkvRows& out);
  // The same for rows at pos0, pos0 + 1, ... (a prefill chunk).
  void qkv(int layer, const float* x, int64_t rows, int64_t pos0, const QkvRows& out);

  // x [M, d] += attn [M, Hq*D] Wo^T. REQUIRES: 1 <= rows <= max_rows.
  void attn_out(int layer, const float* attn, int64_t rows, float* x);

  // x [M, d] += Wdown (silu(Wgate n) * (Wup n)), n = RMSNorm(x). REQUIRES: 1 <= rows <= max_rows.
  void mlp(int layer, int64_t rows, float* x);

  // out[i] [vocab] = head * RMSNorm(x[rows[i]]). The head stays low-bit in both paths.
  // REQUIRES: rows.size() <= max_rows.
  void logits(const float* x, std::span<const int64_t> rows, float* out);
  // One row, e.g. the last of a prompt: x points to it.
  void logits(const float* x_row, float* out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace akv::model
