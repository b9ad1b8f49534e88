// Matrix product for many rows (prefill): weights expanded and packed once, then many row tiles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/device_stream.h"
#include "kernels/parallel.h"
#include "kernels/types.h"

namespace akv::kernels {

// Arithmetic of the prefill GEMM. kF32: f32 products and sums. kBf16: activations and weights
// rounded to bf16, products summed in f32.
enum class Compute { kF32, kBf16 };

// kBf16 where active_isa() has bf16 products, else kF32. (oneDNN throws if asked for a bf16
// product on a CPU without AVX-512, so this is decided once, at start.)
Compute best_compute();
const char* compute_name(Compute compute);

// One weight matrix W [N, K], expanded from its stored format and packed in the layout that the
// GEMM reads. The owner of one aligned buffer that pack() reuses: one PackedWeights per role
// (wq, w_up, ...) serves every layer in turn without allocating after the first.
class PackedWeights {
 public:
  PackedWeights();
  ~PackedWeights();
  PackedWeights(PackedWeights&&) noexcept;
  PackedWeights& operator=(PackedWeights&&) noexcept;

  // Expands and packs w (rows = N outputs, cols = K inputs). Replaces what was held. Allocates only
  // when w needs more room than any before it; throws std::bad_alloc, or std::runtime_error if the
  // CPU cannot compute in `compute`. Must not overlap a gemm() that reads this object.
  void pack(const Matrix& w, Compute compute, const Parallel& parallel);

  int64_t rows() const;  // N
  int64_t cols() const;  // K
  Compute compute() const;
  size_t bytes() const;  // held, for memory accounting
  // Gives the buffer back (an idle prefill node keeps none).
  void clear();

  struct Impl;
  const Impl* impl() const { return impl_.get(); }

 private:
  std::unique_ptr<Impl> impl_;
};

// y [m, N] = x [m, K] W^T, or y += x W^T with accumulate. m >= 1; efficient from 16 rows on. A
// row's result does not depend on m, on the other rows or on the number of workers. Runs on the
// pool's workers, tiles of rows each. Scratch is per thread and only grows; nothing is created or
// allocated once a shape has been seen.
void gemm(const float* x, int64_t m, const PackedWeights& w, float* y, const Parallel& parallel,
          bool accumulate = false);

namespace cuda {

// The prefill product on a device: bf16 operands, f32 sums and output. By cublasLt where the
// process can load it, else by a kernel of ours; a shape that the library refuses goes to ours too.
// The owner of the library's handle and of what it chose for each shape. Used by one thread.
class Gemm {
 public:
  enum class Backend { kAuto, kOwn };
  static constexpr size_t kWorkspaceBytes = size_t{32} << 20;

  // workspace: device memory that outlives this object, used by one stream at a time.
  // workspace_bytes may be 0, and is kWorkspaceBytes where the library should have a free choice.
  Gemm(void* workspace, size_t workspace_bytes, Backend backend = Backend::kAuto);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  // y [m, n] = x [m, k] W^T, or y += x W^T with accumulate; w [n, k]. All row-major and dense,
  // aligned to 16 bytes; k is a multiple of 8. A row's result does not depend on m or on the other
  // rows: the library's algorithm is chosen per (n, k) alone and may not split k.
  void run(const bf16* x, int64_t m, const bf16* w, int64_t n, int64_t k, float* y, bool accumulate,
           DeviceStream stream);

  // "cublasLt 13.0.0", or "own mma.sync (libcublasLt.so.13: cannot open ...)" with the reason why
  // the library is not used. For the start-up log.
  const char* description() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cuda

}  // namespace akv::kernels
