// Anchors of the keys as halves in the order of rotation, in device memory: where shared memory
// does not hold them, every token reads its own from there, by way of L1 and L2.
#include "kernels/cuda/decode_attention/rotation.h"
#include "kernels/cuda/launch.h"

namespace akv::kernels::cuda::decode {
namespace {

constexpr int kPrepareThreads = 256;
constexpr int kPrepareAnchors = 64;  // of a block

// Grid (KV heads, rows of the limits, groups of anchors).
template <int D>
__global__ void __launch_bounds__(kPrepareThreads) prepare_anchors(const KernelArgs args) {
  const auto& header = *reinterpret_cast<const PlanHeader*>(args.plan);
  const int r = static_cast<int>(blockIdx.y), head = static_cast<int>(blockIdx.x);
  if (r >= header.rows) return;
  const PlanRow& row = reinterpret_cast<const PlanRow*>(args.plan + header.row_table)[r];
  if (row.prompt == nullptr) return;
  const CompressedLayerView& layer = row.prompt[args.layer];
  const bf16* anchors = layer.heads[head].key.anchors;
  const PairOrder order{args.rope.half, args.rope.pairs == RopePairs::kInterleaved};
  const int align = alignment(anchors), first = static_cast<int>(blockIdx.z) * kPrepareAnchors;
  const int end = first + kPrepareAnchors < layer.anchors ? first + kPrepareAnchors : layer.anchors;
  uint4* out = args.halves + halves_of(args, D, r, head);
  for (int i = first * (D / 8) + static_cast<int>(threadIdx.x); i < end * (D / 8);
       i += kPrepareThreads) {
    out[i] = anchor_unit<D>(anchors + int64_t{i / (D / 8)} * D, i % (D / 8), order, align);
  }
}

}  // namespace

void launch_prepare(const KernelArgs& args, int head_dim, int rows, DeviceStream stream) {
  const int groups = (args.anchor_limit + kPrepareAnchors - 1) / kPrepareAnchors;
  const dim3 grid(static_cast<unsigned>(args.kv_heads), static_cast<unsigned>(rows),
                  static_cast<unsigned>(groups));
  const auto launch = [&](auto kernel) {
    AKV_LAUNCH(kernel, grid, kPrepareThreads, 0, stream, args);
  };
  if (head_dim == 64) launch(prepare_anchors<64>);
  if (head_dim == 96) launch(prepare_anchors<96>);
  if (head_dim == 128) launch(prepare_anchors<128>);
  if (head_dim == 256) launch(prepare_anchors<256>);
}

}  // namespace akv::kernels::cuda::decode
