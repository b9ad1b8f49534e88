// Stored weights as operands of mma m16n8k16, without a pass through f32.
//
// A sub-block is 32 columns of a row: two steps of 16 along k. The order of columns within it is
// ours to choose as long as activations follow (load_inputs of matmul_lowbit-inl.h): thread t of
// the four that share a row takes columns 4t .. 4t+3 in step 0 and 16 + 4t .. 16 + 4t + 3 in step
// 1, as the pairs (4t, 4t+2), (4t+1, 4t+3). Then one word of nibbles is masked and shifted into
// four registers. Codes become exact bf16 integers by an exponent's bits (0x4300 | n is 128 + n)
// and one subtraction; a sub-block's scale is applied to its sum. f16 is split in two bf16, f32 in
// three.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/convert.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/weights/blocks.h"
#include "kernels/types.h"

namespace akv::kernels::cuda {

// One row's part of a sub-block in one thread: [step * 2 + pair].
using RowCodes = uint32_t[4];

__device__ __forceinline__ uint32_t subtract_bf16x2(uint32_t a, uint32_t b) {
  const __nv_bfloat162 x(__ushort_as_bfloat16(static_cast<uint16_t>(a)),
                         __ushort_as_bfloat16(static_cast<uint16_t>(a >> 16)));
  const __nv_bfloat162 y(__ushort_as_bfloat16(static_cast<uint16_t>(b)),
                         __ushort_as_bfloat16(static_cast<uint16_t>(b >> 16)));
  const __nv_bfloat162 z = __hsub2(x, y);
  return static_cast<uint32_t>(__bfloat16_as_ushort(z.x)) |
         static_cast<uint32_t>(__bfloat16_as_ushort(z.y)) << 16;
}

// Bytes n of a word, n < 128, as bf16 integers n - Centre: pairs (0, 2) and (1, 3).
template <int Centre>
__device__ __forceinline__ void bytes_to_pairs(uint32_t bytes, uint32_t& even, uint32_t& odd) {
  constexpr uint32_t kOne = 0x4300u + Centre;  // bf16 of 128 + Centre, Centre < 128
  constexpr uint32_t kMinus = kOne | kOne << 16;
  even = subtract_bf16x2((bytes & 0x00ff00ffu) | 0x43004300u, kMinus);
  odd = subtract_bf16x2((bytes >> 8 & 0x00ff00ffu) | 0x43004300u, kMinus);
}

// Signed bytes: 128 + (n & 127) less 128, or less 256 where the sign bit is set.
__device__ __forceinline__ void signed_bytes_to_pairs(uint32_t bytes, uint32_t& even,
                                                      uint32_t& odd) {
  const uint32_t next = bytes >> 8;
  even = subtract_bf16x2((bytes & 0x007f007fu) | 0x43004300u, (bytes & 0x00800080u) | 0x43004300u);
  odd = subtract_bf16x2((next & 0x007f007fu) | 0x43004300u, (next & 0x00800080u) | 0x43004300u);
}

// Scales of a sub-block's two steps and what is added to every weight of it.
struct SubScale {
  float scale[2];
  float offset;
};

// Weights<Type>: kElements and kBytes of a stored block; kParts bf16 that a weight is the sum of;
// kScaled: codes are integers and have scales; kTwoScales: one per step; kOffset. load() takes
// thread t's codes of sub-block `sub` of a row at `row` (a block's border), scales() its scales.
template <TensorType Type>
struct Weights;

template <int Fifth, bool Offset>
struct NibbleWeights : NibbleBlock<Fifth, Offset> {
  using Base = NibbleBlock<Fifth, Offset>;
  static constexpr int kParts = 1;
  static constexpr bool kScaled = true, kTwoScales = false, kOffset = Offset;
  static constexpr int kCentre = Offset ? 0 : (Fifth != 0 ? 16 : 8);

