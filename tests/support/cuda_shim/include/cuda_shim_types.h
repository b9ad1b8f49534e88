// The vector types of CUDA C++, as the shim's host and device headers share them.
#pragma once

#include <cstdint>

#define AKV_SHIM_VECTOR(base, name, align)                                       \
  struct alignas(sizeof(base)) name##1 {                                         \
    base x;                                                                      \
  };                                                                             \
  struct alignas(2 * sizeof(base)) name##2 {                                     \
    base x, y;                                                                   \
  };                                                                             \
  struct name##3 {                                                               \
    base x, y, z;                                                                \
  };                                                                             \
  struct alignas(align) name##4 {                                                \
    base x, y, z, w;                                                             \
  };                                                                             \
  constexpr name##1 make_##name##1(base x) { return {x}; }                       \
  constexpr name##2 make_##name##2(base x, base y) { return {x, y}; }            \
  constexpr name##3 make_##name##3(base x, base y, base z) { return {x, y, z}; } \
  constexpr name##4 make_##name##4(base x, base y, base z, base w) { return {x, y, z, w}; }

AKV_SHIM_VECTOR(signed char, char, 4)
AKV_SHIM_VECTOR(unsigned char, uchar, 4)
AKV_SHIM_VECTOR(short, short, 8)
AKV_SHIM_VECTOR(unsigned short, ushort, 8)
AKV_SHIM_VECTOR(int, int, 16)
AKV_SHIM_VECTOR(unsigned, uint, 16)
AKV_SHIM_VECTOR(long long, longlong, 16)
AKV_SHIM_VECTOR(unsigned long long, ulonglong, 16)
AKV_SHIM_VECTOR(float, float, 16)
AKV_SHIM_VECTOR(double, double, 16)

#undef AKV_SHIM_VECTOR

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};
