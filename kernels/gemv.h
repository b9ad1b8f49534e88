// Matrix product for few rows (decode), straight from the stored weights.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/device_stream.h"
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

namespace cuda {

// The most products of one call.
inline constexpr int kMaxLowbitProducts = 4;

// The same on a device, in one launch: y = x W^T, or y += x W^T with accumulate. x, every y and
// every w.data are aligned to 16 bytes. Weights are read once, a row's result is the same bits for
// every m and every set of products; its sums run in another order than the CPU's.
void matmul_lowbit(const float* x, int m, std::span<const LowbitProduct> products, bool accumulate,
                   DeviceStream stream);
void matmul_lowbit(const float* x, int m, const Matrix& w, float* y, bool accumulate,
                   DeviceStream stream);

}  // namespace cuda

}  // namespace akv::kernels
