// Intrinsics and functions of device code. The approximate ones are exact here, so a test's
// tolerance must allow for the device's error.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <cuda_shim_types.h>

// glibc declares some of these names without defining them.
#define __expf cuda_shim_expf
#define __exp10f cuda_shim_exp10f
#define __logf cuda_shim_logf
#define __log2f cuda_shim_log2f
#define __log10f cuda_shim_log10f
#define __sinf cuda_shim_sinf
#define __cosf cuda_shim_cosf
#define __tanf cuda_shim_tanf
#define __powf cuda_shim_powf
#define __sincosf cuda_shim_sincosf

inline float __expf(float x) { return std::exp(x); }
inline float __exp10f(float x) { return std::pow(10.0f, x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __log10f(float x) { return std::log10(x); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __tanf(float x) { return std::tan(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline void __sincosf(float x, float* s, float* c) {
  *s = std::sin(x);
  *c = std::cos(x);
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __frsqrt_rn(float x) { return static_cast<float>(1.0 / std::sqrt(double{x})); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __fma_rn(double x, double y, double z) { return std::fma(x, y, z); }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
// Never contracted into an FMA, by definition: the barrier keeps the compiler from it.
inline float __fmul_rn(float x, float y) {
  volatile float product = x * y;
  return product;
}
inline float __fadd_rn(float x, float y) {
  volatile float sum = x + y;
  return sum;
}
inline float __fsub_rn(float x, float y) {
  volatile float difference = x - y;
  return difference;
}

inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }

namespace cuda_shim {
// To an integer as a device does it: NaN is 0, what does not fit is the nearest bound.
template <class To, class From>
To to_integer(From x) {
  if (!(x == x)) return 0;
  if (x >= static_cast<From>(std::numeric_limits<To>::max())) return std::numeric_limits<To>::max();
  if (x <= static_cast<From>(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
  return static_cast<To>(x);
}
}  // namespace cuda_shim

inline int __float2int_rn(float x) { return cuda_shim::to_integer<int>(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return cuda_shim::to_integer<int>(std::trunc(x)); }
inline int __float2int_rd(float x) { return cuda_shim::to_integer<int>(std::floor(x)); }
inline int __float2int_ru(float x) { return cuda_shim::to_integer<int>(std::ceil(x)); }
inline unsigned __float2uint_rn(float x) {
  return cuda_shim::to_integer<unsigned>(std::nearbyint(x));
}
inline unsigned __float2uint_rz(float x) { return cuda_shim::to_integer<unsigned>(std::trunc(x)); }
inline long long __float2ll_rn(float x) {
  return cuda_shim::to_integer<long long>(std::nearbyint(x));
}
inline long long __float2ll_rz(float x) { return cuda_shim::to_integer<long long>(std::trunc(x)); }
inline long long __double2ll_rn(double x) {
  return cuda_shim::to_integer<long long>(std::nearbyint(x));
}
inline int __double2int_rn(double x) { return cuda_shim::to_integer<int>(std::nearbyint(x)); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; ++i) r |= (x >> i & 1) << (31 - i);
  return r;
}
inline unsigned long long __brevll(unsigned long long x) {
  return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 |
         __brev(static_cast<unsigned>(x >> 32));
}
// The n-th set bit of x from position base on (n < 0: downwards); 0xffffffff where there is none.
inline unsigned __fns(unsigned x, unsigned base, int n) {
  if (n == 0) return (x >> (base & 31) & 1) != 0 ? base : 0xffffffffu;
  const int step = n > 0 ? 1 : -1;
  int left = n > 0 ? n : -n;
  for (int i = static_cast<int>(base); i >= 0 && i < 32; i += step) {
    if ((x >> i & 1) != 0 && --left == 0) return static_cast<unsigned>(i);
  }
  return 0xffffffffu;
}

inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  unsigned r = 0;
  for (int i = 0; i < 4; ++i) {
    r |= static_cast<unsigned>(bytes >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
  }
  return r;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
  return static_cast<unsigned>((both << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
  return static_cast<unsigned>(both >> (shift & 31));
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<int64_t>(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>(static_cast<Wide>(a) * b >> 64);
}
inline int __dp4a(int a, int b, int c) {
  unsigned sum = static_cast<unsigned>(c);
  for (int i = 0; i < 4; ++i) {
    sum += static_cast<unsigned>(static_cast<int8_t>(a >> (8 * i)) *
                                 static_cast<int8_t>(b >> (8 * i)));
  }
  return static_cast<int>(sum);
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 4; ++i) c += (a >> (8 * i) & 0xff) * (b >> (8 * i) & 0xff);
  return c;
}

// Loads with cache hints, and pointers told apart by the compiler: plain loads here.
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
T __ldca(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, T v) {
  *p = v;
}
template <class T>
void __stcg(T* p, T v) {
  *p = v;
}

// min and max of mixed arithmetic types, as CUDA's overloads take them: the common type decides,
// and a NaN loses.
template <class A, class B>
requires std::is_arithmetic_v<A> && std::is_arithmetic_v<B>
constexpr auto min(A a, B b) {
  using T = std::common_type_t<A, B>;
  const T x = static_cast<T>(a);
  const T y = static_cast<T>(b);
  if constexpr (std::is_floating_point_v<T>) return std::fmin(x, y);
  return y < x ? y : x;
}
template <class A, class B>
requires std::is_arithmetic_v<A> && std::is_arithmetic_v<B>
constexpr auto max(A a, B b) {
  using T = std::common_type_t<A, B>;
  const T x = static_cast<T>(a);
  const T y = static_cast<T>(b);
  if constexpr (std::is_floating_point_v<T>) return std::fmax(x, y);
  return x < y ? y : x;
}
