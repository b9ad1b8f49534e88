#include "kernels/finish_qkv.h"

#include "kernels/compressed_view.h"
#include "kernels/cuda/convert.h"
#include "kernels/cuda/elementwise/rotate.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"

namespace akv::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kMaxDim = 256;

// A warp's vector: head `head` of a query, key or value of row `row`.
enum class Kind { kQuery, kKey, kValue };

struct Vector {
  Kind kind;
  int64_t row;
  int head;
};

__device__ __forceinline__ Vector vector_at(const FinishQkvParams& p, int64_t index) {
  const int per_row = p.heads + 2 * p.kv_heads;
  const int64_t row = index / per_row;
  const auto head = static_cast<int>(index % per_row);
  if (head < p.heads) return {Kind::kQuery, row, head};
  if (head < p.heads + p.kv_heads) return {Kind::kKey, row, head - p.heads};
  return {Kind::kValue, row, head - p.heads - p.kv_heads};
}

// Two neighbouring elements, d even, D even: aligned to their pair.
__device__ __forceinline__ void store_pair(bf16* out, float a, float b) {
  *reinterpret_cast<uint32_t*>(out) = pack_bf16(a, b);
}
__device__ __forceinline__ void store_pair(float* out, float a, float b) {
  *reinterpret_cast<float2*>(out) = make_float2(a, b);
}

// Row r's place in its suffix page; null where the row is left out.
__device__ __forceinline__ bf16* page_row(const FinishQkvParams& p, const Vector& at, int dim) {
  if (p.pages == nullptr || p.slots[at.row] < 0) return nullptr;
  const int64_t kv_dim = static_cast<int64_t>(p.kv_heads) * dim;
  const int64_t values = at.kind == Kind::kValue ? kSuffixPageTokens * kv_dim : 0;
  return p.pages[at.row] + p.layer_offset + values + p.slots[at.row] * kv_dim + at.head * dim;
}

// Bias and norm; x [dim] in shared memory, of this warp alone.
__device__ __forceinline__ void prepare(const float* in, const float* bias, const float* norm,
                                        float eps, int dim, float* x) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float sum = 0.0f;
  for (int d = lane; d < dim; d += kWarp) {
    const float value = bias == nullptr ? in[d] : in[d] + bias[d];
    sum = fmaf(value, value, sum);
    x[d] = value;
  }
  if (norm != nullptr) {
    const float scale = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(dim) + eps);
    for (int d = lane; d < dim; d += kWarp) x[d] = x[d] * scale * norm[d];
  }
  __syncwarp();
}

__device__ __forceinline__ const float* rope_row(const FinishQkvParams& p, int64_t row) {
  const int64_t position = p.positions == nullptr ? p.pos0 + row : p.positions[row];
  return p.rope.rows + position * 2 * p.rope.half;
}

__device__ void finish_query(const FinishQkvParams& p, const Vector& at, const float* x) {
  const int dim = p.rope.head_dim;
  const float* row = rope_row(p, at.row);
  const int64_t out = (at.row * p.heads + at.head) * dim;
  for (int d = 2 * static_cast<int>(threadIdx.x % kWarp); d < dim; d += 2 * kWarp) {
    const float a = rotated_element(p.rope, row, x, d), b = rotated_element(p.rope, row, x, d + 1);
    if (p.q_f32 != nullptr) store_pair(p.q_f32 + out + d, a, b);
    if (p.q_bf16 != nullptr) store_pair(p.q_bf16 + out + d, a, b);
  }
}

__device__ void finish_key(const FinishQkvParams& p, const Vector& at, const float* x) {
  const int dim = p.rope.head_dim;
  const float* row = rope_row(p, at.row);
  bf16* page = page_row(p, at, dim);
  const int64_t out = (at.row * p.kv_heads + at.head) * dim;
  for (int d = 2 * static_cast<int>(threadIdx.x % kWarp); d < dim; d += 2 * kWarp) {
    if (p.k_pre != nullptr) store_pair(p.k_pre + out + d, x[d], x[d + 1]);
    const float a = rotated_element(p.rope, row, x, d), b = rotated_element(p.rope, row, x, d + 1);
    if (p.k_rot != nullptr) store_pair(p.k_rot + out + d, a, b);
    if (page != nullptr) store_pair(page + d, a, b);
  }
}

__device__ void finish_value(const FinishQkvParams& p, const Vector& at, const float* x) {
  const int dim = p.rope.head_dim;
  bf16* page = page_row(p, at, dim);
  const int64_t out = (at.row * p.kv_heads + at.head) * dim;
  for (int d = 2 * static_cast<int>(threadIdx.x % kWarp); d < dim; d += 2 * kWarp) {
    if (p.v_bf16 != nullptr) store_pair(p.v_bf16 + out + d, x[d], x[d + 1]);
    if (page != nullptr) store_pair(page + d, x[d], x[d + 1]);
  }
}

__global__ void __launch_bounds__(kWarps* kWarp) finish_qkv_kernel(FinishQkvParams p) {
  __shared__ float vectors[kWarps][kMaxDim];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  if (index >= p.rows * (p.heads + 2 * p.kv_heads)) return;  // whole warps
  const Vector at = vector_at(p, index);
  const int dim = p.rope.head_dim;
  float* x = vectors[warp];
  const int64_t head = at.head * static_cast<int64_t>(dim);
  const int64_t q_in = at.row * p.heads * dim + head, kv_in = at.row * p.kv_heads * dim + head;
  switch (at.kind) {
    case Kind::kQuery:
      prepare(p.q + q_in, p.bq == nullptr ? nullptr : p.bq + head, p.q_norm, p.eps, dim, x);
      return finish_query(p, at, x);
    case Kind::kKey:
      prepare(p.k + kv_in, p.bk == nullptr ? nullptr : p.bk + head, p.k_norm, p.eps, dim, x);
      return finish_key(p, at, x);
    case Kind::kValue:
      prepare(p.v + kv_in, p.bv == nullptr ? nullptr : p.bv + head, nullptr, p.eps, dim, x);
      return finish_value(p, at, x);
  }
}

}  // namespace

void finish_qkv(const FinishQkvParams& params, DeviceStream stream) {
  const int64_t vectors = params.rows * (params.heads + 2 * params.kv_heads);
  if (vectors == 0) return;
  const auto grid = static_cast<unsigned>((vectors + kWarps - 1) / kWarps);
  AKV_LAUNCH(finish_qkv_kernel, grid, kWarps * kWarp, 0, stream, params);
}

}  // namespace akv::kernels::cuda
