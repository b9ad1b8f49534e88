// Matrix product for few rows (decode), straight from the stored weights.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/parallel.h"
#include "kernels/types.h"

namespace akv::kernels {

inline constexpr int kMaxLowbitRows = 16;

// One product of a batch that shares its input: y [m, w.rows] = x [m, w.cols] W^T.
struct LowbitProduct {
  Matrix w;
  float* y = nullptr;
};

// y [m, N] = x [m, K] W^T for 1 <= m <= kMaxLowbitRows. Weights are read once for all m rows and
// stay in their stored format (no expanded copy in memory); activations are f32 and products are
// summed in f32, so the only error beyond the format's is f32 rounding. A row's result is the same
// bits for every m, every batch around it and every number of workers. All products share x (one
// parallel region, e.g. wq, wk, wv). w.cols is a multiple of the format's block and of 8. No lock;
// no allocation after the largest shape was seen.
void matmul_lowbit(const float* x, int m, std::span<const LowbitProduct> products,
                   const Parallel& parallel);

void matmul_lowbit(const float* x, int m, const Matrix& w, float* y, const Parallel& parallel);

}  // namespace akv::kernels
