// __half and __half2 (cuda_shim_half.h) and their conversions.
#pragma once

#include <cuda_shim_half.h>

using __half = cuda_shim::Small<cuda_shim::HalfFormat>;
using __half2 = cuda_shim::Small2<cuda_shim::HalfFormat>;
using half = __half;
using half2 = __half2;

inline __half __float2half(float x) { return __half(x); }
inline __half __float2half_rn(float x) { return __half(x); }
inline __half __double2half(double x) { return __half(x); }
inline __half __int2half_rn(int x) { return __half(x); }
inline __half __uint2half_rn(unsigned x) { return __half(x); }
inline __half __short2half_rn(short x) { return __half(x); }
inline __half __ushort2half_rn(unsigned short x) { return __half(x); }
inline float __half2float(__half x) { return cuda_shim::wide(x); }
inline int __half2int_rn(__half x) { return static_cast<int>(std::nearbyint(cuda_shim::wide(x))); }
inline unsigned short __half_as_ushort(__half x) { return x.bits; }
inline short __half_as_short(__half x) { return static_cast<short>(x.bits); }
inline __half __ushort_as_half(unsigned short bits) { return __half::of_bits(bits); }
inline __half __short_as_half(short bits) { return __half::of_bits(static_cast<uint16_t>(bits)); }

inline __half2 __halves2half2(__half low, __half high) { return {low, high}; }
inline __half2 make_half2(__half low, __half high) { return {low, high}; }
inline __half2 __half2half2(__half x) { return {x, x}; }
inline __half2 __float2half2_rn(float x) { return {__half(x), __half(x)}; }
inline __half2 __floats2half2_rn(float low, float high) { return {__half(low), __half(high)}; }
inline __half2 __float22half2_rn(float2 x) { return {__half(x.x), __half(x.y)}; }
inline float2 __half22float2(__half2 x) { return {__low2float(x), __high2float(x)}; }
inline __half __low2half(__half2 x) { return x.x; }
inline __half __high2half(__half2 x) { return x.y; }
inline __half2 __low2half2(__half2 x) { return {x.x, x.x}; }
inline __half2 __high2half2(__half2 x) { return {x.y, x.y}; }
inline __half2 __lows2half2(__half2 a, __half2 b) { return {a.x, b.x}; }
inline __half2 __highs2half2(__half2 a, __half2 b) { return {a.y, b.y}; }
inline __half2 __lowhigh2highlow(__half2 x) { return {x.y, x.x}; }
