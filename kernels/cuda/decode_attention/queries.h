// Queries of a piece as MMA operands: rotated back per tile for the anchors, by U for the codes.
#pragma once

#include "kernels/cuda/decode_attention/state.h"

namespace akv::kernels::cuda::decode {

// A power of two that brings x below 1 in magnitude; 1 for 0.
AKV_DEVICE float unit_scale(float largest) {
  return largest == 0.0f ? 1.0f : power_of_two(-exponent_above(largest));
}

// Column of head n among the eight of an MMA: thread t then has head t, and head t + 4 beside it.
AKV_DEVICE int column_of(int n) { return 2 * (n & 3) + (n >> 2); }

// B operands of the 4-bit code products for head n, halves: a word gives two steps of four
// neighbours, word % 4 = lane t.
template <int D, int Heads>
AKV_DEVICE void write_code_fragments4(const Piecework<D, Heads>& w, const float* uq, float scale) {
  using L = Layout<D, Heads>;
  auto* four = w.template at<uint32_t>(L::kCodeFragments4);
  for (int i = w.lane; i < L::kWords4 * 16; i += 32) {  // [word][t][step][register]
    const int word = i / 16 * 4 + i / 4 % 4, reg = i % 4;
    const int d = word * 8 + 2 * reg;
    four[(i / 16 * 32 + column_of(w.warp) * 4 + i / 4 % 4) * 4 + reg] =
        word < D / 8 ? pack_half2(uq[d] * scale, uq[d + 1] * scale) : 0u;
  }
}

// The same of the 2-bit products, in signed bytes: U q in units of 1 / scale is 256 high + low, and
// each half is a column. A word w gives two steps, its even and its odd codes.
template <int D, int Heads>
AKV_DEVICE void write_code_fragments2(const Piecework<D, Heads>& w, const float* uq, float scale) {
  using L = Layout<D, Heads>;
  auto* two = w.template at<uint32_t>(L::kCodeFragments2) + w.warp / 4 * (L::kWords2 * 128);
  for (int i = w.lane; i < L::kWords2 * 16; i += 32) {  // [word][t][step][register]
    const int word = i / 16 * 4 + i / 4 % 4, step = i / 2 % 2, reg = i % 2;
    uint32_t high = 0, low = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int d = word * 16 + 8 * reg + 2 * k + step;
      const int x = word < D / 16 ? __float2int_rn(uq[d] * scale) : 0;
      const int upper = (x + 128) >> 8;
      high |= (static_cast<uint32_t>(upper) & 255u) << (8 * k);
      low |= (static_cast<uint32_t>(x - 256 * upper) & 255u) << (8 * k);
    }
    uint32_t* out = two + (i / 16 * 32 + 8 * (w.warp % 4) + i / 4 % 4) * 4 + i % 4;
    out[0] = high;
    out[16] = low;
  }
}

// The query of head n in the order of rotation, and its slow pairs turned back by the middle of a
// tile on top (as the polynomials count from there), times `scale`.
template <int D, int Heads>
AKV_DEVICE void order_query(const Piecework<D, Heads>& w, int n, float scale) {
  using L = Layout<D, Heads>;
  using B = Bands<D>;
  float* query = w.template at<float>(L::kQuery) + n * D;
  float* slow = w.template at<float>(L::kSlowQuery) + n * 2 * B::kSlowPairs;
  const DeviceRope& rope = w.args->rope;
  for (int j = w.lane; j < D / 2; j += 32) {
    const float* q = w.state().q + n * D;
    const bool there = n < w.state().heads;
    float x = there ? __ldg(q + x_of_pair<D>(w.order(), j)) * scale : 0.0f;
    float y = there ? __ldg(q + y_of_pair<D>(w.order(), j)) * scale : 0.0f;
    query[j] = x;
    query[D / 2 + j] = y;
    if (j < B::kFirstSlowPair) continue;
    if (j < rope.half) {
      // The middle of a chunk is turned to in steps: the table may end at position 127.
      const float* row = rope.rows + kTile / 2 * 2 * rope.half + j;
      const float c = __ldg(row), s = __ldg(row + rope.half);
      for (int i = 0; i < (w.state().wide != 0 ? kChunk / kTile : 1); ++i) {
        const float turned = x * c + y * s;
        y = y * c - x * s;
        x = turned;
      }
    }
    slow[j - B::kFirstSlowPair] = x;
    slow[j - B::kFirstSlowPair + B::kSlowPairs] = y;
  }
}

