#include "kernels/anchor_assign.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/codec.h"
#include "kernels/cpu/codec_simd.h"
#include "kernels/window_attention.h"

namespace akv::kernels {
namespace {

// f32 cosines closer than this are compared again in double.
constexpr float kCloseRace = 1e-5f;
// Floats of a tile of cosines: it should stay in the second-level cache.
constexpr int kTileFloats = 32768;

int tile_rows(int padded) { return std::clamp(kTileFloats / padded, 8, kCodecChunk); }

struct Coefficient {
  uint16_t code = 0;
  float value = 0;
};

Coefficient store_gamma(double gamma, bool log8) {
  if (log8) {
    const uint8_t code = log8_encode(gamma);
    return {code, log8_table()[code]};
  }
  const bf16 rounded = to_bf16(static_cast<float>(gamma));
  return {rounded.bits, to_float(rounded)};
}

// The lowest of the candidates (from `first` on, within the race) whose |cos| is largest in double.
int decide_race(const AnchorRows& anchors, const float* x, const float* cosines, float best,
                int first, const CodecSimd& simd) {
  const float cut = best - best * kCloseRace;
  int winner = first;
  double top = -1;
  for (int a = first; a < anchors.count; ++a) {
    if (!(std::fabs(cosines[a]) * anchors.inv_norm[a] >= cut)) continue;
    const float* row = anchors.rows.data() + static_cast<int64_t>(a) * anchors.head_dim;
    const double cosine =
        std::fabs(simd.dot(x, row, anchors.head_dim)) / std::sqrt(anchors.norm2[a]);
    if (cosine > top) {
      top = cosine;
      winner = a;
    }
  }
  return winner;
}

// Writes gamma and residual of token t, whose slot is known; x is its expanded row.
void project(const AssignParams& p, const Assignment& out, int64_t t, const float* x,
             const CodecSimd& simd) {
  const AnchorRows& anchors = *p.anchors;
  const int slot = out.slot[t];
  const float* row = anchors.rows.data() + static_cast<int64_t>(slot) * anchors.head_dim;
  const double norm2 = anchors.norm2[slot];
  Coefficient gamma{};
  if (p.positions[slot] == t) {
    gamma = store_gamma(1.0, p.log8);
  } else if (norm2 > 0) {
    gamma = store_gamma(simd.dot(x, row, anchors.head_dim) / norm2, p.log8);
  }
  out.code[t] = gamma.code;
  out.gamma[t] = gamma.value;
  out.residual2[t] = simd.residual(x, row, gamma.value, anchors.head_dim, nullptr);
}

// Slot of every token of one tile from its cosines.
void choose_slots(const AssignParams& p, int64_t first, int rows, const float* x,
                  const float* cosines, uint16_t* slot, const CodecSimd& simd) {
  const AnchorRows& anchors = *p.anchors;
  int lowest[kCodecChunk], close[kCodecChunk];
  float best[kCodecChunk];
  simd.argmax_rows(cosines, rows, anchors.padded, anchors.inv_norm.data(), kCloseRace, lowest,
                   close, best);
  const int32_t* end = p.positions + anchors.count;
  const int32_t* own = std::lower_bound(p.positions, end, static_cast<int32_t>(first));
  for (int r = 0; r < rows; ++r) {
    const float* row = x + static_cast<int64_t>(r) * anchors.head_dim;
    const bool is_anchor = own != end && *own == first + r;
    int winner = std::max(0, lowest[r]);
    if (is_anchor) {
      winner = static_cast<int>(own++ - p.positions);
    } else if (best[r] <= 0 && simd.dot(row, row, anchors.head_dim) == 0) {
      winner = 0;  // a zero vector
    } else if (close[r] > 1) {
      winner = decide_race(anchors, row, cosines + static_cast<int64_t>(r) * anchors.padded,
                           best[r], lowest[r], simd);
    }
    slot[r] = static_cast<uint16_t>(winner);
  }
}

}  // namespace

size_t AnchorRows::bytes() const {
  return (rows.capacity() + columns.capacity() + inv_norm.capacity()) * sizeof(float) +
         norm2.capacity() * sizeof(double);
}

void load_anchors(const bf16* x, int64_t stride, const int32_t* positions, int count, int head_dim,
                  AnchorRows& out) {
  const CodecSimd& simd = codec_simd(active_isa());
  out.count = count;
  out.padded = (count + 15) / 16 * 16;
  out.head_dim = head_dim;
  out.rows.resize(static_cast<size_t>(count) * head_dim);
  out.columns.assign(static_cast<size_t>(out.padded) * head_dim, 0.0f);
  out.inv_norm.assign(out.padded, std::numeric_limits<float>::quiet_NaN());
  out.norm2.resize(count);
  for (int a = 0; a < count; ++a) {
    float* row = out.rows.data() + static_cast<int64_t>(a) * head_dim;
    simd.expand_rows(x + positions[a] * stride, 0, 1, head_dim, row);
    for (int i = 0; i < head_dim; ++i) {
      out.columns[static_cast<size_t>(i) * out.padded + a] = row[i];
    }
    out.norm2[a] = simd.dot(row, row, head_dim);
    if (out.norm2[a] > 0) out.inv_norm[a] = static_cast<float>(1.0 / std::sqrt(out.norm2[a]));
  }
}

size_t assign_scratch_floats(int head_dim, int anchors) {
  const int padded = (anchors + 15) / 16 * 16;
  return static_cast<size_t>(tile_rows(padded)) * (head_dim + padded);
}

void assign_chunk(const AssignParams& p, const Assignment& out, int64_t chunk, float* scratch) {
  const CodecSimd& simd = codec_simd(active_isa());
  const AnchorRows& anchors = *p.anchors;
  const int d = anchors.head_dim;
  const int tile = tile_rows(anchors.padded);
  float* x = scratch;
  float* cosines = x + static_cast<int64_t>(tile) * d;
  const int64_t begin = chunk * kCodecChunk;
  const int64_t end = std::min<int64_t>(begin + kCodecChunk, p.prefix);
  for (int64_t first = begin; first < end; first += tile) {
    const int rows = static_cast<int>(std::min<int64_t>(tile, end - first));
    simd.expand_rows(p.x + first * p.stride, p.stride, rows, d, x);
    simd.gemm(x, d, 1, rows, anchors.columns.data(), anchors.padded, anchors.padded, d, cosines,
              anchors.padded, false);
    choose_slots(p, first, rows, x, cosines, out.slot + first, simd);
    for (int r = 0; r < rows; ++r) {
      project(p, out, first + r, x + static_cast<int64_t>(r) * d, simd);
    }
  }
}

void project_on_slots(const AssignParams& p, const Assignment& out) {
  const CodecSimd& simd = codec_simd(active_isa());
  float x[kMaxHeadDim];
  for (int64_t t = 0; t < p.prefix; ++t) {
    simd.expand_rows(p.x + t * p.stride, 0, 1, p.anchors->head_dim, x);
    project(p, out, t, x, simd);
  }
}

void measure_residuals(const AssignParams& p, const Assignment& out) {
  const CodecSimd& simd = codec_simd(active_isa());
  const int d = p.anchors->head_dim;
  float x[kMaxHeadDim];
  for (int64_t t = 0; t < p.prefix; ++t) {
    simd.expand_rows(p.x + t * p.stride, 0, 1, d, x);
    const float* row = p.anchors->rows.data() + static_cast<int64_t>(out.slot[t]) * d;
    out.residual2[t] = simd.residual(x, row, out.gamma[t], d, nullptr);
  }
}

}  // namespace akv::kernels
