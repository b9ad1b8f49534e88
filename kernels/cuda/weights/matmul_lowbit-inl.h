// y [m, N] = x [m, K] W^T for m <= 16 rows, from stored weights: a memory-bound product on tensor
// cores, so that its arithmetic stays below the time that the weights take to arrive.
//
// A block owns 16 RowTiles rows of W (its outputs); its eight warps share K between them: warp w
// takes chunks w, w + 8, ... of kChunk columns. A chunk's stored bytes come by cp.async, 16 bytes
// at a time where rows allow, into two buffers of the warp's own, so that no warp waits for another
// before the end. There the warps' sums are added in the order of w: a row's bits depend neither on
// m nor on the tiles.
//
// A fragment holds integers (fragments.h), B fragment three bf16 parts of x, which hold all of an
// f32: their products are exact and summed in f32.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/weights/fragments.h"
#include "kernels/cuda/weights/matmul_lowbit.h"

namespace akv::kernels::cuda {

inline constexpr int kSplits = 8;      // warps of a block, over K
inline constexpr int kInputParts = 3;  // bf16 that x is the sum of
inline constexpr int kSub = 32;        // columns of a sub-block

// Shared memory of one warp's buffer. A row's bytes start at its address in W modulo 16 and are
// followed by the rest of the last 16; a pitch of 16 bytes more than a multiple of 32 puts the same
// word of eight rows into different banks.
template <TensorType Type>
struct Chunk {
  using W = Weights<Type>;
  static constexpr int kColumns = W::kScaled ? 256 : (Type == TensorType::kF32 ? 64 : 128);
  static constexpr int kSubs = kColumns / kSub;
  static constexpr int kBytes = kColumns / W::kElements * W::kBytes;
  static constexpr int kVectors = (kBytes + 15 + (kBytes % 16 == 0 ? 0 : 15)) / 16;
  static constexpr int kPitch = kVectors % 2 == 1 ? kVectors * 16 : kVectors * 16 + 16;
};

template <TensorType Type, int RowTiles, int InputTiles>
struct MatmulShape {
  static constexpr int kRows = 16 * RowTiles;
  static constexpr int kBufferBytes = kRows * Chunk<Type>::kPitch;
  static constexpr int kOutputs = kRows * 8 * InputTiles;
  static constexpr int kReduceBytes = kSplits * kOutputs * 4;
  static constexpr int kPipelineBytes = kSplits * 2 * kBufferBytes;
  static constexpr int kSharedBytes = kPipelineBytes > kReduceBytes ? kPipelineBytes : kReduceBytes;
};

// Bytes [begin, end) of every row of the tile to shared memory, Grain bytes at a time; begin is
// rounded down to Grain. Rows past the matrix read its last one, and are not stored in the end.
template <int Grain, int Rows, int Pitch>
__device__ __forceinline__ void copy_chunk(const LowbitMatrix& w, int64_t first_row, int64_t begin,
                                           int64_t end, uint8_t* buffer) {
  const auto lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t aligned = begin / Grain * Grain;
  const auto pieces = static_cast<int>((end - aligned + Grain - 1) / Grain);
  for (int i = lane; i < Rows * pieces; i += kWarp) {
    const int row = i / pieces, piece = i - row * pieces;
    const int64_t source = first_row + row < w.rows ? first_row + row : w.rows - 1;
    const uint8_t* from = w.data + source * w.row_bytes + aligned + piece * Grain;
    uint8_t* to = buffer + row * Pitch + piece * Grain;
    if constexpr (Grain >= 4) {
      cp_async<Grain>(to, from);
    } else {
      *reinterpret_cast<uint16_t*>(to) = *reinterpret_cast<const uint16_t*>(from);
    }
  }
}

// The parts of column pairs of x: [part][step * 2 + pair], the order of fragments.h.
struct InputCodes {
  uint32_t b[kInputParts][4];
  float sum;  // of the eight
};

// Thread t's eight columns from k on of row g of x; zeros past either's end.
__device__ __forceinline__ InputCodes load_inputs(const LowbitArgs& p, int g, int t, int64_t k) {
  InputCodes in;
  in.sum = 0.0f;
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    const int64_t at = k + 16 * step + 4 * t;
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (g < p.m && at < p.cols) v = *reinterpret_cast<const float4*>(p.x + g * p.cols + at);
    in.sum += (v.x + v.y) + (v.z + v.w);
    in.b[0][2 * step] = take_part<false>(v.x, v.z);
    in.b[1][2 * step] = take_part<false>(v.x, v.z);
    in.b[2][2 * step] = take_part<true>(v.x, v.z);
    in.b[0][2 * step + 1] = take_part<false>(v.y, v.w);
    in.b[1][2 * step + 1] = take_part<false>(v.y, v.w);
    in.b[2][2 * step + 1] = take_part<true>(v.y, v.w);
  }
  return in;
}