// Warp n prepares query head n of the part; heads that are not there are zero. Per head the base-2
// logit of a unit of the anchor's dot product, and of the codes' of 2 and of 4 bits.
template <int D, int Heads>
AKV_DEVICE void load_queries(const Piecework<D, Heads>& w) {
  using L = Layout<D, Heads>;
  const int n = w.warp;
  if (n >= Heads) return;
  float* uq = w.template at<float>(L::kDots) + n * D;
  float* units = w.template at<float>(L::kUnitsOfHeads);
  const float to_base2 = 1.4426950408889634f * rsqrtf(static_cast<float>(D));
  float largest = 0;
  for (int d = w.lane; d < D; d += 32) {
    const float x = n < w.state().heads ? __ldg(w.state().q + n * D + d) * to_base2 : 0.0f;
    largest = fmaxf(largest, fabsf(x));
    uq[d] = x * __ldg(w.state().signs + d);
  }
  const float scale = unit_scale(warp_max(largest));
  order_query(w, n, scale * to_base2);
  if (w.lane == 0) units[n] = 1.0f / scale;
  if (w.state().post == 0) return;
  warp_hadamard<D>(uq, w.lane);
  largest = 0;
  for (int d = w.lane; d < D; d += 32) largest = fmaxf(largest, fabsf(uq[d]));
  const float code_scale = unit_scale(warp_max(largest));
  write_code_fragments2(w, uq, code_scale * kCodeQuerySteps);
  write_code_fragments4(w, uq, code_scale);
  if (w.lane != 0) return;
  units[8 + n] = kKeyCodeUnit / (code_scale * kCodeQuerySteps);
  units[16 + n] = 1.0f / code_scale;
}

// Series of the slow pairs' cos and sin over half a tile, for all tiles.
template <int D, int Heads>
AKV_DEVICE void write_slow_series(const Piecework<D, Heads>& w) {
  using B = Bands<D>;
  auto* series = w.template at<float4>(Layout<D, Heads>::kSlowSeries);
  const float half = static_cast<float>(w.state().wide != 0 ? kChunk / 2 : kTile / 2);
  for (int j = w.tid; j < B::kSlowPairs; j += kThreads) {
    const bool cubic = B::powers(B::kFast + j / 16) == 2;
    const float angle = half * slow_angle(w.args->rope, B::kFirstSlowPair + j);
    series[j] =
        w.state().steep != 0 ? make_float4(1.0f, 0.0f, 0.0f, 0.0f) : slow_series(angle, cubic);
  }
}

// Four pairs of a query, turned back by the angles: x and y of each.
struct Pairs4 {
  float x[4];
  float y[4];
};
AKV_DEVICE Pairs4 turned_back(const float4& x, const float4& y, const Angles4& a) {
  const float xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
  Pairs4 r;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    r.x[i] = xs[i] * a.cos[i] + ys[i] * a.sin[i];
    r.y[i] = ys[i] * a.cos[i] - xs[i] * a.sin[i];
  }
  return r;
}
AKV_DEVICE uint4 unit_of(const Pairs4& p) {
  return make_uint4(pack_half2(p.x[0], p.x[1]), pack_half2(p.y[0], p.y[1]),
                    pack_half2(p.x[2], p.x[3]), pack_half2(p.y[2], p.y[3]));
}

