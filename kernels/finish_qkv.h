// What follows the three products of an attention layer on a device, in one pass over them.
#pragma once

#include <cstdint>

#include "kernels/device_stream.h"
#include "kernels/rope.h"
#include "kernels/types.h"

namespace akv::kernels::cuda {

// Queries: bias, per-head norm, RoPE. Keys: bias, per-head norm, then both before and after RoPE.
// Values: bias. D is rope.head_dim. Null inputs are left out, null outputs not written; every
// output is rounded once, from the f32 value.
struct FinishQkvParams {
  const float* q = nullptr;       // [rows, heads, D], the products
  const float* k = nullptr;       // [rows, kv_heads, D]
  const float* v = nullptr;       // [rows, kv_heads, D]
  const float* bq = nullptr;      // [heads * D]
  const float* bk = nullptr;      // [kv_heads * D]
  const float* bv = nullptr;      // [kv_heads * D]
  const float* q_norm = nullptr;  // [D]
  const float* k_norm = nullptr;  // [D]
  float eps = 0;
  DeviceRope rope;
  const int64_t* positions = nullptr;  // [rows]; null: row r stands at pos0 + r
  int64_t pos0 = 0;
  int64_t rows = 0;
  int heads = 0;
  int kv_heads = 0;

  float* q_f32 = nullptr;  // [rows, heads, D]; may be q
  bf16* q_bf16 = nullptr;  // [rows, heads, D]
  bf16* k_pre = nullptr;   // [rows, kv_heads, D], before RoPE: the codec's input
  bf16* k_rot = nullptr;   // [rows, kv_heads, D], after RoPE: attention's
  bf16* v_bf16 = nullptr;  // [rows, kv_heads, D]
  // Decode: row r's key (after RoPE) and value go into its suffix page (compressed_view.h), token
  // slots[r] of pages[r]. Both arrays lie on the device, so that a replayed graph sees this step's;
  // slots[r] < 0 leaves the row out (a batch padded to the graph's size).
  bf16* const* pages = nullptr;    // [rows]
  const int32_t* slots = nullptr;  // [rows], in [0, kSuffixPageTokens)
  int64_t layer_offset = 0;        // of the layer in a page, elements
};

// D is even and at most 256. Does not depend on the other rows.
void finish_qkv(const FinishQkvParams& params, DeviceStream stream);

}  // namespace akv::kernels::cuda
