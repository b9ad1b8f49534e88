// Merges the pieces of every row and query head: log-sum-exp over the splits, then the inverse
// Hadamard rotation of what the value residuals gave.
#include "kernels/cuda/decode_attention/arguments.h"
#include "kernels/cuda/decode_attention/registers.h"
#include "kernels/cuda/launch.h"

namespace akv::kernels::cuda::decode {
namespace {

constexpr int kCombineThreads = 128;
constexpr int kMaxDim = 256;
constexpr int kEach = kMaxDim / kCombineThreads;

// x := H x / sqrt(B) by the whole block.
AKV_DEVICE void block_hadamard(float* x, int head_dim, int tid) {
  const int block = head_dim & -head_dim;
  for (int half = 1; half < block; half *= 2) {
    __syncthreads();
    for (int i = tid; i < head_dim / 2; i += kCombineThreads) {
      const int at = i / half * 2 * half + i % half;
      const float a = x[at], b = x[at + half];
      x[at] = a + b;
      x[at + half] = a - b;
    }
  }
  __syncthreads();
}

struct HeadSum {
  float o[kEach] = {};
  float z[kEach] = {};
  float total = 0;
};

AKV_DEVICE HeadSum merge_pieces(const float* partial, int64_t step, int pieces, int compressed,
                                int head_dim, int tid) {
  HeadSum s;
  float peak = -INFINITY;
  for (int i = 0; i < pieces; ++i) peak = fmaxf(peak, partial[i * step]);
  for (int i = 0; i < pieces; ++i) {
    const float* part = partial + i * step;
    const float weight = exp2_approx(part[0] - peak);
    s.total += weight * part[1];
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int d = tid + e * kCombineThreads;
      if (d >= head_dim) continue;
      s.o[e] += weight * part[2 + d];
      if (i < compressed) s.z[e] += weight * part[2 + head_dim + d];
    }
  }
  return s;
}

// Grid (query heads, rows of the limits).
__global__ void __launch_bounds__(kCombineThreads)
    combine_pieces(const KernelArgs args, int head_dim, float* out) {
  __shared__ float x[kMaxDim];
  const auto& header = *reinterpret_cast<const PlanHeader*>(args.plan);
  const int r = static_cast<int>(blockIdx.y), head = static_cast<int>(blockIdx.x);
  const int tid = static_cast<int>(threadIdx.x);
  if (r >= header.rows) return;
  const PlanRow& row = reinterpret_cast<const PlanRow*>(args.plan + header.row_table)[r];
  const int group = args.heads / args.kv_heads, parts = parts_of(group);
  const int in_group = head % group;
  int part = 0;
  while (part_begin(group, part + 1) <= in_group) ++part;
  const int first = row.first_piece + (head / group * parts + part) * row.pieces;
  const int64_t stride = partial_stride(head_dim), step = args.part_heads * stride;
  const float* partial =
      args.partials + first * step + (in_group - part_begin(group, part)) * stride;
  const HeadSum s = merge_pieces(partial, step, row.pieces, row.compressed_pieces, head_dim, tid);
  const bool rotated = row.compressed_pieces > 0;
  if (rotated) {
    for (int e = 0; e < kEach; ++e) x[tid + e * kCombineThreads] = s.z[e];
    block_hadamard(x, head_dim, tid);
  }
  const float norm = s.total > 0.0f ? 1.0f / s.total : 0.0f;
  const float root = rsqrtf(static_cast<float>(head_dim & -head_dim));
  for (int e = 0; e < kEach; ++e) {
    const int d = tid + e * kCombineThreads;
    if (d >= head_dim) continue;
    const float z = rotated ? x[d] * root * row.prompt[args.layer].signs[d] : 0.0f;
    out[(int64_t{r} * args.heads + head) * head_dim + d] = (s.o[e] + z) * norm;
  }
}

}  // namespace

void launch_combine(const KernelArgs& args, int head_dim, int rows, float* out,
                    DeviceStream stream) {
  const dim3 grid(static_cast<unsigned>(args.heads), static_cast<unsigned>(rows));
  AKV_LAUNCH(combine_pieces, grid, kCombineThreads, 0, stream, args, head_dim, out);
}

}  // namespace akv::kernels::cuda::decode
