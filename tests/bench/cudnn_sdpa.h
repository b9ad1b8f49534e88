// cuDNN's attention (SDPA), the peer of our kernels. The library is loaded while the process runs,
// so that a benchmark starts without it and can say what is missing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace akv::bench {

// Strides in elements of [batch][heads][tokens][head_dim]; a row's head_dim elements are dense.
struct SdpaLayout {
  int64_t batch = 0, head = 0, token = 0;
};

// softmax(q k^T / sqrt(head_dim)) v of bf16 tensors, f32 inside; heads / kv_heads query heads share
// a KV head, neighbours. Causal: query i sees keys 0 .. i.
struct SdpaProblem {
  int64_t batch = 1;
  int64_t heads = 0, kv_heads = 0;
  int64_t q_tokens = 0, kv_tokens = 0;
  int64_t head_dim = 0;
  bool causal = false;
  SdpaLayout q;   // of q and of the output
  SdpaLayout kv;  // of k and of v
};

// Device memory, aligned to 16 bytes.
struct SdpaBuffers {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;
  void* workspace = nullptr;  // workspace_bytes()
};

// A plan for one problem on the current device. Used by one thread.
class CudnnSdpa {
 public:
  virtual ~CudnnSdpa() = default;
  virtual size_t workspace_bytes() const = 0;
  // Enqueues on a cudaStream_t; can be captured. Throws std::runtime_error.
  virtual void run(const SdpaBuffers& buffers, void* stream) = 0;
};

// Throws std::runtime_error with the reason where there is none: built without cuDNN's headers, the
// library is not on this machine, or it refuses the problem.
std::unique_ptr<CudnnSdpa> make_cudnn_sdpa(const SdpaProblem& problem);

// "9.19.0" once a plan was made, else empty.
std::string cudnn_version();

}  // namespace akv::bench
