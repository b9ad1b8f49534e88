// GGUF's weight formats in device code: eight elements of a block at a time, as f32. The products
// of codes and scales are exact in f32, so the values are ggml's bit for bit.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/convert.h"
#include "kernels/types.h"

namespace akv::kernels::cuda {

// A word of two 16-bit halves at an even address, its bytes in the order of memory.
__device__ __forceinline__ uint32_t load_even_4(const uint8_t* p) {
  const auto* half = reinterpret_cast<const uint16_t*>(p);
  return static_cast<uint32_t>(half[0]) | static_cast<uint32_t>(half[1]) << 16;
}
// The same at an address that the format's sizes keep aligned to 4, where Aligned.
template <bool Aligned>
__device__ __forceinline__ uint32_t load_word(const uint8_t* p) {
  if constexpr (Aligned) return *reinterpret_cast<const uint32_t*>(p);
  return load_even_4(p);
}
__device__ __forceinline__ uint32_t load_even_2(const uint8_t* p) {
  return *reinterpret_cast<const uint16_t*>(p);
}
__device__ __forceinline__ float load_half(const uint8_t* p) {
  return half_value(*reinterpret_cast<const uint16_t*>(p));
}

// The K formats' eight 6-bit scales and minima, packed in 12 bytes (aligned to 4).
struct ScaleMin {
  int scale, min;
};
__device__ __forceinline__ ScaleMin scale_min_k(const uint8_t* p, int u) {
  if (u < 4) return {p[u] & 63, p[u + 4] & 63};
  return {(p[u + 4] & 15) | (p[u - 4] >> 6) << 4, (p[u + 4] >> 4) | (p[u] >> 6) << 4};
}

// A format: elements and bytes of a block, and decode8: elements 8 part .. 8 part + 7 of a block.
template <TensorType Type>
struct Block;

// The 32-element formats of nibbles: Fifth bytes of fifth bits, an offset or a subtracted centre.
template <int Fifth, bool Offset>
struct NibbleBlock {
  static constexpr int kElements = 32;
  static constexpr int kHead = (Offset ? 4 : 2) + Fifth;
  static constexpr int kBytes = kHead + 16;
  static constexpr bool kAligned = kBytes % 4 == 0;

  __device__ static void decode8(const uint8_t* block, int part, float (&out)[8]) {
    const float scale = load_half(block);
    const float offset = Offset ? load_half(block + 2) : 0.0f;
    constexpr int kCentre = Offset ? 0 : (Fifth != 0 ? 16 : 8);
    const uint32_t high = Fifth != 0 ? load_word<kAligned>(block + kHead - 4) >> (8 * part) : 0;
    const uint8_t* codes = block + kHead + part % 2 * 8;
    const uint32_t words[2] = {load_word<kAligned>(codes), load_word<kAligned>(codes + 4)};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t nibble = words[i / 4] >> (i % 4 * 8 + part / 2 * 4) & 15;
      const int code = static_cast<int>(nibble | (high >> i & 1) << 4) - kCentre;
      out[i] =
          Offset ? fmaf(scale, static_cast<float>(code), offset) : scale * static_cast<float>(code);
    }
  }
};
template <>
struct Block<TensorType::kQ4_0> : NibbleBlock<0, false> {};
template <>
struct Block<TensorType::kQ4_1> : NibbleBlock<0, true> {};
template <>
struct Block<TensorType::kQ5_0> : NibbleBlock<4, false> {};
template <>
struct Block<TensorType::kQ5_1> : NibbleBlock<4, true> {};

template <>
struct Block<TensorType::kQ8_0> {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 34;

  __device__ static void decode8(const uint8_t* block, int part, float (&out)[8]) {
    const float scale = load_half(block);
    const auto* codes = reinterpret_cast<const int8_t*>(block + 2 + part * 8);
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = scale * static_cast<float>(codes[i]);
  }
};

// Eight sub-blocks of 32 with a scale and a minimum each; Fifth bytes of fifth bits.
template <int Fifth>
struct KBlock {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 16 + Fifth + 128;