// d += A B of one step, all products of parts that count in f32, small ones first.
template <int Parts>
__device__ __forceinline__ void multiply(float (&d)[4], const RowCodes (&upper)[Parts],
                                         const RowCodes (&lower)[Parts], const InputCodes& in,
                                         int step) {
#pragma unroll
  for (int both = kInputParts - 1; both >= 0; --both) {
#pragma unroll
    for (int part = 0; part < Parts && part <= both; ++part) {
      const uint32_t a[4] = {upper[part][2 * step], lower[part][2 * step],
                             upper[part][2 * step + 1], lower[part][2 * step + 1]};
      const uint32_t b[2] = {in.b[both - part][2 * step], in.b[both - part][2 * step + 1]};
      mma_bf16(d, a, b);
    }
  }
}

// Sums of a sub-block's 32 columns of x for the two rows of x whose results a thread holds.
__device__ __forceinline__ float2 column_sums(float sum, int t) {
  sum += __shfl_xor_sync(kFullWarp, sum, 1);
  sum += __shfl_xor_sync(kFullWarp, sum, 2);
  return make_float2(__shfl_sync(kFullWarp, sum, 8 * t), __shfl_sync(kFullWarp, sum, 8 * t + 4));
}

template <TensorType Type, int RowTiles, int InputTiles>
struct LowbitWarp {
  using W = Weights<Type>;
  using Shape = MatmulShape<Type, RowTiles, InputTiles>;
  using Layout = Chunk<Type>;

  float acc[RowTiles][InputTiles][4];

  // One tile of 16 rows of W against 8 rows of x.
  __device__ __forceinline__ void add_scaled(float (&sum)[4], const SubScale& upper,
                                             const SubScale& lower, const RowCodes (&a)[W::kParts],
                                             const RowCodes (&b)[W::kParts], const InputCodes& in,
                                             const float2& x_sum) {
    float step0[4] = {}, step1[4] = {};
    multiply<W::kParts>(step0, a, b, in, 0);
    multiply<W::kParts>(W::kTwoScales ? step1 : step0, a, b, in, 1);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const SubScale& s = i < 2 ? upper : lower;
      sum[i] = fmaf(s.scale[0], step0[i], sum[i]);
      if constexpr (W::kTwoScales) sum[i] = fmaf(s.scale[1], step1[i], sum[i]);
      if constexpr (W::kOffset) sum[i] = fmaf(s.offset, i % 2 == 0 ? x_sum.x : x_sum.y, sum[i]);
    }
  }

  // Sub-block `sub` of the chunk in `rows`, whose first column is k.
  __device__ __forceinline__ void add_sub(const LowbitArgs& p, const uint8_t* rows, int sub,
                                          int64_t k) {
    const int g = static_cast<int>(threadIdx.x) % kWarp / 4, t = static_cast<int>(threadIdx.x) % 4;
    InputCodes in[InputTiles];
    float2 x_sum[InputTiles];
#pragma unroll
    for (int i = 0; i < InputTiles; ++i) {
      in[i] = load_inputs(p, g + 8 * i, t, k);
      if constexpr (W::kOffset) x_sum[i] = column_sums(in[i].sum, t);
    }
#pragma unroll
    for (int tile = 0; tile < RowTiles; ++tile) {
      const uint8_t* upper = rows + (16 * tile + g) * Layout::kPitch;
      const uint8_t* lower = upper + 8 * Layout::kPitch;
      RowCodes a[W::kParts], b[W::kParts];
      if constexpr (W::kScaled) {
        W::load(upper, sub, t, a);
        W::load(lower, sub, t, b);
        const SubScale a_scale = W::scales(upper, sub), b_scale = W::scales(lower, sub);
#pragma unroll
        for (int i = 0; i < InputTiles; ++i) {
          add_scaled(acc[tile][i], a_scale, b_scale, a, b, in[i], x_sum[i]);
        }
      } else {
        const int64_t left = p.cols - k;
        const int columns = left < kSub ? static_cast<int>(left) : kSub;
        W::load(upper, sub, t, a, columns);
        W::load(lower, sub, t, b, columns);
#pragma unroll
        for (int i = 0; i < InputTiles; ++i) {
          multiply<W::kParts>(acc[tile][i], a, b, in[i], 0);
          multiply<W::kParts>(acc[tile][i], a, b, in[i], 1);
        }
      }
    }
  }

  __device__ __forceinline__ void fetch(const LowbitMatrix& w, int64_t first_row, int64_t chunk,
                                        uint8_t* buffer) {
    const int64_t begin = chunk * Layout::kBytes;
    const int64_t end = begin + Layout::kBytes < w.row_bytes ? begin + Layout::kBytes : w.row_bytes;
    if (begin < end) {
      switch (w.grain) {
        case 16:
          copy_chunk<16, Shape::kRows, Layout::kPitch>(w, first_row, begin, end, buffer);
          break;
        case 4:
          copy_chunk<4, Shape::kRows, Layout::kPitch>(w, first_row, begin, end, buffer);
          break;
        default:
          copy_chunk<2, Shape::kRows, Layout::kPitch>(w, first_row, begin, end, buffer);
      }
    }
    cp_async_commit();
  }

  // All of this warp's chunks.
  __device__ __forceinline__ void run(const LowbitArgs& p, const LowbitMatrix& w, int64_t first_row,
                                      int warp, uint8_t* buffers) {
    const int64_t chunks = (p.cols + Layout::kColumns - 1) / Layout::kColumns;
    fetch(w, first_row, warp, buffers);
    int current = 0;
    for (int64_t chunk = warp; chunk < chunks; chunk += kSplits, current ^= 1) {
      fetch(w, first_row, chunk + kSplits, buffers + (current ^ 1) * Shape::kBufferBytes);
      cp_async_wait<1>();
      __syncwarp();
      const uint8_t* rows = buffers + current * Shape::kBufferBytes +
                            chunk * Layout::kBytes % static_cast<int64_t>(w.grain);
      const int64_t k = chunk * Layout::kColumns;
      const int64_t subs = (p.cols - k + kSub - 1) / kSub;
      for (int sub = 0; sub < Layout::kSubs && sub < subs; ++sub) {
        add_sub(p, rows, sub, k + sub * kSub);
      }
      __syncwarp();  // before the buffer is filled again
    }
    cp_async_wait<0>();
  }
};

