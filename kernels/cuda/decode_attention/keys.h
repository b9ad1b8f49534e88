// Logits of a chunk, key side: the anchors' part of every token, and the residuals'.
#pragma once

#include "kernels/cuda/decode_attention/codes.h"
#include "kernels/cuda/decode_attention/pipeline.h"
#include "kernels/cuda/decode_attention/state.h"

namespace akv::kernels::cuda::decode {

AKV_DEVICE void swap_if(bool yes, uint4* a, uint4* b) {
  const uint4 x = *a, y = *b;
  *a = make_uint4(yes ? y.x : x.x, yes ? y.y : x.y, yes ? y.z : x.z, yes ? y.w : x.w);
  *b = make_uint4(yes ? x.x : y.x, yes ? x.y : y.y, yes ? x.z : y.z, yes ? x.w : y.w);
}

// Two MMA steps: unit v of both rows, turned, times the queries.
template <int D>
AKV_DEVICE void multiply_unit(const TileAngles<D>& angles, int v, uint4 row0, uint4 row1, uint4 q,
                              float (&acc)[4]) {
  uint32_t a[4] = {row0.x, row1.x, row0.y, row1.y};
  angles.turn(0, v, 0, &a[0], &a[2]);
  angles.turn(1, v, 0, &a[1], &a[3]);
  const uint32_t b[2] = {q.x, q.y};
  mma_f16(acc, a, b);
  uint32_t c[4] = {row0.z, row1.z, row0.w, row1.w};
  angles.turn(0, v, 1, &c[0], &c[2]);
  angles.turn(1, v, 1, &c[1], &c[3]);
  const uint32_t d[2] = {q.z, q.w};
  mma_f16(acc, c, d);
}

// Rows of 16 tokens that are not in shared memory, to the warp's own place there: row by row, so
// that loads run along rows and find what neighbours share in L1 or L2.
template <int D, int Heads>
AKV_DEVICE void gather_rows(const Piecework<D, Heads>& w, const uint16_t* slots, uint4* rows) {
  const bf16* anchors = w.state().head.key.anchors;
  const int align = alignment(anchors);
  __syncwarp();
#pragma unroll 2
  for (int i = w.lane; i < 16 * (D / 8); i += 32) {
    const bf16* row = anchors + int64_t{slots[i / (D / 8)]} * D;
    rows[i] = anchor_unit<D>(row, i % (D / 8), w.order(), align);
  }
  __syncwarp();
}

// <R_T^T q, R_tau x> of 16 tokens and all heads: rows are tokens, columns heads. In a shared load
// of 16 bytes a phase is two rows of 64 bytes each: odd rows begin with the other unit of a pair,
// so that the two never meet in a bank, whatever their slots.
template <int D, int Heads>
AKV_DEVICE void tile_dots(const Piecework<D, Heads>& w, const TileAngles<D>& angles,
                          const uint4* row0, const uint4* row1, const uint4* fragments,
                          float (&acc)[4]) {
  using L = Layout<D, Heads>;
  const bool odd = (w.g & 1) != 0;
#pragma unroll
  for (int v = 0; v + 1 < L::kUnits; v += 2) {
    const int first = 4 * (odd ? v + 1 : v) + w.t, second = 4 * (odd ? v : v + 1) + w.t;
    uint4 a0 = row0[first], a1 = row1[first], b0 = row0[second], b1 = row1[second];
    swap_if(odd, &a0, &b0);
    swap_if(odd, &a1, &b1);
    multiply_unit<D>(angles, v, a0, a1, fragments[v * 32], acc);
    multiply_unit<D>(angles, v + 1, b0, b1, fragments[(v + 1) * 32], acc);
  }
  if constexpr (L::kUnits % 2 != 0) {
    constexpr int v = L::kUnits - 1;
    multiply_unit<D>(angles, v, row0[4 * v + w.t], row1[4 * v + w.t], fragments[v * 32], acc);
  }
}

// A warp takes rows 16 warp to 16 warp + 15 of every tile of a chunk.
template <int D, int Heads>
AKV_DEVICE void key_dots(const Piecework<D, Heads>& w, const TileAngles<D>& angles, int base) {
  using L = Layout<D, Heads>;
  const uint16_t* slots = w.template at<uint16_t>(L::kSlots) + 16 * w.warp;
  float* dots = w.template at<float>(L::kDots) + 2 * w.t * L::kDotStride + 16 * w.warp + w.g;
#pragma unroll 1
  for (int tile = 0; tile < kChunk / kTile; ++tile, slots += kTile, dots += kTile) {
    if (base + tile * kTile + 16 * w.warp >= w.state().end) break;
    uint4* rows = w.rows();
    int row0 = slots[w.g], row1 = slots[w.g + 8];
    if (w.state().resident == 0) {
      rows += w.warp * 16 * (D / 8);
      gather_rows(w, slots, rows);
      row0 = w.g;
      row1 = w.g + 8;
    }
    float acc[4] = {};
    tile_dots(w, angles, rows + row0 * (D / 8), rows + row1 * (D / 8),
              w.template at<uint4>(L::kQueryFragments) + tile * L::kUnits * 32 + w.lane, acc);
    if (2 * w.t >= Heads) continue;
    dots[0] = acc[0];
    dots[L::kDotStride] = acc[1];
    dots[8] = acc[2];
    dots[L::kDotStride + 8] = acc[3];
  }
}

// A group of 16 key residuals (the last one of a stream has fewer), word by word side by side.
struct KeyGroup {
  CodeWords codes;
  int first;  // word of the stream
  int members;

