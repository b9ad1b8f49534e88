// Storage of the coefficient gamma, bit for bit as kernels/codec.h has it on the CPU.
#pragma once

#include "kernels/cuda/codec/numeric.h"

namespace akv::kernels::cuda {

struct StoredGamma {
  uint16_t code;
  float value;
};

// log8_encode and log8_table.
__device__ __forceinline__ StoredGamma store_log8(double gamma) {
  // 2^((i + 1/2) / 16): where the mantissa's sixteenth rounds up.
  constexpr double kBorders[16] = {
      1.0218971486541166, 1.0671404006768237, 1.1143867425958924, 1.1637248587775775,
      1.2152473599804690, 1.2690509571917332, 1.3252366431597413, 1.3839098819638320,
      1.4451808069770467, 1.5091644275934228, 1.5759808451078865, 1.6457554781539649,
      1.7186192981224779, 1.7947090750031072, 1.8741676341102999, 1.9571441241754002};
  // 2^(i / 16).
  constexpr float kSteps[16] = {1.0f,        1.04427378f, 1.09050773f, 1.13878863f,
                                1.18920712f, 1.24185781f, 1.29683955f, 1.35425555f,
                                1.41421356f, 1.47682615f, 1.54221083f, 1.61049033f,
                                1.68179283f, 1.75625216f, 1.83400809f, 1.91520656f};
  const uint64_t bits = static_cast<uint64_t>(__double_as_longlong(gamma));
  const int exponent = static_cast<int>((bits >> 52) & 0x7ff) - 1023;
  const double mantissa = __longlong_as_double(
      static_cast<long long>((bits & 0xfffffffffffffull) | 0x3ff0000000000000ull));
  int sixteenths = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) sixteenths += mantissa >= kBorders[i];
  const int n = 16 * (exponent + 5) + sixteenths + 1;
  if (exponent < -6 || n < 1) return {0, 0.0f};
  const int kept = n > 127 ? 127 : n;
  // Exponents of the stored range are -5 to 2.
  const int step = (kept - 1) % 16, power = (kept - 1) / 16 - 5;
  float fraction = 1.0f;
#pragma unroll
  for (int i = 1; i < 16; ++i) fraction = step == i ? kSteps[i] : fraction;
  const float size =
      __uint_as_float(__float_as_uint(fraction) + (static_cast<uint32_t>(power) << 23));
  const bool minus = (bits >> 63) != 0;
  return {static_cast<uint16_t>(kept | (minus ? 128 : 0)), minus ? -size : size};
}

__device__ __forceinline__ StoredGamma store_gamma(double gamma, bool log8) {
  if (log8) return store_log8(gamma);
  const uint16_t code = narrow(static_cast<float>(gamma));
  return {code, widen(code)};
}

}  // namespace akv::kernels::cuda
