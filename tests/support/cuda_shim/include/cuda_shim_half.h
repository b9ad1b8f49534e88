// 16-bit floating point as cuda_fp16.h and cuda_bf16.h give it: every operation is computed
// exactly and rounded once, to the nearest, ties to even; fma rounds once too.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include <cuda_shim_types.h>

namespace cuda_shim {

// A float that is rounded to odd: rounding it once more, to at most 22 bits, gives what rounding x
// at once would give.
inline float round_to_odd(double x) {
  const auto f = static_cast<float>(x);
  if (static_cast<double>(f) == x || !std::isfinite(x)) return f;
  if (!std::isfinite(f)) return std::copysign(std::numeric_limits<float>::max(), f);
  auto bits = std::bit_cast<uint32_t>(f);
  // Towards zero first, then the lowest bit says that something was lost.
  if (std::fabs(static_cast<double>(f)) > std::fabs(x)) --bits;
  return std::bit_cast<float>(bits | 1u);
}

inline float float_of_half(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = h >> 10 & 0x1f;
  const uint32_t mantissa = h & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -magnitude : magnitude;
}

inline uint16_t half_of_float(float f) {
  const auto bits = std::bit_cast<uint32_t>(f);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fff;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // 65520 and more: infinity
  if (magnitude < 0x38800000u) {                        // subnormal: count units of 2^-24
    const float units = std::bit_cast<float>(magnitude) * 0x1p24f;
    return sign | static_cast<uint16_t>(std::nearbyint(units));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return sign | static_cast<uint16_t>((rounded - 0x38000000u) >> 13);
}

inline float float_of_bfloat(uint16_t h) { return std::bit_cast<float>(uint32_t{h} << 16); }

inline uint16_t bfloat_of_float(float f) {
  const auto bits = std::bit_cast<uint32_t>(f);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

struct HalfFormat {
  static float widen(uint16_t bits) { return float_of_half(bits); }
  static uint16_t narrow(float x) { return half_of_float(x); }
};
struct BfloatFormat {
  static float widen(uint16_t bits) { return float_of_bfloat(bits); }
  static uint16_t narrow(float x) { return bfloat_of_float(x); }
};

template <class Format>
struct Small {
  uint16_t bits;

  Small() = default;
  template <class T>
  requires std::is_arithmetic_v<T> Small(T x)
      : bits(Format::narrow(round_to_odd(static_cast<double>(x)))) {}
  operator float() const { return Format::widen(bits); }

  static Small of_bits(uint16_t bits) {
    Small r;
    r.bits = bits;
    return r;
  }
};

template <class Format>
struct alignas(4) Small2 {
  Small<Format> x, y;
  Small2() = default;
  Small2(Small<Format> x_, Small<Format> y_) : x(x_), y(y_) {}
};

template <class F>
float wide(Small<F> x) {
  return F::widen(x.bits);
}
template <class F>
double wider(Small<F> x) {
  return static_cast<double>(F::widen(x.bits));
}

}  // namespace cuda_shim

// Sums and products of two 16-bit numbers are exact in double.
#define AKV_SHIM_SMALL_BINARY(name, expression)                                  \
  template <class F>                                                             \
  cuda_shim::Small<F> name(cuda_shim::Small<F> a_, cuda_shim::Small<F> b_) {     \
    const double a = cuda_shim::wider(a_);                                       \
    const double b = cuda_shim::wider(b_);                                       \
    return cuda_shim::Small<F>(expression);                                      \
  }                                                                              \
  template <class F>                                                             \
  cuda_shim::Small2<F> name##2(cuda_shim::Small2<F> a, cuda_shim::Small2<F> b) { \
    return {name(a.x, b.x), name(a.y, b.y)};                                     \
  }
AKV_SHIM_SMALL_BINARY(__hadd, a + b)
AKV_SHIM_SMALL_BINARY(__hsub, a - b)
AKV_SHIM_SMALL_BINARY(__hmul, a* b)
AKV_SHIM_SMALL_BINARY(__hmin, std::fmin(a, b))
AKV_SHIM_SMALL_BINARY(__hmax, std::fmax(a, b))
#undef AKV_SHIM_SMALL_BINARY

template <class F>
cuda_shim::Small<F> __hadd_rn(cuda_shim::Small<F> a, cuda_shim::Small<F> b) {
  return __hadd(a, b);
}
template <class F>
cuda_shim::Small<F> __hmul_rn(cuda_shim::Small<F> a, cuda_shim::Small<F> b) {
  return __hmul(a, b);
}
template <class F>
cuda_shim::Small<F> __hdiv(cuda_shim::Small<F> a, cuda_shim::Small<F> b) {
  return cuda_shim::Small<F>(cuda_shim::wider(a) / cuda_shim::wider(b));
}
// The product is exact in double, the sum is rounded to odd, so that the last rounding counts.
template <class F>
cuda_shim::Small<F> __hfma(cuda_shim::Small<F> a, cuda_shim::Small<F> b, cuda_shim::Small<F> c) {
  const double product = cuda_shim::wider(a) * cuda_shim::wider(b);
  const double addend = cuda_shim::wider(c);
  double sum = product + addend;
  if (std::isfinite(sum)) {  // what the sum lost, by Knuth's two-sum
    const double part = sum - product;
    const double lost = (product - (sum - part)) + (addend - part);
    auto bits = std::bit_cast<uint64_t>(sum);
    if (lost != 0) {
      if ((lost < 0) != (sum < 0)) --bits;
      sum = std::bit_cast<double>(bits | 1u);
    }
  }
  return cuda_shim::Small<F>(sum);
}
template <class F>
cuda_shim::Small2<F> __hfma2(cuda_shim::Small2<F> a, cuda_shim::Small2<F> b,
                             cuda_shim::Small2<F> c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
template <class F>
cuda_shim::Small<F> __hneg(cuda_shim::Small<F> a) {
  return cuda_shim::Small<F>::of_bits(static_cast<uint16_t>(a.bits ^ 0x8000u));
}
template <class F>
cuda_shim::Small2<F> __hneg2(cuda_shim::Small2<F> a) {
  return {__hneg(a.x), __hneg(a.y)};
}
template <class F>
cuda_shim::Small<F> __habs(cuda_shim::Small<F> a) {
  return cuda_shim::Small<F>::of_bits(static_cast<uint16_t>(a.bits & 0x7fffu));
}
template <class F>
cuda_shim::Small2<F> __habs2(cuda_shim::Small2<F> a) {
  return {__habs(a.x), __habs(a.y)};
}
template <class F>
bool __hisnan(cuda_shim::Small<F> a) {
  return std::isnan(cuda_shim::wide(a));
}

#define AKV_SHIM_SMALL_COMPARE(name, symbol)                           \
  template <class F>                                                   \
  bool name(cuda_shim::Small<F> a, cuda_shim::Small<F> b) {            \
    return cuda_shim::wide(a) symbol cuda_shim::wide(b);               \
  }                                                                    \
  template <class F>                                                   \
  bool operator symbol(cuda_shim::Small<F> a, cuda_shim::Small<F> b) { \
    return cuda_shim::wide(a) symbol cuda_shim::wide(b);               \
  }
AKV_SHIM_SMALL_COMPARE(__heq, ==)
AKV_SHIM_SMALL_COMPARE(__hne, !=)
AKV_SHIM_SMALL_COMPARE(__hlt, <)
AKV_SHIM_SMALL_COMPARE(__hle, <=)
AKV_SHIM_SMALL_COMPARE(__hgt, >)
AKV_SHIM_SMALL_COMPARE(__hge, >=)
#undef AKV_SHIM_SMALL_COMPARE

#define AKV_SHIM_SMALL_OPERATOR(symbol, name)                                                 \
  template <class F>                                                                          \
  cuda_shim::Small<F> operator symbol(cuda_shim::Small<F> a, cuda_shim::Small<F> b) {         \
    return name(a, b);                                                                        \
  }                                                                                           \
  template <class F>                                                                          \
  cuda_shim::Small2<F> operator symbol(cuda_shim::Small2<F> a, cuda_shim::Small2<F> b) {      \
    return {name(a.x, b.x), name(a.y, b.y)};                                                  \
  }                                                                                           \
  template <class F>                                                                          \
  cuda_shim::Small<F>& operator symbol##=(cuda_shim::Small<F>& a, cuda_shim::Small<F> b) {    \
    return a = name(a, b);                                                                    \
  }                                                                                           \
  template <class F>                                                                          \
  cuda_shim::Small2<F>& operator symbol##=(cuda_shim::Small2<F>& a, cuda_shim::Small2<F> b) { \
    return a = {name(a.x, b.x), name(a.y, b.y)};                                              \
  }
AKV_SHIM_SMALL_OPERATOR(+, __hadd)
AKV_SHIM_SMALL_OPERATOR(-, __hsub)
AKV_SHIM_SMALL_OPERATOR(*, __hmul)
AKV_SHIM_SMALL_OPERATOR(/, __hdiv)
#undef AKV_SHIM_SMALL_OPERATOR
template <class F>
cuda_shim::Small<F> operator-(cuda_shim::Small<F> a) {
  return __hneg(a);
}
template <class F>
cuda_shim::Small2<F> operator-(cuda_shim::Small2<F> a) {
  return __hneg2(a);
}

template <class F>
float __low2float(cuda_shim::Small2<F> a) {
  return cuda_shim::wide(a.x);
}
template <class F>
float __high2float(cuda_shim::Small2<F> a) {
  return cuda_shim::wide(a.y);
}
template <class F>
cuda_shim::Small<F> hexp2(cuda_shim::Small<F> a) {
  return cuda_shim::Small<F>(std::exp2(cuda_shim::wider(a)));
}
template <class F>
cuda_shim::Small2<F> h2exp2(cuda_shim::Small2<F> a) {
  return {hexp2(a.x), hexp2(a.y)};
}
