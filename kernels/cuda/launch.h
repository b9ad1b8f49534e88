// How host code of an operator starts a kernel, under nvcc and on the CPU shim of the tests.
//
//   AKV_LAUNCH((kernel<64, 4>), grid, block, shared_bytes, stream, args...)
//     puts kernel<<<grid, block, shared_bytes>>>(args...) into `stream` (a DeviceStream). A kernel
//     whose name holds a comma stands in brackets. Errors stay with the stream: whoever owns it
//     asks (common/device).
//   AKV_SHARED_ATTRIBUTE(kernel, bytes)
//     before launches with more than 48 KiB of dynamic shared memory. Any thread, any number of
//     times. On a device that lacks the bytes the launch fails, and the stream's owner sees it.
//   AKV_DYNAMIC_SHARED(type, name)
//     inside a kernel: type* name, the launch's shared_bytes, aligned to 128 bytes.
#pragma once

#include <cuda_runtime.h>

#include "kernels/device_stream.h"

#ifdef __CUDACC__

#define AKV_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                         \
  kernel<<<(grid), (block), (shared_bytes), static_cast<cudaStream_t>((stream).handle)>>>( \
      __VA_ARGS__)

#define AKV_DYNAMIC_SHARED(type, name)                           \
  extern __shared__ __align__(128) unsigned char akv_dynamic_[]; \
  type* name = reinterpret_cast<type*>(akv_dynamic_)

#else

#define AKV_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                         \
  ::cuda_shim::launch(#kernel, kernel, (grid), (block), static_cast<size_t>(shared_bytes), \
                      static_cast<cudaStream_t>((stream).handle) __VA_OPT__(, ) __VA_ARGS__)

#define AKV_DYNAMIC_SHARED(type, name) \
  type* name = reinterpret_cast<type*>(::cuda_shim::dynamic_shared())

#endif

#define AKV_SHARED_ATTRIBUTE(kernel, bytes)                                                   \
  static_cast<void>(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, \
                                         static_cast<int>(bytes)))
