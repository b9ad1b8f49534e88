// One rotated element of a head's vector.
#pragma once

#include <cuda_runtime.h>

#include "kernels/rope.h"

namespace akv::kernels::cuda {

// Element d of R_t x, with x [head_dim] and `row` the table's row of position t. Elements from the
// rotated dimensions on are x's.
__device__ __forceinline__ float rotated_element(const DeviceRope& table, const float* row,
                                                 const float* x, int d) {
  if (d >= 2 * table.half) return x[d];
  const bool halves = table.pairs == RopePairs::kHalf;
  const int pair = halves ? d % table.half : d / 2;
  const bool second = halves ? d >= table.half : d % 2 == 1;
  const int step = halves ? table.half : 1;
  const float cos = row[pair], sin = row[table.half + pair];
  return second ? fmaf(x[d], cos, x[d - step] * sin) : fmaf(x[d], cos, -x[d + step] * sin);
}

}  // namespace akv::kernels::cuda
