#include "kernels/cuda/gemm/cublas_lt.h"

// The shim of the tests has no cublasLt: there, Gemm runs the kernel of ours.
#ifndef __CUDACC__

namespace akv::kernels::cuda {

std::unique_ptr<LtGemm> open_cublas_lt(void*, size_t, std::string& why_not) {
  why_not = "this build has no cublasLt";
  return nullptr;
}

}  // namespace akv::kernels::cuda

#else

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <unordered_map>

namespace akv::kernels::cuda {
namespace {

#define AKV_CUBLAS_LT_FUNCTIONS(X)         \
  X(cublasLtCreate)                        \
  X(cublasLtDestroy)                       \
  X(cublasLtGetStatusString)               \
  X(cublasLtGetVersion)                    \
  X(cublasLtMatmul)                        \
  X(cublasLtMatmulAlgoCheck)               \
  X(cublasLtMatmulAlgoGetHeuristic)        \
  X(cublasLtMatmulDescInit_internal)       \
  X(cublasLtMatmulDescSetAttribute)        \
  X(cublasLtMatmulPreferenceInit_internal) \
  X(cublasLtMatmulPreferenceSetAttribute)  \
  X(cublasLtMatrixLayoutInit_internal)

// The functions in use, by their own names. The library stays loaded for the life of the process:
// it keeps state in the driver that outlives a handle.
struct Library {
#define AKV_MEMBER(name) decltype(&::name) name = nullptr;
  AKV_CUBLAS_LT_FUNCTIONS(AKV_MEMBER)
#undef AKV_MEMBER

  // Empty where all functions were found, else what was not.
  std::string load() {
    const std::string file = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
    void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return dlerror();
#define AKV_LOAD(name)                                           \
  name = reinterpret_cast<decltype(name)>(dlsym(handle, #name)); \
  if (name == nullptr) return file + " has no " #name;
    AKV_CUBLAS_LT_FUNCTIONS(AKV_LOAD)
#undef AKV_LOAD
    return {};
  }
};

// Rows that an algorithm is chosen for, whatever the call's: one choice per (n, k) gives a row the
// same bits in every chunk.
constexpr int64_t kNominalRows = 1024;
constexpr uint32_t kAlignment = 16;  // bytes

// Column-major, as the library reads it: y^T [n, m] = W x^T, with W [k, n] transposed and x [k, m].
struct Problem {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t w, x, y;
};

class Lt : public LtGemm {
 public:
  Lt(const Library& library, cublasLtHandle_t handle, void* workspace, size_t workspace_bytes)
      : lib_(library), handle_(handle), workspace_(workspace), workspace_bytes_(workspace_bytes) {
    const size_t v = lib_.cublasLtGetVersion();
    version_ = std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." +
               std::to_string(v % 100);
  }
  ~Lt() override { lib_.cublasLtDestroy(handle_); }

  bool run(const GemmCall& call, DeviceStream stream) override;
  const std::string& version() const override { return version_; }

 private:
  struct Choice {
    bool found = false;
    cublasLtMatmulAlgo_t algorithm;
  };
  bool describe(int64_t m, int64_t n, int64_t k, Problem& out) const;
  Choice choose(int64_t n, int64_t k) const;

  Library lib_;
  cublasLtHandle_t handle_;
  void* workspace_;
  size_t workspace_bytes_;
  std::string version_;
  std::unordered_map<uint64_t, Choice> choices_;  // by n << 32 | k
};

bool Lt::describe(int64_t m, int64_t n, int64_t k, Problem& out) const {
  const auto layout = [&](cublasLtMatrixLayoutOpaque_t& to, cudaDataType type, int64_t rows,
                          int64_t cols) {
    return lib_.cublasLtMatrixLayoutInit_internal(
               &to, sizeof(to), type, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols),
               rows) == CUBLAS_STATUS_SUCCESS;
  };
  const cublasOperation_t transposed = CUBLAS_OP_T;
  return lib_.cublasLtMatmulDescInit_internal(&out.operation, sizeof(out.operation),
                                              CUBLAS_COMPUTE_32F,
                                              CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
         lib_.cublasLtMatmulDescSetAttribute(&out.operation, CUBLASLT_MATMUL_DESC_TRANSA,
                                             &transposed,
                                             sizeof(transposed)) == CUBLAS_STATUS_SUCCESS &&
         layout(out.w, CUDA_R_16BF, k, n) && layout(out.x, CUDA_R_16BF, k, m) &&
         layout(out.y, CUDA_R_32F, n, m);
}

Lt::Choice Lt::choose(int64_t n, int64_t k) const {
  Choice choice;
  Problem problem;
  cublasLtMatmulPreferenceOpaque_t preference;
  if (!describe(kNominalRows, n, k, problem) ||
      lib_.cublasLtMatmulPreferenceInit_internal(&preference, sizeof(preference)) !=
          CUBLAS_STATUS_SUCCESS) {
    return choice;
  }
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    return lib_.cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value,
                                                     sizeof(value)) == CUBLAS_STATUS_SUCCESS;
  };
  // Without a reduction over parts of k, an output is summed in one order, whatever m is.
  const auto whole_k = static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE);
  const bool ready =
      set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes_)) &&
      set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, whole_k) &&
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kAlignment) &&
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kAlignment) &&
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kAlignment) &&
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kAlignment);
  cublasLtMatmulHeuristicResult_t result;
  int found = 0;
  choice.found = ready &&
                 lib_.cublasLtMatmulAlgoGetHeuristic(
                     handle_, &problem.operation, &problem.w, &problem.x, &problem.y, &problem.y,
                     &preference, 1, &result, &found) == CUBLAS_STATUS_SUCCESS &&
                 found > 0 && result.state == CUBLAS_STATUS_SUCCESS;
  if (choice.found) choice.algorithm = result.algo;
  return choice;
}

