#include "kernels/utility.h"

#include <algorithm>

#include "kernels/cpu/codec_simd.h"

namespace akv::kernels {
namespace {

constexpr int kMaxPool = 255;

// The parts of one worker's scratch.
struct Tiles {
  float* x;            // [chunk][D]
  float* v_dot_y;      // [chunk][lanes]
  float* logit_error;  // [chunk][lanes]
  float* v2;           // [chunk]
  float* strip;        // [3][16][chunk + pool]
  double* lane_sums;   // [chunk][2][16]
  float* weight;       // [lanes]
};

Tiles carve(float* base, int head_dim, int lanes) {
  Tiles t;
  // Doubles first: the arena is aligned for them, the float parts need no more than 4 bytes.
  t.lane_sums = reinterpret_cast<double*>(base);
  t.x = base + 2 * 32 * kCodecChunk;
  t.v_dot_y = t.x + static_cast<int64_t>(kCodecChunk) * head_dim;
  t.logit_error = t.v_dot_y + static_cast<int64_t>(kCodecChunk) * lanes;
  t.v2 = t.logit_error + static_cast<int64_t>(kCodecChunk) * lanes;
  t.strip = t.v2 + kCodecChunk;
  t.weight = t.strip + 48 * static_cast<int64_t>(kCodecChunk + kMaxPool);
  return t;
}

// q_w . R_t rK_t / sqrt(D) for a chunk.
void logit_errors(const UtilityParams& p, int64_t first, int rows, const Tiles& tiles,
                  const CodecSimd& simd) {
  const ObservedHead& h = *p.head;
  const int d = h.head_dim, lanes = p.observation->lanes;
  simd.expand_rows(h.k + first * h.stride, h.stride, rows, d, tiles.x);
  for (int r = 0; r < rows; ++r) {
    float* x = tiles.x + static_cast<int64_t>(r) * d;
    const int64_t slot = p.key.slot[first + r];
    simd.residual(x, p.key_anchors->rows.data() + slot * d, p.key.gamma[first + r], d, x);
  }
  simd.rope_rows(tiles.x, rows, d, h.rope->cos_row(first), h.rope->half(),
                 h.rope->pairs() == RopePairs::kInterleaved);
  simd.gemm(tiles.x, d, 1, rows, p.observation->q_t.data(), lanes, lanes, d, tiles.logit_error,
            lanes, false);
}

// Anchors carry no residual.
void mark_anchors(const UtilityParams& p, int64_t first, int64_t end, double* key, double* value) {
  const int32_t* stop = p.positions + p.anchors;
  for (const int32_t* a = std::lower_bound(p.positions, stop, static_cast<int32_t>(first));
       a != stop && *a < end; ++a) {
    key[*a] = -1;
    value[*a] = -1;
  }
}

}  // namespace

size_t utility_scratch_floats(int head_dim, int lanes) {
  return static_cast<size_t>(kCodecChunk) * (head_dim + 2 * lanes + 1 + 2 * 32) +
         48 * static_cast<size_t>(kCodecChunk + kMaxPool) + lanes;
}

void utility_chunk(const UtilityParams& p, int64_t chunk, double* key, double* value,
                   float* scratch) {
  const CodecSimd& simd = codec_simd(active_isa());
  const ObservedHead& h = *p.head;
  const Observation& o = *p.observation;
  const int d = h.head_dim;
  const int64_t first = chunk * kCodecChunk;
  const int rows = static_cast<int>(std::min<int64_t>(kCodecChunk, h.prefix() - first));
  const Tiles tiles = carve(scratch, d, o.lanes);
  for (int w = 0; w < o.lanes; ++w) tiles.weight[w] = o.q2[w] / static_cast<float>(d);
  UtilityRows u;
  if (p.eq6) {
    logit_errors(p, first, rows, tiles, simd);
    u.logit_error = tiles.logit_error;
  }
  simd.expand_rows(h.v + first * h.stride, h.stride, rows, d, tiles.x);
  simd.gemm(tiles.x, d, 1, rows, o.y_t.data(), o.lanes, o.lanes, d, tiles.v_dot_y, o.lanes, false);
  for (int r = 0; r < rows; ++r) {
    const float* x = tiles.x + static_cast<int64_t>(r) * d;
    tiles.v2[r] = simd.residual(x, x, 0.0f, d, nullptr);
  }
  u.alpha = o.alpha.data();
  u.factor = o.factor.data();
  u.prefix = h.prefix();
  u.first = first;
  u.rows = rows;
  u.lanes = o.lanes;
  u.pool = p.eq6 ? 1 : p.pool;
  u.v_dot_y = tiles.v_dot_y;
  u.weight = tiles.weight;
  u.y2 = o.y2.data();
  u.v2 = tiles.v2;
  u.strip = tiles.strip;
  u.lane_sums = tiles.lane_sums;
  u.key = key + first;
  u.value = value + first;
  simd.utility_rows(u);
  const double inv = 1.0 / h.queries();
  for (int64_t t = first; t < first + rows; ++t) {
    key[t] *= p.eq6 ? inv : inv * p.key.residual2[t];
    value[t] *= inv * p.value.residual2[t];
  }
  mark_anchors(p, first, first + rows, key, value);
}

}  // namespace akv::kernels
