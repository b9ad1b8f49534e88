// Causal prefill attention on tensor cores.
//
// Query rows are (position, head of the group) pairs, so that a block's kRows rows share every key
// tile among the heads of a group. A block walks the key tiles from 0 up to its last row's
// position: K of the next tile arrives while P V is multiplied, V of this one while Q K^T is. A
// warp owns 16 kTiles rows from logits to output; nothing of S or P leaves its registers. Softmax
// runs in base 2 with f32 maxima and sums. A row's arithmetic depends on its own position alone: a
// tile that is masked for it multiplies by one and adds zeros.
//
// Shared rows have 16 bytes of padding, which puts the eight rows of an ldmatrix into different
// banks for every head size.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "kernels/cuda/attention/flash_prefill.h"
#include "kernels/cuda/convert.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/reduce.h"

namespace akv::kernels::cuda {

// Place of a packed row among q's and out's rows of D elements.
__device__ __forceinline__ int64_t packed_row(const FlashPrefillArgs& p, int row, int kv_head) {
  const int position = row / p.group;
  return (static_cast<int64_t>(position) * p.kv_heads + kv_head) * p.group + row % p.group;
}

// Tiles of a head size: warps of 16 kTiles rows, as many accumulators as registers hold.
template <int HeadDim>
struct FlashShape {
  static constexpr int kDim = HeadDim;
  static constexpr int kTiles = HeadDim <= 128 ? 2 : 1;
  static constexpr int kWarps = HeadDim <= 128 ? 4 : 8;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kRows = 16 * kTiles * kWarps;
  static constexpr int kKeys = HeadDim <= 128 ? 64 : 32;
  static constexpr int kPitch = HeadDim + 8;   // elements
  static constexpr int kPieces = HeadDim / 8;  // of 16 bytes in a row
  static constexpr int kSharedBytes = (kRows + 2 * kKeys) * kPitch * 2;
};

// Rows of 16-bit elements to shared memory; zeros for rows from `valid` on.
template <class Shape, int Rows, class RowPointer>
__device__ __forceinline__ void fetch_rows(uint16_t* shared, int valid, RowPointer row_pointer) {
  static_assert(Rows * Shape::kPieces % Shape::kThreads == 0);
  const int tid = opaque(static_cast<int>(threadIdx.x));
#pragma unroll 1
  for (int i = 0; i < Rows * Shape::kPieces / Shape::kThreads; ++i) {
    const int at = tid + i * Shape::kThreads;
    const int row = at / Shape::kPieces, piece = at % Shape::kPieces;
    const bool inside = row < valid;
    cp_async<16>(shared + row * Shape::kPitch + piece * 8,
                 row_pointer(inside ? row : 0) + piece * 8, inside);
  }
}

// The same of a whole tile of keys whose rows are `stride` elements apart. A thread's pieces are
// the same ones of rows a step apart, so that a copy costs an addition: the general form's twenty
// instructions a copy are a quarter of the kernel's.
template <class Shape>
__device__ __forceinline__ void fetch_whole_tile(uint16_t* shared, const uint16_t* from,
                                                 int stride) {
  constexpr int kStep = Shape::kThreads / Shape::kPieces;  // rows
  const int tid = opaque(static_cast<int>(threadIdx.x));
  const int row = tid / Shape::kPieces, piece = tid % Shape::kPieces;
  uint16_t* to = shared + row * Shape::kPitch + piece * 8;
  from += row * stride + piece * 8;
#pragma unroll
  for (int i = 0; i < Shape::kKeys / kStep; ++i) {
    cp_async<16>(to + i * kStep * Shape::kPitch, from);
    from += kStep * stride;
  }
}

template <class Shape>
struct FlashWarp {
  static constexpr int kTiles = Shape::kTiles, kKeys = Shape::kKeys, kDim = Shape::kDim;
  float out[kTiles][kDim / 8][4];
  float logits[kTiles][kKeys / 8][4];
  float max[kTiles][2];  // of rows g and g + 8, in logits before the scale
  float sum[kTiles][2];  // this thread's part
  int lane;

  __device__ __forceinline__ void clear() {
    lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) out[i][j][e] = 0.0f;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) max[i][half] = -INFINITY, sum[i][half] = 0.0f;
    }
  }

  // logits = Q K^T; q points at this warp's first row.
  __device__ __forceinline__ void multiply_keys(const uint16_t* q, const uint16_t* k) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) logits[i][j][e] = 0.0f;
      }
    }
