// Sums of a block in MMA accumulators, [coordinates][heads]: every warp has its own share of all of
// them (or of one of two parts, by warp % 2), and at a piece's end the shares are joined.
#pragma once

#include "kernels/cuda/decode_attention/state.h"

namespace akv::kernels::cuda::decode {

// Adds up the warps' sums in a fixed order; the first warp (of each part) has them then. Barriers
// before and after.
template <int Parts, int D, int Heads, int Tiles>
AKV_DEVICE void join_warps(const Piecework<D, Heads>& w, float (&z)[Tiles][4]) {
  using L = Layout<D, Heads>;
  static_assert(int64_t{kWarps} / 2 * Tiles * 32 * 16 <= 2 * int64_t{Heads} * L::kDotStride * 4);
  auto* place = w.template at<float4>(L::kDots) + w.lane;
#pragma unroll 1
  for (int half = kWarps / 2; half >= Parts; half /= 2) {
    __syncthreads();
    if (w.warp >= half && w.warp < 2 * half) {
#pragma unroll
      for (int i = 0; i < Tiles; ++i) {
        place[((w.warp - half) * Tiles + i) * 32] = make_float4(z[i][0], z[i][1], z[i][2], z[i][3]);
      }
    }
    __syncthreads();
    if (w.warp < half) {
#pragma unroll
      for (int i = 0; i < Tiles; ++i) {
        const float4 x = place[(w.warp * Tiles + i) * 32];
        z[i][0] += x.x;
        z[i][1] += x.y;
        z[i][2] += x.z;
        z[i][3] += x.w;
      }
    }
  }
  __syncthreads();
}

// The first warp's sums, times a factor, to the piece's partial result: columns are heads, places
// those of Map.
template <class Map, int D, int Heads, int Tiles>
AKV_DEVICE void write_tiles(const Piecework<D, Heads>& w, const float (&z)[Tiles][4], float factor,
                            float* out) {
  if (w.warp >= Map::kParts) return;
#pragma unroll
  for (int i = 0; i < Tiles; ++i) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int head = 2 * w.t + k % 2, d = Map::coordinate(i, w.warp, w.g, k / 2);
      if (head < w.state().heads && d < D) out[head * partial_stride(D) + d] = z[i][k] * factor;
    }
  }
}

}  // namespace akv::kernels::cuda::decode