  // Bits 0 .. 3 of x to bit 4 of the four bytes.
  __device__ static uint32_t spread(uint32_t x) {
    return (x << 4 & 0x10u) | (x << 11 & 0x1000u) | (x << 18 & 0x100000u) | (x << 25 & 0x10000000u);
  }
  __device__ static void load(const uint8_t* row, int sub, int t, RowCodes (&a)[1]) {
    const uint8_t* block = row + sub * Base::kBytes;
    const uint32_t word = load_word<Base::kAligned>(block + Base::kHead + 4 * t);
    uint32_t low = word & 0x0f0f0f0fu, high = word >> 4 & 0x0f0f0f0fu;
    if constexpr (Fifth != 0) {
      const uint32_t bits = load_word<Base::kAligned>(block + Base::kHead - 4) >> (4 * t);
      low |= spread(bits & 15);
      high |= spread(bits >> 16 & 15);
    }
    bytes_to_pairs<kCentre>(low, a[0][0], a[0][1]);
    bytes_to_pairs<kCentre>(high, a[0][2], a[0][3]);
  }
  __device__ static SubScale scales(const uint8_t* row, int sub) {
    const uint8_t* block = row + sub * Base::kBytes;
    const float scale = load_half(block);
    return {{scale, scale}, Offset ? load_half(block + 2) : 0.0f};
  }
};
template <>
struct Weights<TensorType::kQ4_0> : NibbleWeights<0, false> {};
template <>
struct Weights<TensorType::kQ4_1> : NibbleWeights<0, true> {};
template <>
struct Weights<TensorType::kQ5_0> : NibbleWeights<4, false> {};
template <>
struct Weights<TensorType::kQ5_1> : NibbleWeights<4, true> {};

template <>
struct Weights<TensorType::kQ8_0> : Block<TensorType::kQ8_0> {
  static constexpr int kParts = 1;
  static constexpr bool kScaled = true, kTwoScales = false, kOffset = false;

  __device__ static void load(const uint8_t* row, int sub, int t, RowCodes (&a)[1]) {
    const uint8_t* codes = row + sub * kBytes + 2 + 4 * t;
    signed_bytes_to_pairs(load_even_4(codes), a[0][0], a[0][1]);
    signed_bytes_to_pairs(load_even_4(codes + 16), a[0][2], a[0][3]);
  }
  __device__ static SubScale scales(const uint8_t* row, int sub) {
    const float scale = load_half(row + sub * kBytes);
    return {{scale, scale}, 0.0f};
  }
};

template <int Fifth>
struct KWeights : KBlock<Fifth> {
  using Base = KBlock<Fifth>;
  static constexpr int kParts = 1;
  static constexpr bool kScaled = true, kTwoScales = false, kOffset = true;

  __device__ static void load(const uint8_t* row, int sub, int t, RowCodes (&a)[1]) {
    const uint8_t* block = row + sub / 8 * Base::kBytes;
    const int u = sub % 8;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int at = 16 * step + 4 * t;
      const uint32_t word = load_word<true>(block + 16 + Fifth + u / 2 * 32 + at);
      uint32_t bytes = word >> (u % 2 * 4) & 0x0f0f0f0fu;
      if constexpr (Fifth != 0) {
        bytes |= (load_word<true>(block + 16 + at) >> u & 0x01010101u) << 4;
      }
      bytes_to_pairs<0>(bytes, a[0][2 * step], a[0][2 * step + 1]);
    }
  }
  __device__ static SubScale scales(const uint8_t* row, int sub) {
    const uint8_t* block = row + sub / 8 * Base::kBytes;
    const ScaleMin packed = scale_min_k(block + 4, sub % 8);
    const float scale = load_half(block) * static_cast<float>(packed.scale);
    return {{scale, scale}, -load_half(block + 2) * static_cast<float>(packed.min)};
  }
};
template <>
struct Weights<TensorType::kQ4_K> : KWeights<0> {};
template <>
struct Weights<TensorType::kQ5_K> : KWeights<32> {};

template <>
struct Weights<TensorType::kQ6_K> : Block<TensorType::kQ6_K> {
  static constexpr int kParts = 1;
  static constexpr bool kScaled = true, kTwoScales = true, kOffset = false;

