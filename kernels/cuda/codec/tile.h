// Tiles of rows in shared memory and their products on tensor cores, with the exactness of f32: a
// bf16 operand is exact as it is, an f32 operand enters as three bf16 planes.
//
// Tiles are row-major with 8 elements of padding a row, so that neither ldmatrix nor the 8-byte
// loads of f32 fragments meet in a bank. Depths are multiples of 16.
#pragma once

#include <cstdint>

#include "kernels/cuda/codec/numeric.h"
#include "kernels/cuda/ptx.h"

namespace akv::kernels::cuda {

inline constexpr int kTilePad = 8;  // elements

// What a tile holds of 16 bytes of a bf16 row: as they are, or widened to f32.
__device__ __forceinline__ void store_eight(const uint4& eight, bf16* to) {
  *reinterpret_cast<uint4*>(to) = eight;
}
__device__ __forceinline__ void store_eight(const uint4& eight, float* to) {
  const float2 a = widen_pair(eight.x), b = widen_pair(eight.y);
  const float2 c = widen_pair(eight.z), d = widen_pair(eight.w);
  reinterpret_cast<float4*>(to)[0] = make_float4(a.x, a.y, b.x, b.y);
  reinterpret_cast<float4*>(to)[1] = make_float4(c.x, c.y, d.x, d.y);
}

// A tile of rows x depth, by all threads: row r is where row_of(r) points (bf16, aligned to 16
// bytes), or zeros where that is null. Returns whether this thread met a value that is not finite.
template <class T, class RowOf>
__device__ __forceinline__ bool load_rows(int rows, int depth, T* tile, const RowOf& row_of) {
  const int per_row = depth / 8;
  bool bad = false;
  for (int i = threadIdx.x; i < rows * per_row; i += blockDim.x) {
    const int row = i / per_row, part = i % per_row;
    const bf16* from = row_of(row);
    uint4 eight = make_uint4(0, 0, 0, 0);
    if (from != nullptr) eight = *reinterpret_cast<const uint4*>(from + part * 8);
    bad |= not_finite(eight);
    store_eight(eight, tile + row * (depth + kTilePad) + part * 8);
  }
  return bad;
}

// The same of rows that are `stride` elements apart; those from `valid` on are zero.
template <class T>
__device__ __forceinline__ bool load_tile(const bf16* source, int64_t stride, int rows, int valid,
                                          int depth, T* tile) {
  return load_rows(rows, depth, tile, [&](int row) -> const bf16* {
    return row < valid ? source + row * stride : nullptr;
  });
}

// The same of the post-RoPE queries of one KV head (counted in the layer): lanes first .. first +
// rows - 1, those from m on are zero.
__device__ __forceinline__ bool load_queries(const CodecLayer& layer, int head, int first, int rows,
                                             bf16* tile) {
  return load_rows(rows, layer.head_dim, tile, [&](int row) -> const bf16* {
    const int w = first + row;
    if (w >= layer.queries()) return nullptr;
    const int64_t at = static_cast<int64_t>(w / layer.group) * layer.kv_heads * layer.group +
                       head * layer.group + w % layer.group;
    return layer.q + at * layer.head_dim;
  });
}

// Rotates row r of a tile by the angles of position first + r, for rows below `valid`.
__device__ __forceinline__ void rotate_tile(const DeviceRope& rope, int64_t first, int valid,
                                            int depth, float* tile) {
  for (int i = threadIdx.x; i < valid * rope.half; i += blockDim.x) {
    const int row = i / rope.half, j = i % rope.half;
    rotate_pair(rope, rope.rows + (first + row) * 2 * rope.half, j,
                tile + row * (depth + kTilePad));
  }
}

// Where this lane's row of a B fragment (two n-tiles of 8, one k step) begins.
__device__ __forceinline__ const bf16* b_lane(const bf16* b, int depth) {
  const int lane = threadIdx.x % 32;
  return b + ((lane >> 4) * 8 + lane % 8) * (depth + kTilePad) + ((lane >> 3) & 1) * 8;
}
// The same of an A fragment of 16 rows.
__device__ __forceinline__ const bf16* a_lane(const bf16* a, int depth) {
  const int lane = threadIdx.x % 32;
  return a + (lane % 16) * (depth + kTilePad) + (lane >> 4) * 8;
}

// acc[n] += the warp's 16 rows of f32 at `a` times rows 8 n .. 8 n + 7 of bf16 at `b`.
template <int N>
__device__ __forceinline__ void multiply_f32(const float* a, const bf16* b, int depth,
                                             float (&acc)[N][4]) {
  const int lane = threadIdx.x % 32, stride = depth + kTilePad;
  const float* low = a + (lane / 4) * stride + 2 * (lane % 4);
  const float* high = low + 8 * stride;
  const bf16* columns = b_lane(b, depth);
  const auto pair = [](const float* p) { return *reinterpret_cast<const float2*>(p); };
#pragma unroll 1
  for (int k = 0; k < depth; k += 16) {
    const Planes x[4] = {split(pair(low + k)), split(pair(high + k)), split(pair(low + k + 8)),
                         split(pair(high + k + 8))};
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      uint32_t r[4];
      ldmatrix_x4(r, columns + n * 8 * stride + k);
      const uint32_t b0[2] = {r[0], r[1]}, b1[2] = {r[2], r[3]};
#pragma unroll
      for (int p = 2; p >= 0; --p) {
        const uint32_t rows[4] = {x[0].plane[p], x[1].plane[p], x[2].plane[p], x[3].plane[p]};
        mma_bf16(acc[n], rows, b0);
        mma_bf16(acc[n + 1], rows, b1);
      }
    }
  }
}

// acc[m][n] += 16 M rows of bf16 at `a` times rows 8 n .. 8 n + 7 of bf16 at `b`.
template <int M, int N>
__device__ __forceinline__ void multiply_bf16(const bf16* a, const bf16* b, int depth,
                                              float (&acc)[M][N][4]) {
  const int stride = depth + kTilePad;
  const bf16* rows = a_lane(a, depth);
  const bf16* columns = b_lane(b, depth);
#pragma unroll 2
  for (int k = 0; k < depth; k += 16) {
    uint32_t x[M][4];
#pragma unroll
    for (int m = 0; m < M; ++m) ldmatrix_x4(x[m], rows + m * 16 * stride + k);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      uint32_t r[4];
      ldmatrix_x4(r, columns + n * 8 * stride + k);
      const uint32_t b0[2] = {r[0], r[1]}, b1[2] = {r[2], r[3]};
#pragma unroll
      for (int m = 0; m < M; ++m) {
        mma_bf16(acc[m][n], x[m], b0);
        mma_bf16(acc[m][n + 1], x[m], b1);
      }
    }
  }
}

}  // namespace akv::kernels::cuda
