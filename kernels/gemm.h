// Matrix product for many rows (prefill): weights expanded and packed once, then many row tiles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

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

}  // namespace akv::kernels
