// cuDNN through its header-only frontend, which finds the library's functions in a handle of
// dlopen.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include "tests/bench/cudnn_sdpa.h"

#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <unordered_map>
#include <vector>

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // the frontend's, by this name
}

namespace akv::bench {
namespace {

namespace fe = cudnn_frontend;
enum Uid : int64_t { kQ = 1, kK, kV, kOut };

void check(fe::error_t error, const char* what) {
  if (error.is_bad()) throw std::runtime_error(std::string(what) + ": " + error.get_message());
}

void check(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw std::runtime_error(std::string(what) + ": status " + std::to_string(status));
}

// The library stays loaded: it keeps state in the driver. The frontend looks for a CUDA runtime of
// its own; it is to be of the version that it was compiled for.
void load_library() {
  if (fe::cudnn_dlhandle != nullptr) return;
  const std::string runtime = "libcudart.so." + std::to_string(CUDART_VERSION / 1000);
  setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", runtime.c_str(), /*overwrite=*/0);
  fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_GLOBAL);
  if (fe::cudnn_dlhandle == nullptr) throw std::runtime_error(dlerror());
}

std::vector<int64_t> strides(const SdpaLayout& layout) {
  return {layout.batch, layout.head, layout.token, 1};
}

class Sdpa : public CudnnSdpa {
 public:
  explicit Sdpa(const SdpaProblem& problem) {
    check(fe::detail::create_handle(&handle_), "cudnnCreate");
    try {
      describe(problem);
      check(graph_.build(handle_, {fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}), "no plan");
    } catch (...) {
      (void)fe::detail::destroy_handle(handle_);
      throw;
    }
  }
  ~Sdpa() override { (void)fe::detail::destroy_handle(handle_); }
  Sdpa(const Sdpa&) = delete;
  Sdpa& operator=(const Sdpa&) = delete;

  size_t workspace_bytes() const override {
    int64_t bytes = 0;
    check(graph_.get_workspace_size(bytes), "workspace");
    return static_cast<size_t>(bytes);
  }

  void run(const SdpaBuffers& buffers, void* stream) override {
    if (stream != stream_) {
      check(fe::detail::set_stream(handle_, static_cast<cudaStream_t>(stream)), "cudnnSetStream");
      stream_ = stream;
    }
    std::unordered_map<int64_t, void*> tensors = {{kQ, const_cast<void*>(buffers.q)},
                                                  {kK, const_cast<void*>(buffers.k)},
                                                  {kV, const_cast<void*>(buffers.v)},
                                                  {kOut, buffers.out}};
    check(graph_.execute(handle_, tensors, buffers.workspace), "execute");
  }

 private:
  void describe(const SdpaProblem& p) {
    graph_.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const auto tensor = [&](const char* name, Uid uid, int64_t heads, int64_t tokens,
                            const SdpaLayout& layout) {
      return graph_.tensor(fe::graph::Tensor_attributes()
                               .set_name(name)
                               .set_uid(uid)
                               .set_dim({p.batch, heads, tokens, p.head_dim})
                               .set_stride(strides(layout)));
    };
    auto options = fe::graph::SDPA_attributes().set_name("sdpa").set_generate_stats(false);
    options.set_attn_scale(1.0f / std::sqrt(static_cast<float>(p.head_dim)));
    if (p.causal) {
      options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
          .set_diagonal_band_right_bound(0);
    }
    const auto result = graph_.sdpa(tensor("q", kQ, p.heads, p.q_tokens, p.q),
                                    tensor("k", kK, p.kv_heads, p.kv_tokens, p.kv),
                                    tensor("v", kV, p.kv_heads, p.kv_tokens, p.kv), options);
    result[0]
        ->set_output(true)
        .set_uid(kOut)
        .set_dim({p.batch, p.heads, p.q_tokens, p.head_dim})
        .set_stride(strides(p.q));
  }

  cudnnHandle_t handle_ = nullptr;
  void* stream_ = nullptr;  // the handle's
  fe::graph::Graph graph_;
};

}  // namespace

std::unique_ptr<CudnnSdpa> make_cudnn_sdpa(const SdpaProblem& problem) {
  load_library();
  return std::make_unique<Sdpa>(problem);
}

std::string cudnn_version() {
  if (fe::cudnn_dlhandle == nullptr) return {};
  const size_t version = fe::detail::get_backend_version();
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace akv::bench
