// Element-wise operators of the MLP and the residual stream.
#pragma once

#include <cstdint>

#include "kernels/parallel.h"

namespace akv::kernels {

// out[i] = gate[i] / (1 + exp(-gate[i])) * up[i] for i in [0, n). out may be gate or up.
void silu_mul(const float* gate, const float* up, int64_t n, float* out, const Parallel& parallel);

// x[i] += y[i] for i in [0, n).
void add(float* x, const float* y, int64_t n, const Parallel& parallel);

// x[r] += bias for each row of x [rows, dim]; bias [dim].
void add_bias(float* x, int64_t rows, int64_t dim, const float* bias, const Parallel& parallel);

}  // namespace akv::kernels
