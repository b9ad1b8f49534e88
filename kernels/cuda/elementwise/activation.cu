#include "kernels/activation.h"

#include "kernels/cuda/convert.h"
#include "kernels/cuda/launch.h"

namespace akv::kernels::cuda {
namespace {

constexpr int kThreads = 256;

unsigned blocks_for(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

__device__ __forceinline__ int64_t thread_index() {
  return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

template <int Width, class Out>
__global__ void __launch_bounds__(kThreads)
    silu_mul_kernel(const float* gate, const float* up, int64_t n, Out* out) {
  const int64_t at = thread_index() * Width;
  if (at >= n) return;
  float g[Width], u[Width];
  load<Width>(gate + at, g);
  load<Width>(up + at, u);
#pragma unroll
  for (int i = 0; i < Width; ++i) g[i] = g[i] / (1.0f + expf(-g[i])) * u[i];
  store<Width>(out + at, g);
}

template <class Out>
void launch_silu_mul(const float* gate, const float* up, int64_t n, Out* out, DeviceStream stream) {
  if (n == 0) return;
  if (n % 4 == 0 && aligned_by_four(gate, up, out)) {
    AKV_LAUNCH((silu_mul_kernel<4, Out>), blocks_for(n / 4), kThreads, 0, stream, gate, up, n, out);
  } else {
    AKV_LAUNCH((silu_mul_kernel<1, Out>), blocks_for(n), kThreads, 0, stream, gate, up, n, out);
  }
}

// x[i] += y[i % period].
template <int Width>
__global__ void __launch_bounds__(kThreads)
    add_kernel(float* x, const float* y, int64_t n, int64_t period) {
  const int64_t at = thread_index() * Width;
  if (at >= n) return;
  float a[Width], b[Width];
  load<Width>(x + at, a);
  load<Width>(y + at % period, b);
#pragma unroll
  for (int i = 0; i < Width; ++i) a[i] += b[i];
  store<Width>(x + at, a);
}

void launch_add(float* x, const float* y, int64_t n, int64_t period, DeviceStream stream) {
  if (n == 0) return;
  if (period % 4 == 0 && aligned_by_four(x, y)) {
    AKV_LAUNCH((add_kernel<4>), blocks_for(n / 4), kThreads, 0, stream, x, y, n, period);
  } else {
    AKV_LAUNCH((add_kernel<1>), blocks_for(n), kThreads, 0, stream, x, y, n, period);
  }
}

__global__ void __launch_bounds__(kThreads)
    gather_rows_kernel(const float* x, const int32_t* rows, int64_t count, int64_t dim,
                       float* out) {
  const int64_t at = thread_index();
  if (at >= count * dim) return;
  out[at] = x[rows[at / dim] * dim + at % dim];
}

}  // namespace

void silu_mul(const float* gate, const float* up, int64_t n, float* out, DeviceStream stream) {
  launch_silu_mul(gate, up, n, out, stream);
}

void silu_mul(const float* gate, const float* up, int64_t n, bf16* out, DeviceStream stream) {
  launch_silu_mul(gate, up, n, out, stream);
}

void add(float* x, const float* y, int64_t n, DeviceStream stream) {
  launch_add(x, y, n, n, stream);
}

void add_bias(float* x, int64_t rows, int64_t dim, const float* bias, DeviceStream stream) {
  launch_add(x, bias, rows * dim, dim, stream);
}

void gather_rows(const float* x, const int32_t* rows, int64_t count, int64_t dim, float* out,
                 DeviceStream stream) {
  if (count == 0) return;
  AKV_LAUNCH(gather_rows_kernel, blocks_for(count * dim), kThreads, 0, stream, x, rows, count, dim,
             out);
}

}  // namespace akv::kernels::cuda