  AKV_DEVICE uint32_t load(int r, int word, int words) const {
    if (r >= members || word >= words) return 0;
    return codes.load(first + word * members + r);
  }
};

template <int D, int Heads>
AKV_DEVICE void group_dots2(const Piecework<D, Heads>& w, const KeyGroup& group, float (&acc)[4]) {
  using L = Layout<D, Heads>;
  const LevelPool pool = key_pool();
  const uint4* fragments = w.template at<uint4>(L::kCodeFragments2) + w.lane;
#pragma unroll
  for (int i = 0; i < L::kWords2; ++i) {
    const uint32_t x0 = group.load(w.g, 4 * i + w.t, D / 16);
    const uint32_t x1 = group.load(w.g + 8, 4 * i + w.t, D / 16);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint32_t s0 = selectors((x0 >> (2 * step)) & 0x03030303u);
      const uint32_t s1 = selectors((x1 >> (2 * step)) & 0x03030303u);
      const uint32_t a[4] = {pick(pool, s0), pick(pool, s1), pick(pool, s0 >> 16),
                             pick(pool, s1 >> 16)};
      const uint4 q = fragments[(2 * i + step / 2) * 32];
      const uint32_t b[2] = {step % 2 == 0 ? q.x : q.z, step % 2 == 0 ? q.y : q.w};
      mma_f16(acc, a, b);
    }
  }
}

template <int D, int Heads>
AKV_DEVICE void group_dots4(const Piecework<D, Heads>& w, const KeyGroup& group, float (&acc)[4]) {
  using L = Layout<D, Heads>;
  const uint32_t* levels = w.template at<uint32_t>(L::kLevels);
  const uint4* fragments = w.template at<uint4>(L::kCodeFragments4) + w.lane;
  const auto pair = [&](uint32_t codes) {
    return low_pair(levels[codes & 15], levels[codes >> 4 & 15]);
  };
#pragma unroll
  for (int i = 0; i < L::kWords4; ++i) {
    const uint32_t x0 = group.load(w.g, 4 * i + w.t, D / 8);
    const uint32_t x1 = group.load(w.g + 8, 4 * i + w.t, D / 8);
    const uint4 q = fragments[i * 32];
    const uint32_t a[4] = {pair(x0), pair(x1), pair(x0 >> 8), pair(x1 >> 8)};
    const uint32_t b[2] = {q.x, q.y};
    mma_f16(acc, a, b);
    const uint32_t c[4] = {pair(x0 >> 16), pair(x1 >> 16), pair(x0 >> 24), pair(x1 >> 24)};
    const uint32_t d[2] = {q.z, q.w};
    mma_f16(acc, c, d);
  }
}

