// The persistent kernel: a block runs its share of the plan's pieces, one after the other.
#pragma once

#include "kernels/cuda/decode_attention/compressed.h"
#include "kernels/cuda/decode_attention/dense.h"
#include "kernels/cuda/launch.h"

namespace akv::kernels::cuda::decode {

template <class T>
AKV_DEVICE const T* plan_at(const std::byte* plan, int64_t offset) {
  return reinterpret_cast<const T*>(plan + offset);
}

AKV_DEVICE DenseRows dense_rows(const KernelArgs& args, const PlanHeader& header,
                                const PlanRow& row, const Piece& piece, int head_dim) {
  DenseRows r;
  if (piece.kind == PieceKind::kDense) {
    const DenseLayerView& layer = row.dense_prompt[args.layer];
    r.stride = head_dim;
    r.k = layer.k + int64_t{piece.kv_head} * layer.tokens * head_dim;
    r.v = layer.v + int64_t{piece.kv_head} * layer.tokens * head_dim;
    return r;
  }
  r.stride = int64_t{args.kv_heads} * head_dim;
  r.pages = plan_at<const bf16*>(args.plan, header.pages) + row.first_page;
  r.offset = args.suffix_offset + int64_t{piece.kv_head} * head_dim;
  r.values = kSuffixPageTokens * r.stride;
  return r;
}

template <int D, int Heads, bool Compressed>
__global__ void __launch_bounds__(kThreads, D > 128 ? 1 : 2) attend_pieces(const KernelArgs args) {
  AKV_DYNAMIC_SHARED(unsigned char, shared);
  const PlanHeader& header = *plan_at<PlanHeader>(args.plan, 0);
  const int32_t* starts = plan_at<int32_t>(args.plan, header.starts) + blockIdx.x;
  int i = starts[0], end = starts[1];
  if constexpr (Compressed) {
    if (threadIdx.x == 0) {
      *shared_at<const bf16*>(shared, Layout<D, Heads>::kStaged) = nullptr;
      *shared_at<int32_t>(shared, Layout<D, Heads>::kEnd) = end;
    }
  }
#pragma unroll 1
  for (; i < end; ++i) {
    const Piece& piece = plan_at<Piece>(args.plan, header.piece_table)[i];
    const PlanRow& row = plan_at<PlanRow>(args.plan, header.row_table)[piece.row];
    __syncthreads();  // the last piece's shared memory is free
    if constexpr (Compressed) {
      if (piece.kind == PieceKind::kCompressed) {
        i = run_compressed<D, Heads>(args, shared, piece, row.prompt[args.layer], i);
        end = *shared_at<int32_t>(shared, Layout<D, Heads>::kEnd);
        continue;
      }
    }
    run_dense<D, Heads>(args, shared, piece, dense_rows(args, header, row, piece, D),
                        partial_of<D>(args, i));
  }
}

// Without compressed pieces one kernel serves all part sizes.
template <int D, int Heads>
void launch_pieces(bool compressed, int blocks, int64_t shared_bytes, const KernelArgs& args,
                   DeviceStream stream) {
  if (compressed) {
    AKV_SHARED_ATTRIBUTE((attend_pieces<D, Heads, true>), shared_bytes);
    AKV_LAUNCH((attend_pieces<D, Heads, true>), blocks, kThreads, shared_bytes, stream, args);
  } else {
    AKV_SHARED_ATTRIBUTE((attend_pieces<D, kMaxPart, false>), shared_bytes);
    AKV_LAUNCH((attend_pieces<D, kMaxPart, false>), blocks, kThreads, shared_bytes, stream, args);
  }
}

template <int D, int Heads>
int blocks_per_sm(bool compressed, int64_t shared_bytes) {
  int blocks = 0;
  const auto count = static_cast<size_t>(shared_bytes);
  if (compressed) {
    AKV_SHARED_ATTRIBUTE((attend_pieces<D, Heads, true>), shared_bytes);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, attend_pieces<D, Heads, true>, kThreads,
                                                  count);
  } else {
    AKV_SHARED_ATTRIBUTE((attend_pieces<D, kMaxPart, false>), shared_bytes);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, attend_pieces<D, kMaxPart, false>,
                                                  kThreads, count);
  }
  return blocks;
}

template <int D, int Heads>
KernelTable table_of() {
  return {launch_pieces<D, Heads>, blocks_per_sm<D, Heads>, Layout<D, Heads>::kBase,
          Layout<D, kMaxPart>::kDenseBytes};
}

}  // namespace akv::kernels::cuda::decode
