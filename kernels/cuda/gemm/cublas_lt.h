// cublasLt, loaded while the process runs: a machine without it runs all the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/device_stream.h"
#include "kernels/types.h"

namespace akv::kernels::cuda {

// A product as in Gemm::run.
struct GemmCall {
  const bf16* x = nullptr;
  const bf16* w = nullptr;
  float* y = nullptr;
  int64_t m = 0, n = 0, k = 0;
  bool accumulate = false;
};

class LtGemm {
 public:
  virtual ~LtGemm() = default;
  // False where the library has no algorithm for the shape; nothing was enqueued then.
  virtual bool run(const GemmCall& call, DeviceStream stream) = 0;
  virtual const std::string& version() const = 0;
};

// Null, with the reason in why_not, where the library or its handle is not to be had.
std::unique_ptr<LtGemm> open_cublas_lt(void* workspace, size_t workspace_bytes,
                                       std::string& why_not);

}  // namespace akv::kernels::cuda