  __device__ static void load(const uint8_t* row, int sub, int t, RowCodes (&a)[1]) {
    const uint8_t* block = row + sub / 8 * kBytes;
    const int side = sub % 8 / 4, r = sub % 4;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int at = 16 * step + 4 * t;
      const uint32_t low = load_even_4(block + side * 64 + r % 2 * 32 + at) >> (r / 2 * 4);
      const uint32_t high = load_even_4(block + 128 + side * 32 + at) >> (2 * r);
      const uint32_t bytes = (low & 0x0f0f0f0fu) | (high & 0x03030303u) << 4;
      bytes_to_pairs<32>(bytes, a[0][2 * step], a[0][2 * step + 1]);
    }
  }
  __device__ static SubScale scales(const uint8_t* row, int sub) {
    const uint8_t* block = row + sub / 8 * kBytes;
    const float scale = load_half(block + 208);
    const uint32_t pair = load_even_2(block + 192 + sub % 8 * 2);
    return {{scale * static_cast<float>(static_cast<int8_t>(pair)),
             scale * static_cast<float>(static_cast<int8_t>(pair >> 8))},
            0.0f};
  }
};

// x as the sum of Parts bf16: the first ones cut off, the last one rounded. Three hold all of an
// f32, two all of an f16. Each call takes what is left of a pair.
template <bool Last>
__device__ __forceinline__ uint32_t take_part(float& low, float& high) {
  if constexpr (Last) return pack_bf16(low, high);
  const uint32_t pair = prmt(__float_as_uint(low), __float_as_uint(high), 0x7632);
  low -= bf16_low(pair);
  high -= bf16_high(pair);
  return pair;
}

template <TensorType Type>
struct PlainWeights {
  static constexpr int kElements = 32;
  static constexpr int kElementBytes = Type == TensorType::kF32 ? 4 : 2;
  static constexpr int kBytes = 32 * kElementBytes;
  static constexpr int kParts = Type == TensorType::kF32 ? 3 : (Type == TensorType::kF16 ? 2 : 1);
  static constexpr bool kScaled = false, kTwoScales = false, kOffset = false;

  // `columns`: how many of the sub-block's 32 the row has; the others are zero.
  __device__ static void load(const uint8_t* row, int sub, int t, RowCodes (&a)[kParts],
                              int columns) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int at = 16 * step + 4 * t;
      uint32_t words[kElementBytes] = {};
      if (at < columns) {
        const uint8_t* from = row + sub * kBytes + at * kElementBytes;
#pragma unroll
        for (int i = 0; i < kElementBytes; ++i) words[i] = load_word<true>(from + 4 * i);
      }
      if constexpr (Type == TensorType::kBF16) {
        a[0][2 * step] = prmt(words[0], words[1], 0x5410);
        a[0][2 * step + 1] = prmt(words[0], words[1], 0x7632);
      } else {
        split<0>(element(words, 0), element(words, 2), a, 2 * step);
        split<0>(element(words, 1), element(words, 3), a, 2 * step + 1);
      }
    }
  }

 private:
  __device__ static float element(const uint32_t (&words)[kElementBytes], int i) {
    if constexpr (Type == TensorType::kF32) return __uint_as_float(words[i]);
    return half_value(static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16)));
  }
  template <int Part>
  __device__ static void split(float low, float high, RowCodes (&a)[kParts], int at) {
    a[Part][at] = take_part<Part + 1 == kParts>(low, high);
    if constexpr (Part + 1 < kParts) split<Part + 1>(low, high, a, at);
  }
};
template <>
struct Weights<TensorType::kF32> : PlainWeights<TensorType::kF32> {};
template <>
struct Weights<TensorType::kF16> : PlainWeights<TensorType::kF16> {};
template <>
struct Weights<TensorType::kBF16> : PlainWeights<TensorType::kBF16> {};

}  // namespace akv::kernels::cuda
