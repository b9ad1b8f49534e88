// The model operators as plain scalar loops in double: written to be read, and what tests compare
// the fast ones with.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/flash_prefill.h"
#include "kernels/rope.h"
#include "kernels/types.h"

namespace akv::kernels::reference {

// One weight of a stored matrix, from the format's definition alone.
double weight(const Matrix& m, int64_t row, int64_t col);

// y [m, N] = x [m, K] W^T.
void matmul(const float* x, int64_t m, const Matrix& w, double* y);

void rmsnorm(const float* x, int64_t rows, int64_t dim, const float* weights, double eps,
             double* out);

void silu_mul(const float* gate, const float* up, int64_t n, double* out);

// R_t x for one head's vector.
void rope(const RopeParams& params, const double* x, int64_t position, double* out);

// Causal attention as flash_prefill defines it, softmax in two passes.
void attention(const FlashPrefillParams& params, double* out);

}  // namespace akv::kernels::reference
