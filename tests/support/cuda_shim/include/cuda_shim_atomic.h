// Atomics on global and shared memory. Real ones: kernels of several OS threads may share memory.
#pragma once

#include <atomic>
#include <bit>
#include <concepts>
#include <cstdint>

#include <cuda_shim_block.h>

namespace cuda_shim {

// *address = change(old) by compare and swap; the old value.
template <class T, class Change>
T atomic_change(T* address, Change change) {
  maybe_preempt();
  std::atomic_ref<T> target(*address);
  T old = target.load(std::memory_order_relaxed);
  while (!target.compare_exchange_weak(old, change(old), std::memory_order_relaxed)) {
  }
  return old;
}

template <class T>
concept Integer32Or64 = std::integral<T> &&(sizeof(T) == 4 || sizeof(T) == 8);
template <class T>
concept Word = Integer32Or64<T> || std::same_as<T, unsigned short>;

// Signed sums wrap, as on a device.
template <class T>
T wrapping_add(T a, T b) {
  if constexpr (std::integral<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}

}  // namespace cuda_shim

inline int atomicAdd(int* p, int v) {
  return cuda_shim::atomic_change(p, [v](int old) { return cuda_shim::wrapping_add(old, v); });
}
inline unsigned atomicAdd(unsigned* p, unsigned v) {
  return cuda_shim::atomic_change(p, [v](unsigned old) { return old + v; });
}
inline unsigned long long atomicAdd(unsigned long long* p, unsigned long long v) {
  return cuda_shim::atomic_change(p, [v](unsigned long long old) { return old + v; });
}
inline float atomicAdd(float* p, float v) {
  return cuda_shim::atomic_change(p, [v](float old) { return old + v; });
}
inline double atomicAdd(double* p, double v) {
  return cuda_shim::atomic_change(p, [v](double old) { return old + v; });
}
inline int atomicSub(int* p, int v) {
  return cuda_shim::atomic_change(p, [v](int old) {
    return static_cast<int>(static_cast<unsigned>(old) - static_cast<unsigned>(v));
  });
}
inline unsigned atomicSub(unsigned* p, unsigned v) {
  return cuda_shim::atomic_change(p, [v](unsigned old) { return old - v; });
}

template <cuda_shim::Integer32Or64 T>
T atomicMax(T* p, T v) {
  return cuda_shim::atomic_change(p, [v](T old) { return old > v ? old : v; });
}
template <cuda_shim::Integer32Or64 T>
T atomicMin(T* p, T v) {
  return cuda_shim::atomic_change(p, [v](T old) { return old < v ? old : v; });
}
template <cuda_shim::Integer32Or64 T>
T atomicAnd(T* p, T v) {
  return cuda_shim::atomic_change(p, [v](T old) { return old & v; });
}
template <cuda_shim::Integer32Or64 T>
T atomicOr(T* p, T v) {
  return cuda_shim::atomic_change(p, [v](T old) { return old | v; });
}
template <cuda_shim::Integer32Or64 T>
T atomicXor(T* p, T v) {
  return cuda_shim::atomic_change(p, [v](T old) { return old ^ v; });
}
template <class T>
requires cuda_shim::Integer32Or64<T> || std::same_as<T, float> T atomicExch(T* p, T v) {
  return cuda_shim::atomic_change(p, [v](T) { return v; });
}
template <cuda_shim::Word T>
T atomicCAS(T* p, T expected, T v) {
  cuda_shim::maybe_preempt();
  std::atomic_ref<T>(*p).compare_exchange_strong(expected, v, std::memory_order_relaxed);
  return expected;
}
inline unsigned atomicInc(unsigned* p, unsigned bound) {
  return cuda_shim::atomic_change(p, [bound](unsigned old) { return old >= bound ? 0 : old + 1; });
}
inline unsigned atomicDec(unsigned* p, unsigned bound) {
  return cuda_shim::atomic_change(
      p, [bound](unsigned old) { return old == 0 || old > bound ? bound : old - 1; });
}