#pragma unroll
    for (int d = 0; d < kDim; d += 16) {
      uint32_t a[kTiles][4];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        ldmatrix_x4(a[i], q + (16 * i + lane % 16) * Shape::kPitch + d + lane / 16 * 8);
      }
#pragma unroll
      for (int j = 0; j < kKeys / 8; j += 2) {
        uint32_t b[4];
        const int row = 8 * j + lane % 8 + lane / 16 * 8;
        ldmatrix_x4(b, k + row * Shape::kPitch + d + lane / 8 % 2 * 8);
        const uint32_t left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          mma_bf16(logits[i][j], a[i], left);
          mma_bf16(logits[i][j + 1], a[i], right);
        }
      }
    }
  }

  // Logits of keys past a row's own position are -inf; row g of this warp's first tile is packed
  // row `row`, and the tile's first key is `first`.
  __device__ __forceinline__ void mask(const FlashPrefillArgs& p, int row, int first) {
    const int t = lane % 4;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int seen = p.pos0 + (row + 16 * i + 8 * half) / p.group + 1 - first;
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            if (8 * j + 2 * t + e >= seen) logits[i][j][2 * half + e] = -INFINITY;
          }
        }
      }
    }
  }

  // Takes the tile's maxima in; rescales what was summed under the ones before. Few tiles after the
  // first ones move a maximum: the outputs are left alone where no row of the warp moved, since all
  // factors are one. Key 0 is in every row's first tile, so maxima are finite from there on.
  __device__ __forceinline__ void raise_maxima(float scale_log2) {
    float rescale[kTiles][2];
    bool moved = false;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = max[i][half];
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j) {
          top = fmaxf(top, fmaxf(logits[i][j][2 * half], logits[i][j][2 * half + 1]));
        }
        top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 1));
        top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 2));
        moved |= top > max[i][half];
        rescale[i][half] = exp2_approx((max[i][half] - top) * scale_log2);
        max[i][half] = top;
      }
    }
    if (!__any_sync(kFullWarp, moved)) return;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) sum[i][half] *= rescale[i][half];
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) out[i][j][e] *= rescale[i][e / 2];
      }
    }
  }

  // logits -> probabilities relative to the maxima, which hold this tile's.
  __device__ __forceinline__ void exponentiate(float scale_log2) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float shift = max[i][half] * scale_log2;
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            logits[i][j][e] = exp2_approx(fmaf(logits[i][j][e], scale_log2, -shift));
            sum[i][half] += logits[i][j][e];
          }
        }
      }
    }
  }

  // out += P V: the accumulators of two key columns are the A fragment of 16 keys.
  __device__ __forceinline__ void multiply_values(const uint16_t* v) {
#pragma unroll
    for (int k = 0; k < kKeys; k += 16) {
      uint32_t a[kTiles][4];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const float(&left)[4] = logits[i][k / 8], (&right)[4] = logits[i][k / 8 + 1];
        a[i][0] = pack_bf16(left[0], left[1]);
        a[i][1] = pack_bf16(left[2], left[3]);
        a[i][2] = pack_bf16(right[0], right[1]);
        a[i][3] = pack_bf16(right[2], right[3]);
      }
#pragma unroll
      for (int d = 0; d < kDim; d += 16) {
        uint32_t b[4];
        ldmatrix_x4_trans(b, v + (k + lane % 16) * Shape::kPitch + d + lane / 16 * 8);
        const uint32_t left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          mma_bf16(out[i][d / 8], a[i], left);
          mma_bf16(out[i][d / 8 + 1], a[i], right);
        }
      }
    }
  }
};