  __device__ static void decode8(const uint8_t* block, int part, float (&out)[8]) {
    const int u = part / 4, j = part % 4 * 8;
    const ScaleMin packed = scale_min_k(block + 4, u);
    const float scale = load_half(block) * static_cast<float>(packed.scale);
    const float min = load_half(block + 2) * static_cast<float>(packed.min);
    const uint8_t* codes = block + 16 + Fifth + u / 2 * 32 + j;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      int code = codes[i] >> (u % 2 * 4) & 15;
      if constexpr (Fifth != 0) code |= (block[16 + j + i] >> u & 1) << 4;
      out[i] = fmaf(scale, static_cast<float>(code), -min);
    }
  }
};
template <>
struct Block<TensorType::kQ4_K> : KBlock<0> {};
template <>
struct Block<TensorType::kQ5_K> : KBlock<32> {};

template <>
struct Block<TensorType::kQ6_K> {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 210;

  __device__ static void decode8(const uint8_t* block, int part, float (&out)[8]) {
    const int side = part / 16, r = part % 16 / 4, j = part % 4 * 8;
    const auto sub = static_cast<int8_t>(block[192 + part / 2]);
    const float scale = load_half(block + 208) * static_cast<float>(sub);
    const uint8_t* low = block + side * 64 + r % 2 * 32 + j;
    const uint8_t* high = block + 128 + side * 32 + j;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int code = (low[i] >> (r / 2 * 4) & 15) | (high[i] >> (2 * r) & 3) << 4;
      out[i] = scale * static_cast<float>(code - 32);
    }
  }
};

// The plain 16-bit formats as blocks of eight.
template <TensorType Type>
struct PlainBlock {
  static constexpr int kElements = 8;
  static constexpr int kBytes = 16;

  __device__ static void decode8(const uint8_t* block, int, float (&out)[8]) {
    const uint4 v = *reinterpret_cast<const uint4*>(block);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const auto bits = static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16));
      out[i] = Type == TensorType::kF16 ? half_value(bits) : bf16_value(bf16{bits});
    }
  }
};
template <>
struct Block<TensorType::kF16> : PlainBlock<TensorType::kF16> {};
template <>
struct Block<TensorType::kBF16> : PlainBlock<TensorType::kBF16> {};

// The plain formats, one element at a time: rows that are no multiple of eight.
template <TensorType Type>
__device__ __forceinline__ float plain_element(const void* data, int64_t index) {
  if constexpr (Type == TensorType::kF32) return static_cast<const float*>(data)[index];
  const uint16_t bits = static_cast<const uint16_t*>(data)[index];
  return Type == TensorType::kF16 ? half_value(bits) : bf16_value(bf16{bits});
}

constexpr bool is_plain(TensorType type) {
  return type == TensorType::kF32 || type == TensorType::kF16 || type == TensorType::kBF16;
}

// Calls fn<Type>() for a matrix's type. Unknown types never reach a kernel: the reader of the model
// file refuses them (block_size() is 0).
template <class Fn>
void for_type(TensorType type, Fn&& fn) {
  switch (type) {
    case TensorType::kF32:
      return fn.template operator()<TensorType::kF32>();
    case TensorType::kF16:
      return fn.template operator()<TensorType::kF16>();
    case TensorType::kBF16:
      return fn.template operator()<TensorType::kBF16>();
    case TensorType::kQ4_0:
      return fn.template operator()<TensorType::kQ4_0>();
    case TensorType::kQ4_1:
      return fn.template operator()<TensorType::kQ4_1>();
    case TensorType::kQ5_0:
      return fn.template operator()<TensorType::kQ5_0>();
    case TensorType::kQ5_1:
      return fn.template operator()<TensorType::kQ5_1>();
    case TensorType::kQ8_0:
      return fn.template operator()<TensorType::kQ8_0>();
    case TensorType::kQ4_K:
      return fn.template operator()<TensorType::kQ4_K>();
    case TensorType::kQ5_K:
      return fn.template operator()<TensorType::kQ5_K>();
    case TensorType::kQ6_K:
      return fn.template operator()<TensorType::kQ6_K>();
  }
}

}  // namespace akv::kernels::cuda
