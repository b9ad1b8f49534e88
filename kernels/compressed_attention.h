// Attention of decode steps over compressed prompts, dense prompts and dense suffixes, without ever
// rebuilding a key or a value of the compressed prompt.
//
// For a query q (post-RoPE) of head h, with x_a the anchors and phi(t) = (cos t w_j, sin t w_j):
//
//   logit_t = (gamma_t <phi(t), W_a(t)> + scale_t <U q*, level(code_t)>) / sqrt(D)
//     W_a   = per RoPE pair (qx kx + qy ky, qy kx - qx ky): one table per (query head, anchor)
//     q*    = q in the `post` domain; in the `pre` domain the residual itself is turned by R_t
//   out     = sum_a w_a v_a + U^T z + sum over suffix tokens of p_t v_t
//     w_a   = sum of p_t gamma_t over tokens of anchor a;  z = sum of p_t scale_t level(code_t)
//
// The window's tokens are anchors with gamma 1 at their own positions. One softmax runs over
// everything. phi and W are 16-bit fixed point, their products exact in 32 bits (PhaseTable and
// README.md bound the error: about 1e-5 of |q||k|/sqrt(D) per logit); all else is f32.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/compressed_view.h"
#include "kernels/parallel.h"
#include "kernels/rope.h"

namespace akv::kernels {

// One new token of one session. The views must live until the call returns; rows may share them:
// several new tokens of one session (a replay) are rows whose suffixes share pages and grow by one.
struct AttentionRow {
  // Exactly one of the two is set.
  const CompressedLayerView* prompt = nullptr;
  const DenseLayerView* dense_prompt = nullptr;
  // The newest window entries (of a dense prompt: its newest tokens) to leave out, 0 or 1, at most
  // the window. 1 when the last prompt token runs again as a new token of the suffix.
  int window_drop = 0;
  // suffix.tokens counts this row's own token: a query attends to all of them.
  SuffixView suffix;
  const float* q = nullptr;  // [heads, D], post-RoPE, not scaled
  float* out = nullptr;      // [heads, D]
};

// Working memory of decode_attention, kept between calls: it grows when shapes do, so that a steady
// state allocates nothing. O(workers * k * g * D) plus, per RoPE table, fixed-point angles of 2 D
// bytes per prompt position that all layers, heads and sessions share. One caller at a time.
class DecodeAttentionScratch {
 public:
  // Bytes of W per worker above which a row does without: every token's anchor is then turned and
  // multiplied with the group's queries. Half of a large L2: the table is read at random.
  static constexpr int64_t kDefaultTableBytes = int64_t{1} << 20;

  explicit DecodeAttentionScratch(int64_t max_table_bytes = kDefaultTableBytes);
  ~DecodeAttentionScratch();
  DecodeAttentionScratch(DecodeAttentionScratch&&) noexcept;
  DecodeAttentionScratch& operator=(DecodeAttentionScratch&&) noexcept;

  // Bytes held for the work of a call, and for the angles of the RoPE table last used.
  int64_t working_bytes() const;
  int64_t phase_bytes() const;

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// Attention output of every row. All rows of a call have the same `heads`, H and D; D is a multiple
// of 16 up to 256 and heads/H, the GQA group, is 1..16. All rows, KV heads and splits of the
// context run in one parallel region; results are then combined on the calling thread.
//
// A row's result is bitwise independent of the other rows and of the number of workers: splits
// follow from the row's own lengths alone. `rope` is the model's table; a scratch that alternates
// between tables of different parameters rebuilds its angles each time, so keep one per table.
// Never fails: views are verified by their maker (common/kv). No locks, no exceptions but
// bad_alloc.
void decode_attention(std::span<const AttentionRow> rows, int heads, const RopeTable& rope,
                      DecodeAttentionScratch& scratch, const Parallel& parallel);

namespace reference {

// The oracle: rebuilds every key and value in double, in the paper's order (Eq. 3, then RoPE), and
// attends. Allocates; for tests.
void decode_attention(const AttentionRow& row, int heads, const RopeTable& rope);

}  // namespace reference
}  // namespace akv::kernels
