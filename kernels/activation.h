// Element-wise operators of the MLP and the residual stream.
#pragma once

#include <cstdint>

#include "kernels/device_stream.h"
#include "kernels/parallel.h"
#include "kernels/types.h"

namespace akv::kernels {

// out[i] = gate[i] / (1 + exp(-gate[i])) * up[i] for i in [0, n). out may be gate or up.
void silu_mul(const float* gate, const float* up, int64_t n, float* out, const Parallel& parallel);

// x[i] += y[i] for i in [0, n).
void add(float* x, const float* y, int64_t n, const Parallel& parallel);

// x[r] += bias for each row of x [rows, dim]; bias [dim].
void add_bias(float* x, int64_t rows, int64_t dim, const float* bias, const Parallel& parallel);

namespace cuda {

// The same on a device. The bf16 form is the input of the product that follows.
void silu_mul(const float* gate, const float* up, int64_t n, float* out, DeviceStream stream);
void silu_mul(const float* gate, const float* up, int64_t n, bf16* out, DeviceStream stream);
void add(float* x, const float* y, int64_t n, DeviceStream stream);
void add_bias(float* x, int64_t rows, int64_t dim, const float* bias, DeviceStream stream);

// out[i] = x[rows[i]] for i in [0, count), rows of dim elements. out must not overlap x.
void gather_rows(const float* x, const int32_t* rows, int64_t count, int64_t dim, float* out,
                 DeviceStream stream);

}  // namespace cuda

}  // namespace akv::kernels
