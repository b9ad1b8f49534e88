// CUDA C++ as our kernels use it, for a host compiler: qualifiers, built-in variables, barriers,
// warp operations, atomics and intrinsics. Behaviour is that of the CUDA C++ Programming Guide for
// compute capability 8.0; what would be undefined there fails the kernel or gives poison here.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <cuda_runtime_api.h>
#include <cuda_shim_block.h>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// Thread-local, as a block stays on one OS thread; found and poisoned by shared_memory.cc.
#define __shared__ static thread_local

#define threadIdx (::cuda_shim::t_thread->index)
#define blockIdx (::cuda_shim::t_block.index)
#define blockDim (::cuda_shim::t_block.block_dim)
#define gridDim (::cuda_shim::t_block.grid_dim)
#define warpSize 32

#include <cuda_shim_atomic.h>
#include <cuda_shim_launch.h>
#include <cuda_shim_math.h>
#include <cuda_shim_warp.h>
