// Number formats in device code: bf16 and f16 by their bits, loads and stores of a few elements.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/types.h"

namespace akv::kernels::cuda {

// Two bf16 in a word, the first in the low half.
__device__ __forceinline__ float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float bf16_high(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}
__device__ __forceinline__ float bf16_value(bf16 x) {
  return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
}

// Rounds to nearest even; a NaN stays one.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return static_cast<uint32_t>(__bfloat16_as_ushort(pair.x)) |
         static_cast<uint32_t>(__bfloat16_as_ushort(pair.y)) << 16;
}
__device__ __forceinline__ bf16 round_bf16(float x) {
  return bf16{__bfloat16_as_ushort(__float2bfloat16_rn(x))};
}

__device__ __forceinline__ float half_value(uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}

// Width elements to out, aligned to their own size.
template <int Width>
__device__ __forceinline__ void store(float* out, const float (&x)[Width]) {
  if constexpr (Width % 4 == 0) {
#pragma unroll
    for (int i = 0; i < Width; i += 4) {
      *reinterpret_cast<float4*>(out + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < Width; ++i) out[i] = x[i];
  }
}
template <int Width>
__device__ __forceinline__ void store(bf16* out, const float (&x)[Width]) {
  if constexpr (Width == 8) {
    *reinterpret_cast<uint4*>(out) = make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]),
                                                pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
  } else if constexpr (Width == 4) {
    *reinterpret_cast<uint2*>(out) = make_uint2(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]));
  } else {
#pragma unroll
    for (int i = 0; i < Width; ++i) out[i] = round_bf16(x[i]);
  }
}

template <int Width>
__device__ __forceinline__ void load(const float* in, float (&x)[Width]) {
  if constexpr (Width % 4 == 0) {
#pragma unroll
    for (int i = 0; i < Width; i += 4) {
      const float4 v = *reinterpret_cast<const float4*>(in + i);
      x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < Width; ++i) x[i] = in[i];
  }
}
template <int Width>
__device__ __forceinline__ void load(const bf16* in, float (&x)[Width]) {
  if constexpr (Width == 4) {
    const uint2 v = *reinterpret_cast<const uint2*>(in);
    x[0] = bf16_low(v.x), x[1] = bf16_high(v.x), x[2] = bf16_low(v.y), x[3] = bf16_high(v.y);
  } else {
#pragma unroll
    for (int i = 0; i < Width; ++i) x[i] = bf16_value(in[i]);
  }
}

// True where the pointers, of elements of the same count each, allow loads of four elements.
template <class... Pointers>
bool aligned_by_four(Pointers... pointers) {
  return (... && (reinterpret_cast<uintptr_t>(pointers) % (4 * sizeof(*pointers)) == 0));
}

}  // namespace akv::kernels::cuda