// Of the chunk at base, R_T^T q of the fast units for each tile's first position T, as B operands;
// by `threads` threads from `first` on.
template <int D, int Heads>
AKV_DEVICE void fill_fast_fragments(const Piecework<D, Heads>& w, int base, int first,
                                    int threads) {
  using L = Layout<D, Heads>;
  constexpr int kUnits = 4 * Bands<D>::kFast, kPerTile = Heads * kUnits;
  auto* fragments = w.template at<uint4>(L::kQueryFragments);
  const float* query = w.template at<float>(L::kQuery);
  for (int i = w.tid - first; i < kChunk / kTile * kPerTile; i += threads) {
    const auto index = static_cast<unsigned>(i);  // of which division is a shift
    const int tile = static_cast<int>(index / kPerTile), u = static_cast<int>(index % kUnits);
    const int n = static_cast<int>(index % kPerTile / kUnits), v = u >> 2;
    if (base + tile * kTile >= w.state().end) break;
    const Angles4 a = angles4(w.args->rope, base + tile * kTile, 4 * u);
    const float4 x = *reinterpret_cast<const float4*>(query + n * D + 4 * u);
    const float4 y = *reinterpret_cast<const float4*>(query + n * D + D / 2 + 4 * u);
    const int place =
        L::kCrossed ? (v >> 1) * 32 + (2 * n + (v & 1)) * 4 : v * 32 + column_of(n) * 4;
    fragments[tile * L::kFastFragments + place + (u & 3)] = unit_of(turned_back(x, y, a));
  }
}

// The powers of four slow pairs, from their sums with the queries turned back to a tile's middle.
AKV_DEVICE void write_powers(const Pairs4& q, const float4* series, bool cubic, uint4* out) {
  Pairs4 power[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 c = series[i];
    power[0].x[i] = q.x[i] * c.x;
    power[0].y[i] = q.y[i] * c.x;
    power[1].x[i] = q.y[i] * c.y;
    power[1].y[i] = -q.x[i] * c.y;
    power[2].x[i] = q.x[i] * c.z;
    power[2].y[i] = q.y[i] * c.z;
    power[3].x[i] = q.y[i] * c.w;
    power[3].y[i] = -q.x[i] * c.w;
  }
  out[0] = unit_of(power[0]);
  out[4] = unit_of(power[1]);
  if (!cubic) return;
  out[32] = unit_of(power[2]);
  out[36] = unit_of(power[3]);
}

// B operands of the slow units: columns are heads times powers. One set serves the whole chunk if
// the angles are small enough.
template <int D, int Heads>
AKV_DEVICE void fill_slow_fragments(const Piecework<D, Heads>& w, int base, int first,
                                    int threads) {
  using L = Layout<D, Heads>;
  using B = Bands<D>;
  constexpr int kUnits = 4 * B::kSlow, kPerTile = Heads * kUnits;
  auto* fragments = w.template at<uint4>(L::kSlowFragments);
  const auto* series = w.template at<float4>(L::kSlowSeries);
  const float* query = w.template at<float>(L::kSlowQuery);
  const int tiles = w.state().wide != 0 ? 1 : kChunk / kTile;
  for (int i = w.tid - first; i < tiles * kPerTile; i += threads) {
    const auto index = static_cast<unsigned>(i);
    const int tile = static_cast<int>(index / kPerTile), u = static_cast<int>(index % kUnits);
    const int n = static_cast<int>(index % kPerTile / kUnits);
    if (base + tile * kTile >= w.state().end) break;
    const Angles4 a = angles4(w.args->rope, base + tile * kTile, B::kFirstSlowPair + 4 * u);
    const float* q = query + n * 2 * B::kSlowPairs + 4 * u;
    const float4 x = *reinterpret_cast<const float4*>(q);
    const float4 y = *reinterpret_cast<const float4*>(q + B::kSlowPairs);
    const int v = B::kFast + (u >> 2);
    const int at = ((n >> 2) * B::kPowers + B::powers_before(v)) * 32 + 8 * (n & 3) + (u & 3);
    write_powers(turned_back(x, y, a), series + 4 * u, B::powers(v) == 2,
                 fragments + tile * L::kSlowFragmentsOfTile + at);
  }
}

// Columns of heads that no thread fills are never written again.
template <int D, int Heads>
AKV_DEVICE void clear_query_fragments(const Piecework<D, Heads>& w) {
  using L = Layout<D, Heads>;
  auto* fragments = w.template at<uint4>(L::kQueryFragments);
  for (int i = w.tid; i < kChunk / kTile * L::kFastFragments; i += kThreads) {
    fragments[i] = make_uint4(0, 0, 0, 0);
  }
  auto* four = w.template at<uint4>(L::kCodeFragments4);
  for (int i = w.tid; i < L::kWords4 * 32; i += kThreads) four[i] = make_uint4(0, 0, 0, 0);
}

}  // namespace akv::kernels::cuda::decode
