// Causal attention of a chunk of prompt rows over the dense K/V of one layer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device_stream.h"
#include "kernels/gemm.h"
#include "kernels/parallel.h"
#include "kernels/rope.h"
#include "kernels/types.h"

namespace akv::kernels {

// out[i,h] = sum_t softmax_t(<q[i,h], R_t k[t,h']> / sqrt(D)) v[t,h'],  t <= pos0 + i,
// h' = h / (q_heads / kv_heads), R_t the rotation of position t.
//
// k and v hold rows [0, pos0 + rows) of [S, kv_heads, D], keys BEFORE RoPE: they are rotated on the
// fly, a tile at a time, each tile once for all rows and query heads of a task. Either k/v (bf16)
// or k_f32/v_f32 (exact mode, for tests) is set. q is AFTER RoPE.
struct FlashPrefillParams {
  const float* q = nullptr;  // [rows, q_heads, D]
  const bf16* k = nullptr;   // [pos0 + rows, kv_heads, D], before RoPE
  const bf16* v = nullptr;   // [pos0 + rows, kv_heads, D]
  const float* k_f32 = nullptr;
  const float* v_f32 = nullptr;
  const RopeTable* rope = nullptr;
  float* out = nullptr;  // [rows, q_heads, D]
  int64_t rows = 0;      // >= 1; efficient from 128 on
  int64_t pos0 = 0;
  int q_heads = 0;  // a multiple of kv_heads
  int kv_heads = 0;
  int head_dim = 0;  // a multiple of 8, at most 256
  // kF32: rotated keys and probabilities stay f32. kBf16: queries, rotated keys and probabilities
  // are rounded to bf16 and multiplied by bf16 dot products, sums and softmax in f32; needs
  // active_isa() == kAvx512Bf16, else it falls back to f32.
  Compute compute = Compute::kF32;
};

// Per-worker tiles. The owner; grows with (head_dim, group, workers) only, not with the prompt.
class FlashPrefillScratch {
 public:
  FlashPrefillScratch();
  ~FlashPrefillScratch();
  FlashPrefillScratch(const FlashPrefillScratch&) = delete;
  FlashPrefillScratch& operator=(const FlashPrefillScratch&) = delete;

  // At least bytes_per_worker of 64-byte aligned memory for each worker.
  std::byte* worker(int worker) const { return data_ + stride_ * static_cast<size_t>(worker); }
  void reserve(int workers, size_t bytes_per_worker);
  size_t bytes() const { return capacity_; }

 private:
  std::byte* data_ = nullptr;
  size_t stride_ = 0;
  size_t capacity_ = 0;
};

// Runs on the pool's workers, tasks of (kv head, tile of rows), longest first. A row's result does
// not depend on rows, on pos0's split into chunks or on the workers: key blocks start at multiples
// of a fixed size, in order.
void flash_prefill(const FlashPrefillParams& params, FlashPrefillScratch& scratch,
                   const Parallel& parallel);

namespace cuda {

// Causal attention of a chunk as above, on a device: operands and probabilities in bf16, logits,
// softmax and sums in f32. Keys come AFTER RoPE: turning a tile anew for every block of rows that
// reads it costs 15 to 25% of the kernel, a turned copy of the one layer at work half a layer of
// memory (finish_qkv writes both forms in one pass). head_dim is 64, 96, 128 or 256, a group
// (q_heads / kv_heads) is 1 to 16 query heads.
struct FlashPrefillParams {
  const bf16* q = nullptr;  // [rows, q_heads, D], after RoPE
  const bf16* k = nullptr;  // [pos0 + rows, kv_heads, D], after RoPE
  const bf16* v = nullptr;  // [pos0 + rows, kv_heads, D]
  // Either or both: f32, and rounded to bf16 for the product that follows. [rows, q_heads, D]
  float* out = nullptr;
  bf16* out_bf16 = nullptr;
  int64_t rows = 0;
  int64_t pos0 = 0;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
};

// True for the shapes that flash_prefill takes.
bool flash_prefill_supports(int q_heads, int kv_heads, int head_dim);

// All pointers are aligned to 16 bytes; pos0 + rows and rows * group are below 2^31. A row's result
// does not depend on rows or on how the prompt is cut into chunks: key blocks start at multiples of
// a fixed size, in order.
void flash_prefill(const FlashPrefillParams& params, DeviceStream stream);

}  // namespace cuda

}  // namespace akv::kernels
