// Exact attention of the last W queries over the whole prompt, for one KV head: what anchor scores
// (Eq. 14) and utilities (Eq. 6) are made of.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/codec_scratch.h"
#include "kernels/parallel.h"
#include "kernels/rope.h"
#include "kernels/types.h"

namespace akv::kernels {

// Tokens that one task handles; borders depend on S alone.
inline constexpr int kCodecChunk = 256;
inline int64_t codec_chunks(int64_t tokens) { return (tokens + kCodecChunk - 1) / kCodecChunk; }

// One KV head of a layer. Rows of token t start at k + t * stride, v + t * stride.
struct ObservedHead {
  int64_t tokens = 0;       // S
  int window = 0;           // W
  int group = 0;            // g, query heads
  int head_dim = 0;         // D
  const bf16* k = nullptr;  // pre-RoPE
  const bf16* v = nullptr;
  int64_t stride = 0;
  // Query of window row w (position S - W + w) and group member j: q + w * q_stride + j * D;
  // post-RoPE.
  const bf16* q = nullptr;
  int64_t q_stride = 0;
  const RopeTable* rope = nullptr;
  int64_t prefix() const { return tokens - window; }  // P
  int queries() const { return window * group; }      // m; query w * g + j
};

// Results for one head; reused from head to head. `lanes` is m padded to 16; padding is zero.
struct Observation {
  int lanes = 0;
  // Attention weight of token t for query w: alpha[t][w] * factor[t / kCodecChunk][w]. alpha is
  // kept relative to the running maximum it was computed under, so that it is written once.
  std::vector<float> alpha;       // [S][lanes]
  std::vector<float> factor;      // [chunks][lanes]
  std::vector<float> mean_alpha;  // [P], over the m queries
  std::vector<float> q_t;         // [D][lanes], queries / sqrt(D)
  std::vector<float> y;           // [lanes][D], attention outputs
  std::vector<float> y_t;         // [D][lanes]
  std::vector<float> q2;          // [lanes], |q|^2 / D
  std::vector<float> y2;          // [lanes], |y|^2
  // Of the spans of chunks that are summed apart and joined in order.
  std::vector<float> chunk_max, span_max, span_sum, span_y;
  size_t bytes() const;
};

// f32 throughout. The result does not depend on the number of workers.
void observe_head(const ObservedHead& head, Observation& out, CodecScratch& scratch,
                  const Parallel& parallel);

}  // namespace akv::kernels
