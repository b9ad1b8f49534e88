// Anchor rows of both sides, gathered and measured.
#include "kernels/cuda/codec/numeric.h"

namespace akv::kernels::cuda {
namespace {

// One warp an anchor, eight anchors a block; grid (padded / 8, heads, side).
__global__ void __launch_bounds__(256) gather_kernel(CodecLayer layer, LayerAnchors a) {
  const int slot = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
  const int head = blockIdx.y, side = blockIdx.z, depth = layer.head_dim;
  const int64_t at = (static_cast<int64_t>(side) * a.heads + head) * a.padded + slot;
  const bool real = slot < a.k;
  const bf16* source = side == 0 ? layer.k : layer.v;
  if (real) {
    const int64_t t = a.positions[static_cast<int64_t>(head) * a.k + slot];
    source += (t * layer.kv_heads + a.first + head) * depth;
  }
  double square = 0;
  uint64_t hash = 0;
  for (int i = lane; i < depth / 8; i += 32) {
    uint4 eight = make_uint4(0, 0, 0, 0);
    if (real) eight = *reinterpret_cast<const uint4*>(source + i * 8);
    *reinterpret_cast<uint4*>(a.rows + at * depth + i * 8) = eight;
    const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 x = widen_pair(words[j]);
      square += static_cast<double>(x.x) * x.x + static_cast<double>(x.y) * x.y;
      hash += split_mix(words[j], static_cast<uint64_t>(4 * i + j));
    }
  }
  square = warp_sum(square);
  hash = warp_sum(hash);
  if (lane != 0) return;
  a.norm2[at] = square;
  a.hash[at] = hash;
  a.inv_norm[at] =
      square > 0 ? static_cast<float>(1.0 / sqrt(square)) : __uint_as_float(0x7fc00000u);
}

__device__ bool equal_rows(const bf16* x, const bf16* y, int depth) {
  for (int i = 0; i < depth / 8; ++i) {
    const uint4 p = *reinterpret_cast<const uint4*>(x + i * 8);
    const uint4 q = *reinterpret_cast<const uint4*>(y + i * 8);
    if (p.x != q.x || p.y != q.y || p.z != q.z || p.w != q.w) return false;
  }
  return true;
}

// Takes anchors that repeat one of a lower slot out of the race: they would tie and lose. Prompts
// repeat tokens, so that in the first layers such anchors are many, and every token of theirs would
// need the exact comparison.
__global__ void __launch_bounds__(128) repeats_kernel(CodecLayer layer, LayerAnchors a) {
  const int slot = blockIdx.x * 128 + threadIdx.x, depth = layer.head_dim;
  const int64_t first = (static_cast<int64_t>(blockIdx.z) * a.heads + blockIdx.y) * a.padded;
  if (slot >= a.k) return;
  const uint64_t own = a.hash[first + slot];
  for (int other = 0; other < slot; ++other) {
    if (a.hash[first + other] != own) continue;
    if (!equal_rows(a.rows + (first + other) * depth, a.rows + (first + slot) * depth, depth)) {
      continue;
    }
    a.inv_norm[first + slot] = __uint_as_float(0x7fc00000u);
    return;
  }
}

}  // namespace

void load_anchors(const CodecLayer& layer, const LayerAnchors& a, DeviceStream stream) {
  const unsigned heads = static_cast<unsigned>(a.heads);
  const unsigned padded = static_cast<unsigned>(a.padded);
  AKV_LAUNCH(gather_kernel, dim3(padded / 8, heads, 2), dim3(256), 0, stream, layer, a);
  AKV_LAUNCH(repeats_kernel, dim3((padded + 127) / 128, heads, 2), dim3(128), 0, stream, layer, a);
}

}  // namespace akv::kernels::cuda
