// The prefill product without cublasLt.
#pragma once

#include <cstdint>

#include "kernels/device_stream.h"
#include "kernels/types.h"

namespace akv::kernels::cuda {

// As Gemm::run. A row's result does not depend on m or on the other rows.
void mma_gemm(const bf16* x, int64_t m, const bf16* w, int64_t n, int64_t k, float* y,
              bool accumulate, DeviceStream stream);

}  // namespace akv::kernels::cuda
