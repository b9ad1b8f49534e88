#include "kernels/gemm.h"

#include <string>

#include "kernels/cuda/gemm/cublas_lt.h"
#include "kernels/cuda/gemm/mma_gemm.h"

namespace akv::kernels::cuda {

struct Gemm::State {
  std::unique_ptr<LtGemm> library;
  std::string description;
};

Gemm::Gemm(void* workspace, size_t workspace_bytes, Backend backend)
    : state_(std::make_unique<State>()) {
  std::string why_not = "asked for";
  if (backend == Backend::kAuto) {
    state_->library = open_cublas_lt(workspace, workspace_bytes, why_not);
  }
  state_->description = state_->library != nullptr ? "cublasLt " + state_->library->version()
                                                   : "own mma.sync (" + why_not + ")";
}

Gemm::~Gemm() = default;

void Gemm::run(const bf16* x, int64_t m, const bf16* w, int64_t n, int64_t k, float* y,
               bool accumulate, DeviceStream stream) {
  if (m == 0 || n == 0) return;
  const GemmCall call{x, w, y, m, n, k, accumulate};
  if (state_->library != nullptr && state_->library->run(call, stream)) return;
  mma_gemm(x, m, w, n, k, y, accumulate, stream);
}

const char* Gemm::description() const { return state_->description.c_str(); }

}  // namespace akv::kernels::cuda
