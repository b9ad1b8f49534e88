#include "kernels/cuda/gemm/mma_gemm.h"

#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/reduce.h"

namespace akv::kernels::cuda {
namespace {

// A block computes 128 x 128 outputs, eight warps of 64 x 32; k goes by 32 through a ring of
// buffers that cp.async fills three tiles ahead.
constexpr int kTile = 128;
constexpr int kDepth = 32;
constexpr int kStages = 4;
constexpr int kThreads = 256;
constexpr int kWarpRows = 64, kWarpCols = 32;
constexpr int kRowTiles = kWarpRows / 16, kColTiles = kWarpCols / 8;
constexpr int kMatrix = kTile * kDepth;  // elements of one operand's tile
constexpr int kSharedBytes = kStages * 2 * kMatrix * 2;

struct GemmArgs {
  const uint16_t* x;  // [m, k]
  const uint16_t* w;  // [n, k]
  float* y;           // [m, n]
  int64_t m, n, k;
  bool accumulate;
};

// Place of 16 bytes (of the four of a row of 32 elements) in shared memory, in elements: rows two
// apart change banks, so that the eight rows of an ldmatrix lie in different ones.
__device__ __forceinline__ int place(int row, int piece) {
  return row * kDepth + (piece ^ (row >> 1 & 3)) * 8;
}

// Rows [first, first + 128) x columns [k0, k0 + 32) of a [rows, k] matrix; zeros outside.
__device__ __forceinline__ void fetch(const uint16_t* matrix, int64_t rows, int64_t k,
                                      int64_t first, int64_t k0, uint16_t* tile) {
#pragma unroll
  for (int i = 0; i < kTile * 4 / kThreads; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads;
    const int row = at / 4, piece = at % 4;
    const int64_t column = k0 + piece * 8;
    const bool valid = first + row < rows && column < k;
    const uint16_t* from = valid ? matrix + (first + row) * k + column : matrix;
    cp_async<16>(tile + place(row, piece), from, valid);
  }
}

struct WarpTile {
  float acc[kRowTiles][kColTiles][4];
  int row0, col0;  // of the warp in the block's tile

  // 32 columns of k: two steps of 16.
  __device__ __forceinline__ void multiply(const uint16_t* x, const uint16_t* w) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      uint32_t a[kRowTiles][4], b[kColTiles][2];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        ldmatrix_x4(a[i], x + place(row0 + 16 * i + lane % 16, 2 * step + lane / 16));
      }
#pragma unroll
      for (int j = 0; j < kColTiles; j += 2) {
        uint32_t four[4];
        const int row = col0 + 8 * j + lane % 8 + lane / 16 * 8;
        ldmatrix_x4(four, w + place(row, 2 * step + lane / 8 % 2));
        b[j][0] = four[0], b[j][1] = four[1], b[j + 1][0] = four[2], b[j + 1][1] = four[3];
      }
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
        for (int j = 0; j < kColTiles; ++j) mma_bf16(acc[i][j], a[i], b[j]);
      }
    }
  }

  // Two neighbouring outputs.
  __device__ __forceinline__ static void store_pair(const GemmArgs& p, int64_t row, int64_t col,
                                                    float a, float b) {
    if (row >= p.m) return;
    float* y = p.y + row * p.n + col;
    if (col < p.n) y[0] = p.accumulate ? y[0] + a : a;
    if (col + 1 < p.n) y[1] = p.accumulate ? y[1] + b : b;
  }

  __device__ __forceinline__ void store(const GemmArgs& p, int64_t first_row, int64_t first_col) {
    const int g = static_cast<int>(threadIdx.x) % kWarp / 4, t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int j = 0; j < kColTiles; ++j) {
        const int64_t row = first_row + row0 + 16 * i + g, col = first_col + col0 + 8 * j + 2 * t;
        store_pair(p, row, col, acc[i][j][0], acc[i][j][1]);
        store_pair(p, row + 8, col, acc[i][j][2], acc[i][j][3]);
      }
    }
  }
};

// Blocks that run together share rows of x: blockIdx.x walks x's tiles, which are few, first.
__global__ void __launch_bounds__(kThreads, 2) mma_gemm_kernel(GemmArgs p) {
  AKV_DYNAMIC_SHARED(uint16_t, shared);
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kTile;
  const int64_t first_col = static_cast<int64_t>(blockIdx.y) * kTile;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  WarpTile tile;
  tile.row0 = warp / 4 * kWarpRows;
  tile.col0 = warp % 4 * kWarpCols;
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
    for (int j = 0; j < kColTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) tile.acc[i][j][e] = 0.0f;
    }
  }
  const auto steps = static_cast<int>((p.k + kDepth - 1) / kDepth);
  const auto fetch_step = [&](int step) {
    uint16_t* stage = shared + step % kStages * 2 * kMatrix;
    if (step < steps) {
      fetch(p.x, p.m, p.k, first_row, static_cast<int64_t>(step) * kDepth, stage);
      fetch(p.w, p.n, p.k, first_col, static_cast<int64_t>(step) * kDepth, stage + kMatrix);
    }
    cp_async_commit();
  };
  for (int step = 0; step < kStages - 1; ++step) fetch_step(step);
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<kStages - 2>();
    __syncthreads();  // this step's tile is there for all, the one before is read by none
    fetch_step(step + kStages - 1);
    const uint16_t* stage = shared + step % kStages * 2 * kMatrix;
    tile.multiply(stage, stage + kMatrix);
  }
  cp_async_wait<0>();
  tile.store(p, first_row, first_col);
}

}  // namespace

void mma_gemm(const bf16* x, int64_t m, const bf16* w, int64_t n, int64_t k, float* y,
              bool accumulate, DeviceStream stream) {
  if (m == 0 || n == 0) return;
  const GemmArgs args{reinterpret_cast<const uint16_t*>(x),
                      reinterpret_cast<const uint16_t*>(w),
                      y,
                      m,
                      n,
                      k,
                      accumulate};
  const dim3 grid(static_cast<unsigned>((m + kTile - 1) / kTile),
                  static_cast<unsigned>((n + kTile - 1) / kTile));
  AKV_SHARED_ATTRIBUTE(mma_gemm_kernel, kSharedBytes);
  AKV_LAUNCH(mma_gemm_kernel, grid, kThreads, kSharedBytes, stream, args);
}

}  // namespace akv::kernels::cuda
