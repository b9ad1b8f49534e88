// Queries of a piece as MMA operands: rotated back per tile for the anchors, by U for the codes.
#pragma once

#include "kernels/cuda/decode_attention/state.h"

namespace akv::kernels::cuda::decode {

// A power of two that brings x below 1 in magnitude; 1 for 0.
AKV_DEVICE float unit_scale(float largest) {
  return largest == 0.0f ? 1.0f : power_of_two(static_cast<float>(-exponent_above(largest)));
}

// B operands of the code products for head n: <U q, level> with the code words of a row dealt out
// to lanes t = word % 4. A 2-bit word w gives four steps s of codes {s, s + 4} {s + 8, s + 12}, a
// 4-bit word two steps of four neighbours: what codes.h unpacks with the fewest instructions.
template <int D, int Heads>
AKV_DEVICE void write_code_fragments(const Piecework<D, Heads>& w, const float* uq, float scale) {
  using L = Layout<D, Heads>;
  auto* two = w.template at<uint32_t>(L::kCodeFragments2);
  auto* four = w.template at<uint32_t>(L::kCodeFragments4);
  const auto pair = [&](int a, int b, bool inside) {
    return inside ? pack_half2(uq[a] * scale, uq[b] * scale) : 0u;
  };
  for (int i = w.lane; i < L::kWords2 * 32; i += 32) {  // [word][step][t][register]
    const int word = i / 32 * 4 + i / 2 % 4, step = i / 8 % 4, reg = i % 2;
    const int d = word * 16 + step + 8 * reg;
    two[((i / 32 * 2 + step / 2) * 32 + w.warp * 4 + i / 2 % 4) * 4 + step % 2 * 2 + reg] =
        pair(d, d + 4, word < D / 16);
  }
  for (int i = w.lane; i < L::kWords4 * 16; i += 32) {  // [word][t][step][register]
    const int word = i / 16 * 4 + i / 4 % 4, reg = i % 4;
    const int d = word * 8 + 2 * reg;
    four[(i / 16 * 32 + w.warp * 4 + i / 4 % 4) * 4 + reg] = pair(d, d + 1, word < D / 8);
  }
}

// Warp n prepares query head n of the part; heads that are not there are zero. Per head the base-2
// logit of a unit of the anchor's and of the code's dot product.
template <int D, int Heads>
AKV_DEVICE void load_queries(const Piecework<D, Heads>& w) {
  using L = Layout<D, Heads>;
  const int n = w.warp;
  float* query = w.template at<float>(L::kQuery) + n * D;
  float* uq = w.template at<float>(L::kDots) + n * D;
  float* units = w.template at<float>(L::kUnitsOfHeads);
  float largest = 0;
  for (int d = w.lane; d < D; d += 32) {
    const float x = n < w.state().heads ? __ldg(w.state().q + n * D + d) : 0.0f;
    largest = fmaxf(largest, fabsf(x));
    uq[d] = x * __ldg(w.state().signs + d);
  }
  const float scale = unit_scale(warp_max(largest));
  const float to_base2 = 1.4426950408889634f * rsqrtf(static_cast<float>(D));
  for (int c = w.lane; c < D; c += 32) {  // in the order of rotation: all x, then all y
    const int d = c < D / 2 ? x_of_pair<D>(w.order(), c) : y_of_pair<D>(w.order(), c - D / 2);
    query[c] = n < w.state().heads ? __ldg(w.state().q + n * D + d) * scale : 0.0f;
  }
  if (w.lane == 0) units[n] = to_base2 / scale;
  if (w.state().post == 0) return;
  warp_hadamard<D>(uq, w.lane);
  largest = 0;
  for (int d = w.lane; d < D; d += 32) largest = fmaxf(largest, fabsf(uq[d]));
  const float code_scale = unit_scale(warp_max(largest));
  write_code_fragments(w, uq, code_scale);
  if (w.lane == 0) units[8 + n] = to_base2 / code_scale;
}

// Of the chunk at base, R_T^T q for each tile's first position T, as B operands.
template <int D, int Heads>
AKV_DEVICE void fill_query_fragments(const Piecework<D, Heads>& w, int base) {
  using L = Layout<D, Heads>;
  constexpr int kPerTile = Heads * (D / 8);
  auto* fragments = w.template at<uint4>(L::kQueryFragments);
  const float* query = w.template at<float>(L::kQuery);
  for (int i = w.tid; i < kChunk / kTile * kPerTile; i += kThreads) {
    const int tile = i / kPerTile, n = i % kPerTile / (D / 8), u = i % (D / 8);
    if (base + tile * kTile >= w.state().end) break;
    const Angles4 a = angles4(w.args->rope, base + tile * kTile, 4 * u);
    const float4 x = *reinterpret_cast<const float4*>(query + n * D + 4 * u);
    const float4 y = *reinterpret_cast<const float4*>(query + n * D + D / 2 + 4 * u);
    uint4 r;
    r.x = pack_half2(x.x * a.cos[0] + y.x * a.sin[0], x.y * a.cos[1] + y.y * a.sin[1]);
    r.y = pack_half2(y.x * a.cos[0] - x.x * a.sin[0], y.y * a.cos[1] - x.y * a.sin[1]);
    r.z = pack_half2(x.z * a.cos[2] + y.z * a.sin[2], x.w * a.cos[3] + y.w * a.sin[3]);
    r.w = pack_half2(y.z * a.cos[2] - x.z * a.sin[2], y.w * a.cos[3] - x.w * a.sin[3]);
    fragments[(tile * L::kUnits + u / 4) * 32 + n * 4 + u % 4] = r;
  }
}

// Operands of heads beyond Heads are never written again.
template <int D, int Heads>
AKV_DEVICE void clear_query_fragments(const Piecework<D, Heads>& w) {
  using L = Layout<D, Heads>;
  auto* fragments = w.template at<uint4>(L::kQueryFragments);
  for (int i = w.tid; i < kChunk / kTile * L::kUnits * 32; i += kThreads) {
    fragments[i] = make_uint4(0, 0, 0, 0);
  }
}

}  // namespace akv::kernels::cuda::decode
