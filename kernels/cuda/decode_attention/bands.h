// Which pairs of a row are turned, and which are left to a polynomial of the position.
#pragma once

#include "kernels/cuda/decode_attention/registers.h"
#include "kernels/rope.h"

namespace akv::kernels::cuda::decode {

// RoPE turns the first pairs of a row fast and the others slowly (its angles per position fall from
// pair to pair). By units of 16 pairs:
//   fast   every token's anchor is turned by its angle;
//   slow   over the positions of a tile the angle moves so little that cos and sin are polynomials
//          of the position, of degree 3 or 1: the sum over pairs of each of its powers is a column
//          of the product with the queries, and the anchor stays as it is.
template <int D>
struct Bands {
  static constexpr int kUnits = D / 32;
  static constexpr int kFast = (kUnits + 1) / 2;
  static constexpr int kSlow = kUnits - kFast;
  static constexpr int kFirstSlowPair = 16 * kFast;
  static constexpr int kSlowPairs = 16 * kSlow;

  // Pairs of powers (0 and 1, 2 and 3) of a slow unit, and those of all before it.
  static constexpr int kCubic = kUnits >= 4 ? kUnits / 4 : kSlow;
  static constexpr int powers(int v) { return v - kFast < kCubic ? 2 : 1; }
  static constexpr int powers_before(int v) {
    return v - kFast < kCubic ? 2 * (v - kFast) : kCubic + v - kFast;
  }
  static constexpr int kPowers = powers_before(kUnits);

  // Most of the angle from a tile's middle to its end that the polynomials take: they are off by at
  // most angle^4 / 192 and angle^2 / 4.
  AKV_DEVICE static float most(int v) { return powers(v) == 2 ? 0.65f : 0.07f; }
};

// Angle of pair j per position; 1 if it is not a small one.
AKV_DEVICE float slow_angle(const DeviceRope& rope, int j) {
  if (j >= rope.half) return 0.0f;
  const float c = __ldg(rope.rows + 2 * rope.half + j), s = __ldg(rope.rows + 3 * rope.half + j);
  return c < 0.9f ? 1.0f : fabsf(s) * (1.0f + s * s * (1.0f / 6));
}

// cos and sin of angle * u for u in [-1, 1]: c0 + c2 u^2, s1 u + s3 u^3, the first terms of their
// Chebyshev series (Bessel functions of the angle, by their own series).
AKV_DEVICE float4 slow_series(float angle, bool cubic) {
  const float x = angle * angle;
  const float j0 = 1.0f - x * (0.25f - x * (1.0f / 64));
  const float j1 = angle * (1.0f - x * (0.125f - x * (1.0f / 192)));
  if (!cubic) return make_float4(j0, j1, 0.0f, 0.0f);
  const float j2 = x * 0.25f * (1.0f - x * (1.0f / 12));
  const float j3 = angle * x * (1.0f / 24) * (1.0f - x * (1.0f / 16));
  return make_float4(j0 + j2, j1 + 3.0f * j3, -2.0f * j2, -4.0f * j3);
}

}  // namespace akv::kernels::cuda::decode