template <class Shape>
__device__ __forceinline__ void store_output(const FlashPrefillArgs& p, FlashWarp<Shape>& w,
                                             int first_row, int kv_head) {
  const int g = w.lane / 4, t = w.lane % 4;
#pragma unroll
  for (int i = 0; i < Shape::kTiles; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = w.sum[i][half];
      sum += __shfl_xor_sync(kFullWarp, sum, 1);
      sum += __shfl_xor_sync(kFullWarp, sum, 2);
      const int row = first_row + 16 * i + 8 * half + g;
      if (row >= p.packed_rows) continue;
      const float scale = 1.0f / sum;
      const int64_t at = packed_row(p, row, kv_head) * Shape::kDim + 2 * t;
#pragma unroll
      for (int j = 0; j < Shape::kDim / 8; ++j) {
        const float a = w.out[i][j][2 * half] * scale, b = w.out[i][j][2 * half + 1] * scale;
        if (p.out != nullptr) {
          *reinterpret_cast<float2*>(p.out + at + 8 * j) = make_float2(a, b);
        }
        if (p.out_bf16 != nullptr) {
          *reinterpret_cast<uint32_t*>(p.out_bf16 + at + 8 * j) = pack_bf16(a, b);
        }
      }
    }
  }
}

template <int HeadDim>
__global__ void __launch_bounds__(FlashShape<HeadDim>::kThreads)
    flash_prefill_kernel(FlashPrefillArgs p) {
  using Shape = FlashShape<HeadDim>;
  AKV_DYNAMIC_SHARED(uint16_t, q_shared);
  uint16_t* k_shared = q_shared + Shape::kRows * Shape::kPitch;
  uint16_t* v_shared = k_shared + Shape::kKeys * Shape::kPitch;
  // Long tiles first: the last ones to start are short.
  const int kv_head = static_cast<int>(blockIdx.x) % p.kv_heads;
  const int tile = p.tiles - 1 - static_cast<int>(blockIdx.x) / p.kv_heads;
  const int first_row = tile * Shape::kRows;
  const int rows = min(Shape::kRows, p.packed_rows - first_row);
  const int keys = p.pos0 + (first_row + rows - 1) / p.group + 1;  // that any row of the tile sees
  const int unmasked = p.pos0 + first_row / p.group + 1;           // that every row of it sees

  const int kv_stride = p.kv_heads * HeadDim;
  const auto fetch = [&](const uint16_t* from, int first, uint16_t* to) {
    const uint16_t* base = from + static_cast<int64_t>(first) * kv_stride + kv_head * HeadDim;
    if constexpr (Shape::kThreads % Shape::kPieces == 0) {
      if (keys - first >= Shape::kKeys) {
        fetch_whole_tile<Shape>(to, base, kv_stride);
        return cp_async_commit();
      }
    }
    fetch_rows<Shape, Shape::kKeys>(to, keys - first,
                                    [&](int row) { return base + row * kv_stride; });
    cp_async_commit();
  };
  fetch_rows<Shape, Shape::kRows>(q_shared, rows, [&](int row) {
    return p.q + packed_row(p, first_row + row, kv_head) * HeadDim;
  });
  fetch(p.k, 0, k_shared);

  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * 16 * Shape::kTiles;
  FlashWarp<Shape> w;
  w.clear();
  for (int first = 0; first < keys; first += Shape::kKeys) {
    cp_async_wait<0>();
    __syncthreads();  // K is there for all; V of the tile before is read by none
    fetch(p.v, first, v_shared);
    w.multiply_keys(q_shared + warp_row * Shape::kPitch, k_shared);
    if (first + Shape::kKeys > unmasked) w.mask(p, first_row + warp_row + w.lane / 4, first);
    w.raise_maxima(p.scale_log2);
    w.exponentiate(p.scale_log2);
    cp_async_wait<0>();
    __syncthreads();  // V is there for all; K is read by none
    if (first + Shape::kKeys < keys) fetch(p.k, first + Shape::kKeys, k_shared);
    w.multiply_values(v_shared);
  }
  store_output<Shape>(p, w, first_row + warp_row, kv_head);
}

template <int HeadDim>
void run_flash_prefill(FlashPrefillArgs args, DeviceStream stream) {
  using Shape = FlashShape<HeadDim>;
  args.tiles = (args.packed_rows + Shape::kRows - 1) / Shape::kRows;
  AKV_SHARED_ATTRIBUTE(flash_prefill_kernel<HeadDim>, Shape::kSharedBytes);
  AKV_LAUNCH((flash_prefill_kernel<HeadDim>),
             static_cast<unsigned>(args.tiles) * static_cast<unsigned>(args.kv_heads),
             Shape::kThreads, Shape::kSharedBytes, stream, args);
}

}  // namespace akv::kernels::cuda
