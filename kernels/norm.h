// Root-mean-square normalisation.
#pragma once

#include <cstdint>

#include "kernels/parallel.h"

namespace akv::kernels {

// out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight for each row of x [rows, dim]; weight [dim].
// out may be x. With dim = head_dim and rows = M * heads this is the per-head query/key norm.
// A row's result does not depend on the other rows or on the workers.
void rmsnorm(const float* x, int64_t rows, int dim, const float* weight, float eps, float* out,
             const Parallel& parallel);

}  // namespace akv::kernels
