// Number formats and warp reductions of the codec's kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "kernels/cuda/codec.h"
#include "kernels/cuda/launch.h"
#include "kernels/types.h"

namespace akv::kernels::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ float widen(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}
// The two bf16 of a word, the low half first.
__device__ __forceinline__ float2 widen_pair(uint32_t pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

__device__ __forceinline__ uint16_t narrow(float x) {
  const __nv_bfloat16 y = __float2bfloat16_rn(x);
  uint16_t bits;
  memcpy(&bits, &y, sizeof(bits));
  return bits;
}
__device__ __forceinline__ uint32_t narrow_pair(float2 x) {
  const __nv_bfloat162 y = __floats2bfloat162_rn(x.x, x.y);
  uint32_t bits;
  memcpy(&bits, &y, sizeof(bits));
  return bits;
}

// True if one of the two bf16 of a word is NaN or infinite.
__device__ __forceinline__ bool not_finite(uint32_t pair) {
  return (pair & 0x7f80u) == 0x7f80u || (pair & 0x7f800000u) == 0x7f800000u;
}
__device__ __forceinline__ bool not_finite(uint4 eight) {
  return not_finite(eight.x) || not_finite(eight.y) || not_finite(eight.z) || not_finite(eight.w);
}

__device__ __forceinline__ bool is_finite(float x) {
  return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u;
}

__device__ __forceinline__ void raise(uint32_t* faults, uint32_t fault) { atomicOr(faults, fault); }

// x as the sum of three bf16, each the rest's nearest: all 24 bits of an f32 in normal range.
struct Planes {
  uint32_t plane[3];
};
__device__ __forceinline__ Planes split(float2 x) {
  Planes s;
#pragma unroll
  for (int p = 0; p < 3; ++p) {
    s.plane[p] = narrow_pair(x);
    const float2 taken = widen_pair(s.plane[p]);
    x.x -= taken.x;
    x.y -= taken.y;
  }
  return s;
}

template <class T>
__device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

// Draw j of SplitMix64(seed) (kernels/codec.h), by its number.
__device__ __forceinline__ uint64_t split_mix(uint64_t seed, uint64_t j) {
  uint64_t z = seed + (j + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// Rotates pair j of one f32 row in place by the angles `angles` (cos, then sin).
__device__ __forceinline__ void rotate_pair(const DeviceRope& rope, const float* angles, int j,
                                            float* row) {
  const int first = rope.pairs == RopePairs::kHalf ? j : 2 * j;
  const int second = rope.pairs == RopePairs::kHalf ? j + rope.half : 2 * j + 1;
  const float c = angles[j], s = angles[rope.half + j];
  const float a = row[first], b = row[second];
  row[first] = fmaf(a, c, -(b * s));
  row[second] = fmaf(a, s, b * c);
}

// Exclusive sum over the threads of a block of at most 1024, a multiple of 32, and the total.
// `shared` holds 33 values; every thread of the block takes part.
template <class T>
__device__ __forceinline__ T block_scan(T x, T* shared, T* total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  T sum = x;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const T below = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += below;
  }
  __syncthreads();  // of an earlier call's readers
  if (lane == 31) shared[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    const T own = lane < warps ? shared[lane] : T{};
    T running = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const T below = __shfl_up_sync(kAllLanes, running, step);
      if (lane >= step) running += below;
    }
    if (lane < warps) shared[lane] = running - own;
    if (lane == 31) shared[32] = running;
  }
  __syncthreads();
  *total = shared[32];
  return shared[warp] + sum - x;
}

}  // namespace akv::kernels::cuda