// Residual logits in base 2, in list order, a group of 16 per warp. Groups that straddle a chunk
// are made by both.
template <int D, int Heads>
AKV_DEVICE void key_residuals(const Piecework<D, Heads>& w, const Range& r) {
  using L = Layout<D, Heads>;
  const CompressedSideView& side = w.state().head.key;
  const float* units = w.template at<float>(L::kUnitsOfHeads) + 8;
  float* logits = w.template at<float>(L::kResiduals) + 2 * w.t * L::kDotStride;
  const int groups2 = r.two1 > r.two0 ? (r.two1 + 15) / 16 - r.two0 / 16 : 0;
  const int groups4 = r.four1 > r.four0 ? (r.four1 + 15) / 16 - r.four0 / 16 : 0;
#pragma unroll 1
  for (int i = w.warp; i < groups2 + groups4; i += kWarps) {
    const bool four = i >= groups2;
    const int first = four ? (r.four0 / 16 + i - groups2) * 16 : (r.two0 / 16 + i) * 16;
    const int n = static_cast<int>(four ? side.n4 : side.n2);
    const int begin = four ? r.four0 : r.two0, end = four ? r.four1 : r.two1;
    const KeyGroup group{CodeWords(four ? side.codes4 : side.codes2),
                         first * (four ? D / 8 : D / 16), n - first < 16 ? n - first : 16};
    float acc[4] = {};
    if (four) {
      group_dots4(w, group, acc);
    } else {
      group_dots2(w, group, acc);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int index = first + w.g + 8 * half;
      if (index < begin || index >= end || 2 * w.t >= Heads) continue;
      const float scale = scale_of(side, four, index);
      const int at = key_list(r, four, index);
      logits[at] = acc[2 * half] * scale * units[2 * w.t];
      logits[L::kDotStride + at] = acc[2 * half + 1] * scale * units[2 * w.t + 1];
    }
  }
}

// The `pre` domain, for fidelity: a warp rebuilds each residual, turns it and multiplies it.
template <int D, int Heads>
AKV_DEVICE void turned_residual(const Piecework<D, Heads>& w, bool four, int index,
                                int64_t position, float (&dots)[Heads]) {
  using L = Layout<D, Heads>;
  const CompressedSideView& side = w.state().head.key;
  const uint32_t* levels = w.template at<uint32_t>(L::kLevels);
  float* x = w.template at<float>(L::kCodeFragments2) + w.warp * D;
  const int per_word = four ? 8 : 16, bits = four ? 4 : 2;
  const int first = index & ~15, n = static_cast<int>(four ? side.n4 : side.n2);
  const int members = n - first < 16 ? n - first : 16;
  const uint8_t* codes = (four ? side.codes4 : side.codes2) + int64_t{first} * (D * bits / 8);
  __syncwarp();
  for (int d = w.lane; d < D; d += 32) {
    const uint8_t* word = codes + (d / per_word * members + (index & 15)) * 4;
    const int bit = d % per_word * bits;
    const uint32_t code = __ldg(word + bit / 8) >> (bit % 8) & (four ? 15u : 3u);
    const uint32_t half = four ? levels[code] : pick(key_pool(), selectors(code));
    x[d] = __low2float(half2_of(half));
  }
  warp_hadamard<D>(x, w.lane);
  const float* query = w.template at<float>(L::kQuery);
  for (int j = w.lane; j < D / 2; j += 32) {
    const int dx = x_of_pair<D>(w.order(), j), dy = y_of_pair<D>(w.order(), j);
    const float* row = w.args->rope.rows + position * 2 * w.order().half;
    const float c = j < w.order().half ? __ldg(row + j) : 1.0f;
    const float s = j < w.order().half ? __ldg(row + w.order().half + j) : 0.0f;
    const float a = x[dx] * __ldg(w.state().signs + dx), b = x[dy] * __ldg(w.state().signs + dy);
#pragma unroll
    for (int h = 0; h < Heads; ++h) {
      dots[h] += (a * c - b * s) * query[h * D + j] + (a * s + b * c) * query[h * D + D / 2 + j];
    }
  }
}

template <int D, int Heads>
AKV_DEVICE void turned_key_residuals(const Piecework<D, Heads>& w, const Range& r, int base) {
  using L = Layout<D, Heads>;
  const float* units = w.template at<float>(L::kUnitsOfHeads);
  const uint16_t* positions = w.template at<uint16_t>(L::kPositions);
  float* logits = w.template at<float>(L::kResiduals);
  const int two = r.two1 - r.two0, total = two + r.four1 - r.four0;
#pragma unroll 1
  for (int i = w.warp; i < total; i += kWarps) {
    const bool four = i >= two;
    const int index = four ? r.four0 + i - two : r.two0 + i;
    float dots[Heads] = {};
    turned_residual(w, four, index, base + positions[i], dots);
    const float scale = scale_of(w.state().head.key, four, index);
#pragma unroll
    for (int h = 0; h < Heads; ++h) {
      const float dot = warp_sum(dots[h]);
      if (w.lane == h) logits[h * L::kDotStride + i] = dot * scale * units[h];
    }
  }
}

}  // namespace akv::kernels::cuda::decode
