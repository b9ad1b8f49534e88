#include "kernels/rope.h"

#include "kernels/cuda/launch.h"

namespace akv::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// A thread turns one pair in place.
__global__ void __launch_bounds__(kThreads)
    rope_kernel(DeviceRope table, float* x, int64_t vectors, int heads, const int64_t* positions) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= vectors * table.half) return;
  const int64_t vector = at / table.half;
  const auto pair = static_cast<int>(at % table.half);
  const float* row = table.rows + positions[vector / heads] * 2 * table.half;
  const float cos = row[pair], sin = row[table.half + pair];
  const bool halves = table.pairs == RopePairs::kHalf;
  float* a = x + vector * table.head_dim + (halves ? pair : 2 * pair);
  float* b = a + (halves ? table.half : 1);
  const float xa = *a, xb = *b;
  *a = fmaf(xa, cos, -xb * sin);
  *b = fmaf(xb, cos, xa * sin);
}

}  // namespace

void rope_apply(const DeviceRope& table, float* x, int64_t rows, int heads,
                const int64_t* positions, DeviceStream stream) {
  const int64_t vectors = rows * heads;
  const auto grid = static_cast<unsigned>((vectors * table.half + kThreads - 1) / kThreads);
  if (grid == 0) return;
  AKV_LAUNCH(rope_kernel, grid, kThreads, 0, stream, table, x, vectors, heads, positions);
}

}  // namespace akv::kernels::cuda
