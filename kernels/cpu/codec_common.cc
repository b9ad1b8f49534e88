#include <array>
#include <bit>
#include <cmath>

#include "kernels/codec.h"
#include "kernels/cpu/codec_simd.h"

namespace akv::kernels {
namespace {

// x [n] := Hadamard_n x (Sylvester order), unscaled.
void hadamard(float* x, int n) {
  for (int step = 1; step < n; step *= 2) {
    for (int i = 0; i < n; i += 2 * step) {
      for (int j = i; j < i + step; ++j) {
        const float a = x[j], b = x[j + step];
        x[j] = a + b;
        x[j + step] = a - b;
      }
    }
  }
}

std::array<float, 256> make_log8_table() {
  std::array<float, 256> table{};
  for (int n = 1; n < 128; ++n) {
    table[n] = static_cast<float>(std::exp2((n - 1) / 16.0 - 5.0));
    table[n + 128] = -table[n];
  }
  return table;
}

// 2^((i + 1/2) / 16): where the mantissa's sixteenth rounds up.
std::array<double, 16> make_log8_borders() {
  std::array<double, 16> borders{};
  for (int i = 0; i < 16; ++i) borders[i] = std::exp2((i + 0.5) / 16);
  return borders;
}

}  // namespace

void rotation_signs(uint64_t seed, int head_dim, float* signs) {
  SplitMix64 rng(seed);
  for (int j = 0; j < head_dim; ++j) signs[j] = (rng.next() >> 63) != 0 ? -1.0f : 1.0f;
}

void rotate(const float* signs, int head_dim, float* x) {
  const int block = hadamard_block(head_dim);
  const float inv = static_cast<float>(1.0 / std::sqrt(static_cast<double>(block)));
  for (int j = 0; j < head_dim; ++j) x[j] *= signs[j] * inv;
  for (int i = 0; i < head_dim; i += block) hadamard(x + i, block);
}

void rotate_back(const float* signs, int head_dim, float* x) {
  const int block = hadamard_block(head_dim);
  const float inv = static_cast<float>(1.0 / std::sqrt(static_cast<double>(block)));
  for (int i = 0; i < head_dim; i += block) hadamard(x + i, block);
  for (int j = 0; j < head_dim; ++j) x[j] *= signs[j] * inv;
}

const float* log8_table() {
  static const std::array<float, 256> table = make_log8_table();
  return table.data();
}

uint8_t log8_encode(double x) {
  static const std::array<double, 16> borders = make_log8_borders();
  const uint64_t bits = std::bit_cast<uint64_t>(std::fabs(x));
  const int exponent = static_cast<int>(bits >> 52) - 1023;
  if (exponent < -6) return 0;
  const double mantissa =
      std::bit_cast<double>((bits & 0xfffffffffffffull) | 0x3ff0000000000000ull);
  int sixteenths = 0;
  for (int step = 8; step > 0; step /= 2) {
    // No branch: the outcome is a coin toss.
    sixteenths += step * static_cast<int>(mantissa >= borders[sixteenths + step - 1]);
  }
  sixteenths += static_cast<int>(mantissa >= borders[15]);
  const int n = 16 * (exponent + 5) + sixteenths + 1;
  if (n < 1) return 0;
  return static_cast<uint8_t>((n > 127 ? 127 : n) | (std::signbit(x) ? 128 : 0));
}

const CodecSimd& codec_simd(Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512) return codec_simd_avx512();
  if (isa == Isa::kAvx2) return codec_simd_avx2();
#else
  static_cast<void>(isa);
#endif
  return codec_simd_portable();
}

}  // namespace akv::kernels
