// Value side: residuals of a chunk summed in the rotated domain, and at a piece's end the product
// of the histogram with the anchors. A warp owns 16 or 32 coordinates of all heads; where that
// makes more warps than needed, two share them and their sums are joined at the end.
#pragma once

#include "kernels/cuda/decode_attention/codes.h"
#include "kernels/cuda/decode_attention/pipeline.h"
#include "kernels/cuda/decode_attention/state.h"

namespace akv::kernels::cuda::decode {

template <int D>
struct Tiles {
  static constexpr int kEach = D >= 128 ? 2 : 1;     // neighbouring tiles of a warp
  static constexpr int kColumns = D / 16 / kEach;    // warps that cover all tiles
  static constexpr int kShares = kWarps / kColumns;  // warps of a tile

  AKV_DEVICE static int first(int warp) { return warp % kColumns * kEach; }
  AKV_DEVICE static int share(int warp) { return warp / kColumns; }
  AKV_DEVICE static bool idle(int warp) { return share(warp) >= kShares; }
};

// Rows 2t, 2t + 1, 2t + 8, 2t + 9 of a group of 16 value residuals, by their first words; rows that
// are not there repeat the last one, their weights are zero.
struct ValueRows {
  CodeWords codes;
  int row[4];

  AKV_DEVICE ValueRows(const uint8_t* stream, int first, int n, int row_words, int t)
      : codes(stream) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int index = first + 2 * t + i % 2 + i / 2 * 8;
      row[i] = (index < n ? index : n - 1) * row_words;
    }
  }
};

// A operand: coordinates g and g + 8 of a tile in rows, residuals along k.
AKV_DEVICE void value_levels2(const ValueRows& rows, int tile, int g, uint32_t (&a)[4]) {
  const LevelPool pool = value_pool();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t x = rows.codes.load(rows.row[2 * i] + tile) >> (2 * g);
    const uint32_t y = rows.codes.load(rows.row[2 * i + 1] + tile) >> (2 * g);
    const uint32_t s = selectors((x & 0x00030003u) | (y & 0x00030003u) << 8);
    a[2 * i] = pick(pool, s);
    a[2 * i + 1] = pick(pool, s >> 16);
  }
}

AKV_DEVICE void value_levels4(const ValueRows& rows, int tile, int g, const uint32_t* levels,
                              uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int word = tile * 2 + half;
      const uint32_t x = rows.codes.load(rows.row[2 * i] + word) >> (4 * g) & 15u;
      const uint32_t y = rows.codes.load(rows.row[2 * i + 1] + word) >> (4 * g) & 15u;
      a[2 * i + half] = high_pair(levels[x], levels[y]);
    }
  }
}

// z += weights x levels over the chunk's residuals.
template <int D, int Heads>
AKV_DEVICE void value_residuals(const Piecework<D, Heads>& w, const Range& r,
                                float (&z)[Tiles<D>::kEach][4]) {
  using L = Layout<D, Heads>;
  if (Tiles<D>::idle(w.warp)) return;
  const CompressedSideView& side = w.state().head.value;
  const uint32_t* levels = w.template at<uint32_t>(L::kLevels);
  const auto* list = w.template at<uint32_t>(L::kWeights) + w.g % Heads * (L::kWeightStride / 2);
  const int groups2 = r.two1 > r.two0 ? (r.two1 + 15) / 16 - r.two0 / 16 : 0;
  const int groups4 = r.four1 > r.four0 ? (r.four1 + 15) / 16 - r.four0 / 16 : 0;
#pragma unroll 1
  for (int i = Tiles<D>::share(w.warp); i < groups2 + groups4; i += Tiles<D>::kShares) {
    const bool four = i >= groups2;
    const int at = four ? value_list4(r) + (i - groups2) * 16 : i * 16;
    const uint32_t b[2] = {list[at / 2 + w.t], list[at / 2 + w.t + 4]};
    const int first = four ? (r.four0 / 16 + i - groups2) * 16 : (r.two0 / 16 + i) * 16;
    const ValueRows rows(four ? side.codes4 : side.codes2, first,
                         static_cast<int>(four ? side.n4 : side.n2), four ? D / 8 : D / 16, w.t);
#pragma unroll
    for (int e = 0; e < Tiles<D>::kEach; ++e) {
      const int tile = Tiles<D>::first(w.warp) + e;
      uint32_t a[4];
      if (four) {
        value_levels4(rows, tile, w.g, levels, a);
      } else {
        value_levels2(rows, tile, w.g, a);
      }
      mma_bf16(z[e], a, b);
    }
  }
}

// Columns of the accumulators, heads 2t and 2t + 1, take the factors of lanes 2t and 2t + 1.
template <int Each>
AKV_DEVICE void rescale_columns(float factor, int t, float (&z)[Each][4]) {
  const float even = __shfl_sync(0xffffffffu, factor, 2 * t);
  const float odd = __shfl_sync(0xffffffffu, factor, 2 * t + 1);
#pragma unroll
  for (int e = 0; e < Each; ++e) {
    z[e][0] *= even;
    z[e][1] *= odd;
    z[e][2] *= even;
    z[e][3] *= odd;
  }
}

