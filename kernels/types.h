// Number formats and tensor types that every kernel and its callers share. Plain data, no owner.
#pragma once

#include <bit>
#include <cstdint>

namespace akv {

// IEEE bfloat16 by its bits. Rounding is to nearest even; NaN stays NaN.
struct bf16 {
  uint16_t bits = 0;
};

constexpr float to_float(bf16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

constexpr bf16 to_bf16(float x) {
  uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return bf16{static_cast<uint16_t>((u >> 16) | 0x40u)};
  u += 0x7fffu + ((u >> 16) & 1u);
  return bf16{static_cast<uint16_t>(u >> 16)};
}

// Weight formats, with GGUF's own numbers.
enum class TensorType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};

// A row-major weight matrix [rows, cols] in its stored format; a view, the owner is the model file.
// y = x W^T: rows are outputs, cols inputs. cols is a multiple of the format's block (32 or 256).
struct Matrix {
  const void* data = nullptr;
  TensorType type = TensorType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
};

}  // namespace akv
