// Sums and maxima over a warp or a block, in a fixed order.
#pragma once

#include <cuda_runtime.h>

namespace akv::kernels::cuda {

inline constexpr unsigned kFullWarp = 0xffffffffu;
inline constexpr int kWarp = 32;

// Every lane receives the result.
template <class T>
__device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(kFullWarp, x, step);
  return x;
}

// Every thread receives the sum over a block of Threads. `partial` holds Threads / 32 values and is
// free again after the next barrier.
template <int Threads, class T>
__device__ __forceinline__ T block_sum(T x, T* partial) {
  x = warp_sum(x);
  if constexpr (Threads == kWarp) return x;
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = x;
  __syncthreads();
  T total = partial[0];
#pragma unroll
  for (int i = 1; i < Threads / kWarp; ++i) total += partial[i];
  return total;
}

// The same for the maximum; a NaN is left out.
template <int Threads>
__device__ __forceinline__ float block_max(float x, float* partial) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, step));
  }
  if constexpr (Threads == kWarp) return x;
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = x;
  __syncthreads();
  float largest = partial[0];
#pragma unroll
  for (int i = 1; i < Threads / kWarp; ++i) largest = fmaxf(largest, partial[i]);
  return largest;
}

}  // namespace akv::kernels::cuda