bool Lt::run(const GemmCall& call, DeviceStream stream) {
  const uint64_t key = static_cast<uint64_t>(call.n) << 32 | static_cast<uint64_t>(call.k);
  auto at = choices_.find(key);
  if (at == choices_.end()) at = choices_.emplace(key, choose(call.n, call.k)).first;
  const Choice& choice = at->second;
  Problem p;
  cublasLtMatmulHeuristicResult_t checked;
  if (!choice.found || !describe(call.m, call.n, call.k, p) ||
      lib_.cublasLtMatmulAlgoCheck(handle_, &p.operation, &p.w, &p.x, &p.y, &p.y, &choice.algorithm,
                                   &checked) != CUBLAS_STATUS_SUCCESS ||
      checked.workspaceSize > workspace_bytes_) {
    return false;
  }
  const float one = 1.0f, beta = call.accumulate ? 1.0f : 0.0f;
  return lib_.cublasLtMatmul(handle_, &p.operation, &one, call.w, &p.w, call.x, &p.x, &beta, call.y,
                             &p.y, call.y, &p.y, &choice.algorithm, workspace_, workspace_bytes_,
                             static_cast<cudaStream_t>(stream.handle)) == CUBLAS_STATUS_SUCCESS;
}

}  // namespace

std::unique_ptr<LtGemm> open_cublas_lt(void* workspace, size_t workspace_bytes,
                                       std::string& why_not) {
  Library library;
  why_not = library.load();
  if (!why_not.empty()) return nullptr;
  cublasLtHandle_t handle = nullptr;
  const cublasStatus_t status = library.cublasLtCreate(&handle);
  if (status != CUBLAS_STATUS_SUCCESS) {
    why_not = std::string("cublasLtCreate: ") + library.cublasLtGetStatusString(status);
    return nullptr;
  }
  return std::make_unique<Lt>(library, handle, workspace, workspace_bytes);
}

}  // namespace akv::kernels::cuda

#endif
