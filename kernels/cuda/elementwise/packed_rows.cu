#include "kernels/packed_rows.h"

#include "kernels/cuda/convert.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"

namespace akv::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTopExponent = 14;  // largest binary16: below 2^16; rounding up must not pass it
constexpr int kMinExponent = -100;

// The power of two that brings `largest` into [2^14, 2^15); 1 for a row of zeros or with an
// infinity.
__device__ __forceinline__ int exponent_for(float largest) {
  const int biased = static_cast<int>(__float_as_uint(largest) >> 23 & 0xffu);
  if (biased == 255 || largest == 0.0f) return 0;
  const int exponent = biased - 127 - kTopExponent;
  return exponent < kMinExponent ? kMinExponent : exponent;
}
__device__ __forceinline__ float power_of_two(int exponent) {
  return __uint_as_float(static_cast<uint32_t>(exponent + 127) << 23);
}

__device__ __forceinline__ uint32_t pack_half(float low, float high) {
  return static_cast<uint32_t>(__half_as_ushort(__float2half_rn(low))) |
         static_cast<uint32_t>(__half_as_ushort(__float2half_rn(high))) << 16;
}

template <int Width>
__device__ __forceinline__ void store_half(uint16_t* out, const float (&x)[Width]) {
  if constexpr (Width == 4) {
    *reinterpret_cast<uint2*>(out) = make_uint2(pack_half(x[0], x[1]), pack_half(x[2], x[3]));
  } else {
    out[0] = __half_as_ushort(__float2half_rn(x[0]));
  }
}

template <int Width>
__device__ __forceinline__ void load_half(const uint16_t* in, float (&x)[Width]) {
  if constexpr (Width == 4) {
    const uint2 pairs = *reinterpret_cast<const uint2*>(in);
    x[0] = half_value(static_cast<uint16_t>(pairs.x & 0xffffu));
    x[1] = half_value(static_cast<uint16_t>(pairs.x >> 16));
    x[2] = half_value(static_cast<uint16_t>(pairs.y & 0xffffu));
    x[3] = half_value(static_cast<uint16_t>(pairs.y >> 16));
  } else {
    x[0] = half_value(in[0]);
  }
}

template <int Width>
__global__ void __launch_bounds__(kThreads)
    pack_rows_kernel(const float* x, int64_t dim, uint16_t* values, float* scales) {
  __shared__ float partial[kThreads / kWarp];
  const int64_t row = blockIdx.x;
  const float* from = x + row * dim;
  float v[Width];
  float largest = 0.0f;
  for (int64_t i = threadIdx.x * Width; i < dim; i += kThreads * Width) {
    load<Width>(from + i, v);
#pragma unroll
    for (int j = 0; j < Width; ++j) largest = fmaxf(largest, fabsf(v[j]));
  }
  const int exponent = exponent_for(block_max<kThreads>(largest, partial));
  const float down = power_of_two(-exponent);
  for (int64_t i = threadIdx.x * Width; i < dim; i += kThreads * Width) {
    load<Width>(from + i, v);
#pragma unroll
    for (int j = 0; j < Width; ++j) v[j] *= down;
    store_half<Width>(values + row * dim + i, v);
  }
  if (threadIdx.x == 0) scales[row] = power_of_two(exponent);
}

template <int Width>
__global__ void __launch_bounds__(kThreads)
    unpack_rows_kernel(const uint16_t* values, const float* scales, int64_t dim, float* x) {
  const int64_t row = blockIdx.x;
  const float scale = scales[row];
  float v[Width];
  for (int64_t i = threadIdx.x * Width; i < dim; i += kThreads * Width) {
    load_half<Width>(values + row * dim + i, v);
#pragma unroll
    for (int j = 0; j < Width; ++j) v[j] *= scale;
    store<Width>(x + row * dim + i, v);
  }
}

}  // namespace

void pack_rows(const float* x, int64_t rows, int64_t dim, uint16_t* values, float* scales,
               DeviceStream stream) {
  if (rows == 0) return;
  const auto grid = static_cast<unsigned>(rows);
  if (dim % 4 == 0 && aligned_by_four(x, values)) {
    AKV_LAUNCH((pack_rows_kernel<4>), grid, kThreads, 0, stream, x, dim, values, scales);
  } else {
    AKV_LAUNCH((pack_rows_kernel<1>), grid, kThreads, 0, stream, x, dim, values, scales);
  }
}

void unpack_rows(const uint16_t* values, const float* scales, int64_t rows, int64_t dim, float* x,
                 DeviceStream stream) {
  if (rows == 0) return;
  const auto grid = static_cast<unsigned>(rows);
  if (dim % 4 == 0 && aligned_by_four(x, values)) {
    AKV_LAUNCH((unpack_rows_kernel<4>), grid, kThreads, 0, stream, values, scales, dim, x);
  } else {
    AKV_LAUNCH((unpack_rows_kernel<1>), grid, kThreads, 0, stream, values, scales, dim, x);
  }
}

}  // namespace akv::kernels::cuda