// Adds the warps' sums in order and stores them: partial [split][row of x][row of the tile].
template <class Shape>
__device__ __forceinline__ void store_outputs(const LowbitArgs& p, const LowbitMatrix& w,
                                              int64_t first_row, const float* partial) {
  for (int i = static_cast<int>(threadIdx.x); i < Shape::kOutputs; i += kSplits * kWarp) {
    const int row = i % Shape::kRows, input = i / Shape::kRows;
    if (input >= p.m || first_row + row >= w.rows) continue;
    float sum = partial[i];
#pragma unroll
    for (int split = 1; split < kSplits; ++split) sum += partial[split * Shape::kOutputs + i];
    float* y = w.y + input * w.rows + first_row + row;
    *y = p.accumulate ? *y + sum : sum;
  }
}

template <TensorType Type, int RowTiles, int InputTiles>
__global__ void __launch_bounds__(kSplits* kWarp, 2) matmul_lowbit_kernel(LowbitArgs p) {
  using Shape = MatmulShape<Type, RowTiles, InputTiles>;
  AKV_DYNAMIC_SHARED(uint8_t, shared);
  int64_t tile = blockIdx.x;
  int product = 0;
  while (tile >= p.products[product].tiles) tile -= p.products[product++].tiles;
  const LowbitMatrix& w = p.products[product];
  const int64_t first_row = tile * Shape::kRows;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  LowbitWarp<Type, RowTiles, InputTiles> state;
#pragma unroll
  for (int i = 0; i < RowTiles; ++i) {
#pragma unroll
    for (int j = 0; j < InputTiles; ++j) {
#pragma unroll
      for (int k = 0; k < 4; ++k) state.acc[i][j][k] = 0.0f;
    }
  }
  state.run(p, w, first_row, warp, shared + warp * 2 * Shape::kBufferBytes);
  __syncthreads();  // the buffers are free, of all warps
  auto* partial = reinterpret_cast<float*>(shared);
  const int g = static_cast<int>(threadIdx.x) % kWarp / 4, t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int i = 0; i < RowTiles; ++i) {
#pragma unroll
    for (int j = 0; j < InputTiles; ++j) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int row = 16 * i + g + (k < 2 ? 0 : 8), input = 8 * j + 2 * t + k % 2;
        partial[warp * Shape::kOutputs + input * Shape::kRows + row] = state.acc[i][j][k];
      }
    }
  }
  __syncthreads();
  store_outputs<Shape>(p, w, first_row, partial);
}

template <TensorType Type, int RowTiles, int InputTiles>
void launch_lowbit(LowbitArgs args, int products, DeviceStream stream) {
  using Shape = MatmulShape<Type, RowTiles, InputTiles>;
  int64_t blocks = 0;
  for (int i = 0; i < products; ++i) {
    args.products[i].tiles = (args.products[i].rows + Shape::kRows - 1) / Shape::kRows;
    blocks += args.products[i].tiles;
  }
  const auto kernel = matmul_lowbit_kernel<Type, RowTiles, InputTiles>;
  AKV_SHARED_ATTRIBUTE(kernel, Shape::kSharedBytes);
  AKV_LAUNCH(kernel, static_cast<unsigned>(blocks), kSplits * kWarp, Shape::kSharedBytes, stream,
             args);
}

template <TensorType Type>
void run_lowbit(const LowbitArgs& args, int products, DeviceStream stream) {
  int64_t rows = 0;
  for (int i = 0; i < products; ++i) rows += args.products[i].rows;
  if (args.m > 8) return launch_lowbit<Type, 2, 2>(args, products, stream);
  if (rows >= kManyRows) return launch_lowbit<Type, 2, 1>(args, products, stream);
  launch_lowbit<Type, 1, 1>(args, products, stream);
}

}  // namespace akv::kernels::cuda
