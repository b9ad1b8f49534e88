#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/dequant.h"
#include "kernels/reference/model_ops.h"

namespace akv::kernels::reference {
namespace {

double half(const uint8_t* p) {
  const int bits = p[0] | p[1] << 8;
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double sign = bits >> 15 != 0 ? -1.0 : 1.0;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  if (exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

int bit(const uint8_t* bytes, int i) { return bytes[i / 8] >> (i % 8) & 1; }

// Low nibbles hold the first half of 32 codes, high nibbles the second.
int nibble(const uint8_t* qs, int i) { return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4; }

// The K formats' eight 6-bit scales and minima, packed in 12 bytes.
int scale_k(const uint8_t* p, int u) {
  return u < 4 ? p[u] & 63 : (p[u + 4] & 15) | (p[u - 4] >> 6) << 4;
}
int min_k(const uint8_t* p, int u) {
  return u < 4 ? p[u + 4] & 63 : (p[u + 4] >> 4) | (p[u] >> 6) << 4;
}

double element_k(const uint8_t* block, int i, const uint8_t* qs, int fifth) {
  const int u = i / 32;
  const uint8_t byte = qs[u / 2 * 32 + i % 32];
  const int code = (u % 2 == 0 ? byte & 15 : byte >> 4) | fifth << 4;
  return half(block) * scale_k(block + 4, u) * code - half(block + 2) * min_k(block + 4, u);
}

double element_q6_k(const uint8_t* block, int i) {
  const int side = i / 128, r = i % 128 / 32, j = i % 32;
  const uint8_t low = block[side * 64 + r % 2 * 32 + j];
  const int high = block[128 + side * 32 + j] >> (2 * r) & 3;
  const int code = ((r < 2 ? low & 15 : low >> 4) | high << 4) - 32;
  return half(block + 208) * static_cast<int8_t>(block[192 + i / 16]) * code;
}

double element(TensorType type, const uint8_t* block, int i) {
  switch (type) {
    case TensorType::kF32: {
      float value;
      std::memcpy(&value, block, sizeof(value));
      return value;
    }
    case TensorType::kF16:
      return half(block);
    case TensorType::kBF16:
      return to_float(bf16{static_cast<uint16_t>(block[0] | block[1] << 8)});
    case TensorType::kQ4_0:
      return half(block) * (nibble(block + 2, i) - 8);
    case TensorType::kQ4_1:
      return half(block) * nibble(block + 4, i) + half(block + 2);
    case TensorType::kQ5_0:
      return half(block) * ((nibble(block + 6, i) | bit(block + 2, i) << 4) - 16);
    case TensorType::kQ5_1:
      return half(block) * (nibble(block + 8, i) | bit(block + 4, i) << 4) + half(block + 2);
    case TensorType::kQ8_0:
      return half(block) * static_cast<int8_t>(block[2 + i]);
    case TensorType::kQ4_K:
      return element_k(block, i, block + 16, 0);
    case TensorType::kQ5_K:
      return element_k(block, i, block + 48, block[16 + i % 32] >> (i / 32) & 1);
    case TensorType::kQ6_K:
      return element_q6_k(block, i);
  }
  return NAN;
}

}  // namespace

double weight(const Matrix& m, int64_t row, int64_t col) {
  const int64_t size = block_size(m.type);
  const auto* data = static_cast<const uint8_t*>(m.data);
  const uint8_t* block = data + static_cast<size_t>(row) * row_bytes(m.type, m.cols) +
                         static_cast<size_t>(col / size) * block_bytes(m.type);
  return element(m.type, block, static_cast<int>(col % size));
}

}  // namespace akv::kernels::reference
