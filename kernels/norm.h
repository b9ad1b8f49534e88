// Root-mean-square normalisation.
#pragma once

#include <cstdint>

#include "kernels/device_stream.h"
#include "kernels/parallel.h"
#include "kernels/types.h"

namespace akv::kernels {

// out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight for each row of x [rows, dim]; weight [dim].
// out may be x. With dim = head_dim and rows = M * heads this is the per-head query/key norm.
// A row's result does not depend on the other rows or on the workers.
void rmsnorm(const float* x, int64_t rows, int dim, const float* weight, float eps, float* out,
             const Parallel& parallel);

namespace cuda {

// The same on a device; the bf16 form rounds once, to nearest even.
void rmsnorm(const float* x, int64_t rows, int dim, const float* weight, float eps, float* out,
             DeviceStream stream);
void rmsnorm(const float* x, int64_t rows, int dim, const float* weight, float eps, bf16* out,
             DeviceStream stream);

}  // namespace cuda

}  // namespace akv::kernels
