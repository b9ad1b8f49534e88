#include "kernels/norm.h"

#include "kernels/cuda/convert.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"

namespace akv::kernels::cuda {
namespace {

// Rows up to this length (the heads of a query or key norm) take a warp each, eight to a block;
// longer ones a block.
constexpr int kWarpDim = 512;
constexpr int kThreads = 256;

// Threads of one row: a warp or the block. A thread writes only elements that it read, so that out
// may be x.
template <int RowThreads, int Width, class Out>
__global__ void __launch_bounds__(kThreads)
    rmsnorm_kernel(const float* x, int64_t rows, int dim, const float* weight, float eps,
                   Out* out) {
  __shared__ float partial[kThreads / kWarp];
  constexpr int kRowsPerBlock = kThreads / RowThreads;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.x / RowThreads;
  if (row >= rows) return;  // whole warps, and never with RowThreads == kThreads
  const int first = static_cast<int>(threadIdx.x % RowThreads) * Width;
  float v[Width], w[Width];
  float sum = 0.0f;
  for (int i = first; i < dim; i += RowThreads * Width) {
    load<Width>(x + row * dim + i, v);
#pragma unroll
    for (int j = 0; j < Width; ++j) sum = fmaf(v[j], v[j], sum);
  }
  sum = block_sum<RowThreads>(sum, partial);
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(dim) + eps);
  for (int i = first; i < dim; i += RowThreads * Width) {
    load<Width>(x + row * dim + i, v);
    load<Width>(weight + i, w);
#pragma unroll
    for (int j = 0; j < Width; ++j) v[j] = v[j] * scale * w[j];
    store<Width>(out + row * dim + i, v);
  }
}

template <int RowThreads, class Out>
void launch(const float* x, int64_t rows, int dim, const float* weight, float eps, Out* out,
            DeviceStream stream) {
  constexpr int64_t kRowsPerBlock = kThreads / RowThreads;
  const auto grid = static_cast<unsigned>((rows + kRowsPerBlock - 1) / kRowsPerBlock);
  if (dim % 4 == 0 && aligned_by_four(x, weight, out)) {
    AKV_LAUNCH((rmsnorm_kernel<RowThreads, 4, Out>), grid, kThreads, 0, stream, x, rows, dim,
               weight, eps, out);
  } else {
    AKV_LAUNCH((rmsnorm_kernel<RowThreads, 1, Out>), grid, kThreads, 0, stream, x, rows, dim,
               weight, eps, out);
  }
}

template <class Out>
void choose(const float* x, int64_t rows, int dim, const float* weight, float eps, Out* out,
            DeviceStream stream) {
  if (rows == 0) return;
  if (dim <= kWarpDim) {
    launch<kWarp>(x, rows, dim, weight, eps, out, stream);
  } else {
    launch<kThreads>(x, rows, dim, weight, eps, out, stream);
  }
}

}  // namespace

void rmsnorm(const float* x, int64_t rows, int dim, const float* weight, float eps, float* out,
             DeviceStream stream) {
  choose(x, rows, dim, weight, eps, out, stream);
}

void rmsnorm(const float* x, int64_t rows, int dim, const float* weight, float eps, bf16* out,
             DeviceStream stream) {
  choose(x, rows, dim, weight, eps, out, stream);
}

}  // namespace akv::kernels::cuda
