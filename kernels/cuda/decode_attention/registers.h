// Pairs of 16-bit numbers in a register, loads of any alignment, powers of two.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "kernels/cuda/ptx.h"

namespace akv::kernels::cuda::decode {

#define AKV_DEVICE __device__ __forceinline__

AKV_DEVICE uint32_t bits_of(__half2 x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}
AKV_DEVICE uint32_t bits_of(__nv_bfloat162 x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}
AKV_DEVICE __half2 half2_of(uint32_t bits) {
  __half2 x;
  memcpy(&x, &bits, 4);
  return x;
}

AKV_DEVICE uint32_t pack_half2(float low, float high) {
  return bits_of(__floats2half2_rn(low, high));
}
AKV_DEVICE uint32_t pack_bf16x2(float low, float high) {
  return bits_of(__floats2bfloat162_rn(low, high));
}
AKV_DEVICE float low_bf16(uint32_t pair) { return __uint_as_float(pair << 16); }
AKV_DEVICE float high_bf16(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// Two bf16 as two halves: exact from 2^-14 to 65504.
AKV_DEVICE uint32_t bf16x2_to_half2(uint32_t pair) {
  return pack_half2(low_bf16(pair), high_bf16(pair));
}

// (a.low, b.low) and (a.high, b.high).
AKV_DEVICE uint32_t low_pair(uint32_t a, uint32_t b) { return prmt(a, b, 0x5410); }
AKV_DEVICE uint32_t high_pair(uint32_t a, uint32_t b) { return prmt(a, b, 0x7632); }

// Largest power of two that divides the address, up to 16.
AKV_DEVICE int alignment(const void* p) {
  const auto low = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p)) | 16u;
  return static_cast<int>(low & (~low + 1u));
}

AKV_DEVICE uint4* shared_at_u4(unsigned char* shared) { return reinterpret_cast<uint4*>(shared); }

// 8 or 16 bytes from an address that is a multiple of `align` (4, 8 or 16, the same for all
// threads), by the widest loads that it allows.
AKV_DEVICE uint2 load8(const void* p, int align) {
  if (align >= 8) return __ldg(static_cast<const uint2*>(p));
  const auto* words = static_cast<const uint32_t*>(p);
  return make_uint2(__ldg(words), __ldg(words + 1));
}
AKV_DEVICE uint4 load16(const void* p, int align) {
  if (align >= 16) return __ldg(static_cast<const uint4*>(p));
  const auto* bytes = static_cast<const uint8_t*>(p);
  const uint2 a = load8(bytes, align), b = load8(bytes + 8, align);
  return make_uint4(a.x, a.y, b.x, b.y);
}

// 32-bit words of a byte stream at any address. The word after is read only where the stream is not
// aligned, and then holds bytes of this one: nothing is touched but words that hold the stream.
struct CodeWords {
  const uint32_t* words;
  uint32_t shift;
  int next;

  AKV_DEVICE explicit CodeWords(const uint8_t* stream) {
    const auto address = reinterpret_cast<uintptr_t>(stream);
    words = reinterpret_cast<const uint32_t*>(address & ~uintptr_t{3});
    shift = static_cast<uint32_t>(address & 3) * 8;
    next = shift == 0 ? 0 : 1;
  }
  AKV_DEVICE uint32_t load(int index) const {
    const uint32_t word = __ldg(words + index);
    return next == 0 ? word : __funnelshift_r(word, __ldg(words + index + 1), shift);
  }
  // Four words at once: streams are mostly aligned.
  AKV_DEVICE void load4(const int (&index)[4], uint32_t (&x)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = __ldg(words + index[i]);
    if (next == 0) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i] = __funnelshift_r(x[i], __ldg(words + index[i] + 1), shift);
    }
  }
};

// 2^n; 0 below the normal numbers, at most 2^127.
AKV_DEVICE float power_of_two(int n) {
  const int e = n < -127 ? -127 : (n > 127 ? 127 : n);
  return __int_as_float((e + 127) << 23);
}
// The least whole n with x < 2^n, for x >= 0; at least -126.
AKV_DEVICE int exponent_above(float x) {
  return static_cast<int>((__float_as_uint(x) >> 23) & 255u) - 126;
}

AKV_DEVICE float warp_max(float x) {
  for (int offset = 16; offset > 0; offset /= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  }
  return x;
}
AKV_DEVICE float warp_sum(float x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

// Word i of a unit; i is known when compiling.
AKV_DEVICE uint32_t word_of(const uint4& x, int i) {
  return i == 0 ? x.x : (i == 1 ? x.y : (i == 2 ? x.z : x.w));
}

}  // namespace akv::kernels::cuda::decode
