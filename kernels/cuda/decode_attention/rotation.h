// Anchors and queries in the order of rotation, and the Hadamard rotation of the codec.
//
// A row of D numbers is D/2 pairs (x_j, y_j) that RoPE turns; dimensions that it leaves alone pair
// up behind them with an angle of 0. Unit u of a row, 16 bytes, holds pairs 4u .. 4u + 3 as halves
// {x0 x1} {y0 y1} {x2 x3} {y2 y3}: both members of a pair are in the registers of one thread, and a
// unit is the A (or B) operand of two MMA steps, whichever way the model pairs its dimensions.
#pragma once

#include "kernels/cuda/decode_attention/arguments.h"
#include "kernels/cuda/decode_attention/registers.h"

namespace akv::kernels::cuda::decode {

struct PairOrder {
  int half = 0;
  bool interleaved = false;
};

template <int D>
AKV_DEVICE int x_of_pair(PairOrder order, int j) {
  if (j >= order.half) return order.half + j;
  return order.interleaved ? 2 * j : j;
}
template <int D>
AKV_DEVICE int y_of_pair(PairOrder order, int j) {
  if (j >= order.half) return D / 2 + j;
  return order.interleaved ? 2 * j + 1 : order.half + j;
}

AKV_DEVICE uint32_t two_bf16(const bf16* row, int a, int b) {
  const auto* bits = reinterpret_cast<const uint16_t*>(row);
  return __ldg(bits + a) | static_cast<uint32_t>(__ldg(bits + b)) << 16;
}

// Unit u of a bf16 row in the model's order, as halves in the order of rotation.
template <int D>
AKV_DEVICE uint4 anchor_unit(const bf16* row, int u, PairOrder order, int align) {
  uint4 r;
  if (2 * order.half != D) {
    const int j = 4 * u;
    r.x = two_bf16(row, x_of_pair<D>(order, j), x_of_pair<D>(order, j + 1));
    r.y = two_bf16(row, y_of_pair<D>(order, j), y_of_pair<D>(order, j + 1));
    r.z = two_bf16(row, x_of_pair<D>(order, j + 2), x_of_pair<D>(order, j + 3));
    r.w = two_bf16(row, y_of_pair<D>(order, j + 2), y_of_pair<D>(order, j + 3));
  } else if (order.interleaved) {
    const uint4 w = load16(row + 8 * u, align);
    r = make_uint4(low_pair(w.x, w.y), high_pair(w.x, w.y), low_pair(w.z, w.w),
                   high_pair(w.z, w.w));
  } else {
    const uint2 x = load8(row + 4 * u, align), y = load8(row + D / 2 + 4 * u, align);
    r = make_uint4(x.x, y.x, x.y, y.y);
  }
  return make_uint4(bf16x2_to_half2(r.x), bf16x2_to_half2(r.y), bf16x2_to_half2(r.z),
                    bf16x2_to_half2(r.w));
}

// cos and sin of pairs j .. j + 3 (j a multiple of 4) at a position.
struct Angles4 {
  float cos[4];
  float sin[4];
};
AKV_DEVICE Angles4 angles4(const DeviceRope& rope, int64_t position, int j) {
  Angles4 a;
  const float* row = rope.rows + position * 2 * rope.half;
  if (rope.half % 4 == 0 && j < rope.half) {
    const float4 c = __ldg(reinterpret_cast<const float4*>(row + j));
    const float4 s = __ldg(reinterpret_cast<const float4*>(row + rope.half + j));
    a = {{c.x, c.y, c.z, c.w}, {s.x, s.y, s.z, s.w}};
    return a;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool turned = j + i < rope.half;
    a.cos[i] = turned ? __ldg(row + j + i) : 1.0f;
    a.sin[i] = turned ? __ldg(row + rope.half + j + i) : 0.0f;
  }
  return a;
}

// Turns pair registers (x, y) by angles of which cos and sin are given.
AKV_DEVICE void turn_pair(uint32_t cos, uint32_t sin, uint32_t* x, uint32_t* y) {
  const __half2 a = half2_of(*x), b = half2_of(*y), c = half2_of(cos), s = half2_of(sin);
  *x = bits_of(__hfma2(__hneg2(b), s, __hmul2(a, c)));
  *y = bits_of(__hfma2(b, c, __hmul2(a, s)));
}
AKV_DEVICE void turn_unit(const uint32_t (&cos)[2], const uint32_t (&sin)[2], uint4* x) {
  turn_pair(cos[0], sin[0], &x->x, &x->y);
  turn_pair(cos[1], sin[1], &x->z, &x->w);
}

// x := H x / sqrt(B) on blocks of B = the largest power of two in D, by one warp. x is shared.
template <int D>
AKV_DEVICE void warp_hadamard(float* x, int lane) {
  constexpr int kBlock = D & -D;
#pragma unroll 1
  for (int half = 1; half < kBlock; half *= 2) {
    __syncwarp();
    for (int i = lane; i < D / 2; i += 32) {
      const int at = i / half * 2 * half + i % half;
      const float a = x[at], b = x[at + half];
      x[at] = a + b;
      x[at + half] = a - b;
    }
  }
  __syncwarp();
  const float norm = rsqrtf(static_cast<float>(kBlock));
  for (int i = lane; i < D; i += 32) x[i] *= norm;
  __syncwarp();
}

// Angles of a thread's two rows of a tile, tile positions 16 warp + g and + 8, for the fast units,
// in registers: a tile starts at a multiple of kTile, and it is the query that is turned back by
// that. With Crossed, odd rows have those of unit v ^ 1 in place v: keys.h loads them so.
template <int D, bool Crossed>
struct TileAngles {
  static constexpr int kUnits = Bands<D>::kFast;
  uint32_t cos[2][kUnits][2];
  uint32_t sin[2][kUnits][2];

  AKV_DEVICE void load(const DeviceRope& rope, int first_row, int t) {
    const int cross = Crossed ? first_row & 1 : 0;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int v = 0; v < kUnits; ++v) {
        const Angles4 a = angles4(rope, first_row + 8 * row, 4 * (4 * (v ^ cross) + t));
        pack(a, &cos[row][v], &sin[row][v]);
      }
    }
  }
  AKV_DEVICE static void pack(const Angles4& a, uint32_t (*c)[2], uint32_t (*s)[2]) {
    (*c)[0] = pack_half2(a.cos[0], a.cos[1]);
    (*c)[1] = pack_half2(a.cos[2], a.cos[3]);
    (*s)[0] = pack_half2(a.sin[0], a.sin[1]);
    (*s)[1] = pack_half2(a.sin[2], a.sin[3]);
  }
  // Turns a unit of the row that lies in place v.
  AKV_DEVICE void turn(int row, int v, uint4* x) const { turn_unit(cos[row][v], sin[row][v], x); }
};

}  // namespace akv::kernels::cuda::decode
