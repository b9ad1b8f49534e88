// Rows of the residual stream at rest, between the layers of a long prompt, in half the memory of
// f32. Each row has a power of two of its own that brings its largest number just under the
// largest binary16: 11 bits of every number within 2^-29 of the row's largest. bf16, as products
// read the rows right after their norm, keeps 8.
#pragma once

#include <cstdint>

#include "kernels/device_stream.h"

namespace akv::kernels::cuda {

// values [rows, dim] binary16, scales [rows]: x[r, i] ~ values[r, i] * scales[r]. NaN stays NaN,
// and a row with an infinity keeps it. A row's result does not depend on the others.
void pack_rows(const float* x, int64_t rows, int64_t dim, uint16_t* values, float* scales,
               DeviceStream stream);
void unpack_rows(const uint16_t* values, const float* scales, int64_t rows, int64_t dim, float* x,
                 DeviceStream stream);

}  // namespace akv::kernels::cuda