// The histogram as bf16 pairs {high, low}, together 16 bits of mantissa, in its own place.
template <int D, int Heads>
AKV_DEVICE void split_histogram(const Piecework<D, Heads>& w, const Running& state) {
  const int words = w.histogram_words();
#pragma unroll
  for (int h = 0; h < Heads; ++h) {
    const float unit = power_of_two(-__shfl_sync(0xffffffffu, state.fixed, h));
    for (int i = w.tid; i < words; i += kThreads) {
      const float x = static_cast<float>(w.state().histogram[h * words + i]) * unit;
      const uint32_t high = pack_bf16x2(x, 0.0f);
      const uint32_t low = pack_bf16x2(x - low_bf16(high), 0.0f);
      w.state().histogram[h * words + i] = static_cast<int32_t>(low_pair(high, low));
    }
  }
}

// o += 16 bins x their anchors' words: coordinates 2g and 2g + 1 of a tile in rows, anchors along
// k.
AKV_DEVICE void multiply_bins(const int32_t* bins, const uint32_t (&x)[4], float (&o)[4]) {
  const int2 p = *reinterpret_cast<const int2*>(bins);
  const int2 q = *reinterpret_cast<const int2*>(bins + 8);
  const auto px = static_cast<uint32_t>(p.x), py = static_cast<uint32_t>(p.y);
  const auto qx = static_cast<uint32_t>(q.x), qy = static_cast<uint32_t>(q.y);
  const uint32_t high[2] = {low_pair(px, py), low_pair(qx, qy)};
  const uint32_t low[2] = {high_pair(px, py), high_pair(qx, qy)};
  const uint32_t a[4] = {low_pair(x[0], x[1]), high_pair(x[0], x[1]), low_pair(x[2], x[3]),
                         high_pair(x[2], x[3])};
  mma_bf16(o, a, high);
  mma_bf16(o, a, low);
}

// o += histogram x anchors, over the warp's share of groups of 16. A thread reads anchors 2t, 2t +
// 1, 2t + 8, 2t + 9 of each: four loads at fixed distances, but in the last group, which may be
// short.
template <int D, int Heads>
AKV_DEVICE void histogram_times_anchors(const Piecework<D, Heads>& w,
                                        float (&o)[Tiles<D>::kEach][4]) {
  if (Tiles<D>::idle(w.warp)) return;
  constexpr int kRow = D / 2;  // words
  constexpr int kStep = Tiles<D>::kShares * 16;
  const int anchors = w.state().anchors;
  const auto* words = reinterpret_cast<const uint32_t*>(w.state().head.value.anchors) +
                      Tiles<D>::first(w.warp) * 8 + w.g;
  const int32_t* bins = w.state().histogram + w.g % Heads * w.histogram_words() + 2 * w.t;
  int at = Tiles<D>::share(w.warp) * 16;
#pragma unroll 2
  for (; at + 16 <= anchors; at += kStep) {
    const uint32_t* row = words + (at + 2 * w.t) * kRow;
#pragma unroll
    for (int e = 0; e < Tiles<D>::kEach; ++e, row += 8) {
      const uint32_t x[4] = {__ldg(row), __ldg(row + kRow), __ldg(row + 8 * kRow),
                             __ldg(row + 9 * kRow)};
      multiply_bins(bins + at, x, o[e]);
    }
  }
  if (at >= anchors) return;
#pragma unroll
  for (int e = 0; e < Tiles<D>::kEach; ++e) {
    uint32_t x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int anchor = at + 2 * w.t + i % 2 + i / 2 * 8;
      x[i] = __ldg(words + (anchor < anchors ? anchor : anchors - 1) * kRow + e * 8);
    }
    multiply_bins(bins + at, x, o[e]);
  }
}

// Where warps share a tile, their sums meet in the first one's registers.
template <int D, int Heads>
AKV_DEVICE void join_shares(const Piecework<D, Heads>& w, float (&z)[Tiles<D>::kEach][4]) {
  using L = Layout<D, Heads>;
  if constexpr (Tiles<D>::kShares > 1) {
    static_assert(Tiles<D>::kShares == 2);
    auto* other = w.template at<float4>(L::kDots) + Tiles<D>::first(w.warp) * 32 + w.lane;
    __syncthreads();
#pragma unroll
    for (int e = 0; e < Tiles<D>::kEach; ++e) {
      if (Tiles<D>::share(w.warp) != 1) continue;
      other[e * 32] = make_float4(z[e][0], z[e][1], z[e][2], z[e][3]);
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < Tiles<D>::kEach; ++e) {
      if (Tiles<D>::share(w.warp) != 0) continue;
      const float4 x = other[e * 32];
      z[e][0] += x.x;
      z[e][1] += x.y;
      z[e][2] += x.z;
      z[e][3] += x.w;
    }
  }
}

// Accumulators to the piece's partial result: rows are coordinates row_step * g and
// row_step * g + second of the tile.
template <int D, int Heads>
AKV_DEVICE void write_tiles(const Piecework<D, Heads>& w, const float (&z)[Tiles<D>::kEach][4],
                            int row_step, int second, float* out) {
  if (Tiles<D>::share(w.warp) != 0) return;
#pragma unroll
  for (int e = 0; e < Tiles<D>::kEach; ++e) {
    const int d = (Tiles<D>::first(w.warp) + e) * 16 + row_step * w.g;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int head = 2 * w.t + i % 2;
      if (head < w.state().heads) out[head * partial_stride(D) + d + i / 2 * second] = z[e][i];
    }
  }
}

}  // namespace akv::kernels::cuda::decode
