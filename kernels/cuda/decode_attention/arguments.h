// What a launch tells the kernels, and how a block's shared memory is laid out.
#pragma once

#include <cstdint>

#include "kernels/cuda/decode_attention/bands.h"
#include "kernels/cuda/decode_attention/plan.h"

namespace akv::kernels::cuda::decode {

struct KernelArgs {
  const std::byte* plan = nullptr;
  const float* q = nullptr;
  float* partials = nullptr;      // [pieces][heads of a part][partial_stride]
  int32_t* histograms = nullptr;  // [blocks][heads of a part][histogram_stride(k)], where needed
  int64_t histogram_words = 0;    // of a block
  uint4* halves = nullptr;        // [rows][KV heads][anchor_limit][D / 8], where needed
  int64_t suffix_offset = 0;
  DeviceRope rope;
  int32_t layer = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t part_heads = 0;       // places for heads in a partial result
  int32_t anchor_limit = 0;     // of the limits
  int32_t anchor_capacity = 0;  // of shared memory
  int32_t histogram_capacity = 0;
  int32_t rows_offset = 0;  // of anchors in shared memory
};

// Index of the first unit of a row's and KV head's anchors in `halves`.
AKV_DEVICE int64_t halves_of(const KernelArgs& args, int head_dim, int row, int kv_head) {
  return (int64_t{row} * args.kv_heads + kv_head) * args.anchor_limit * (head_dim / 8);
}

inline constexpr int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
inline constexpr int64_t round16(int64_t bytes) { return (bytes + 15) / 16 * 16; }

// Shared memory of a block for heads of D and parts of up to Heads query heads. A compressed piece
// uses all of it; a dense one its own queries and the merge of its warps from the start.
template <int D, int Heads>
struct Layout {
  static constexpr int kUnits = D / 32;               // 16-byte units of a row per thread
  static constexpr int kWords2 = (D / 16 + 3) / 4;    // 2-bit code words per thread
  static constexpr int kWords4 = (D / 8 + 3) / 4;     // 4-bit code words per thread
  static constexpr int kDotStride = kChunk + 8;       // floats; = 8 mod 32
  static constexpr int kRawTokens = 2 * kChunk + 32;  // bytes of slots or coefficients
  static constexpr int kRawWords = 96;                // bytes of mask words or counts

  // With four heads, two fast units of odd rows are multiplied crosswise: keys.h.
  static constexpr bool kCrossed = Heads == 4 && Bands<D>::kFast % 2 == 0;
  static constexpr int kFastFragments = Bands<D>::kFast * (kCrossed ? 16 : 32);  // of a tile
  static constexpr int kSlowFragmentsOfTile = Heads / 4 * Bands<D>::kPowers * 32;
  static constexpr int64_t kTiles = kChunk / kTile;

  static constexpr int64_t kQueryFragments = 0;  // [kTiles][kFastFragments] uint4
  static constexpr int64_t kSlowFragments = kTiles * kFastFragments * 16;  // likewise
  static constexpr int64_t kCodeFragments2 =
      kSlowFragments + kTiles * kSlowFragmentsOfTile * 16;  // [Heads / 4][kWords2][32] uint4
  static constexpr int64_t kCodeFragments4 =
      kCodeFragments2 + Heads / 4 * kWords2 * 512;       // [kWords4][32]
  static constexpr int64_t kCodeRows = kCodeFragments2;  // instead, `pre`: f32 [kWarps][D]
  static constexpr int64_t kQuery = larger(kCodeFragments4 + kWords4 * 512,
                                           kCodeRows + int64_t{kWarps} * D * 4);  // f32 [Heads][D]
  static constexpr int64_t kSlowQuery = kQuery + int64_t{Heads} * D * 4;  // [Heads][2 kSlowPairs]
  static constexpr int64_t kSlowSeries =
      kSlowQuery + int64_t{Heads} * 8 * Bands<D>::kSlowPairs;  // float4 [kSlowPairs]
  static constexpr int64_t kDots =
      kSlowSeries + int64_t{16} * Bands<D>::kSlowPairs;  // f32 [Heads][kDotStride]
  static constexpr int64_t kResiduals = kDots + int64_t{Heads} * kDotStride * 4;  // the same
  static constexpr int64_t kRaw = kResiduals + int64_t{Heads} * kDotStride * 4;
  static constexpr int64_t kKeyList = kRaw + 4 * kRawTokens + 8 * kRawWords;  // u16 [kChunk]
  static constexpr int64_t kValueList2 = kKeyList + kChunk * 2;               // u16 [kChunk + 16]
  static constexpr int64_t kValueList4 = kValueList2 + kChunk * 2 + 32;       // the same
  static constexpr int64_t kGammas = kValueList4 + kChunk * 2 + 32;           // f32 [256], of log8
  static constexpr int64_t kLevels = kGammas + 1024;                          // u32 [16]
  static constexpr int64_t kUnitsOfHeads = kLevels + 64;                      // f32 [3][8]
  static constexpr int64_t kShares = kUnitsOfHeads + 96;                      // Shares
  static constexpr int64_t kTotals = kShares + int64_t{Heads} * 48;           // f32 [Heads][4]
  static constexpr int64_t kSums = kTotals + int64_t{Heads} * 16;  // f32 [kThreads][Heads / 2]
  static constexpr int64_t kState = kSums + int64_t{Heads} / 2 * kThreads * 4;  // PieceState
  static constexpr int64_t kCompressedBytes = kState + 768;

  // Dense pieces: queries [kUnits][2][32] uint4, then what the warps merge.
  static constexpr int64_t kDenseMerge = int64_t{kUnits} * 1024;  // f32 [kWarps][Heads][D]
  static constexpr int64_t kDenseStats =
      kDenseMerge + int64_t{kWarps} * Heads * D * 4;  // f32 [kWarps][Heads][2]
  static constexpr int64_t kDenseBytes = kDenseStats + int64_t{kWarps} * Heads * 8;

  // What outlives a piece, out of a dense piece's reach: whose anchors lie here, the histogram, the
  // anchors.
  static constexpr int64_t kStaged = round16(larger(kCompressedBytes, kDenseBytes));
  static constexpr int64_t kEnd = kStaged + 8;  // i32, of the block's pieces
  static constexpr int64_t kBase = kStaged + 16;

  static_assert(Heads * kDotStride >= kWarps * D);  // room for U q
};

// Launches by head dimension and part size; head*.cu. `compressed`: pieces may be compressed.
struct KernelTable {
  void (*launch)(bool compressed, int blocks, int64_t shared_bytes, const KernelArgs& args,
                 DeviceStream stream) = nullptr;
  // Blocks that one multiprocessor holds with that much shared memory.
  int (*blocks_per_sm)(bool compressed, int64_t shared_bytes) = nullptr;
  int64_t base_bytes = 0;   // shared memory without histogram and anchors
  int64_t dense_bytes = 0;  // of a launch without compressed pieces
};
KernelTable head64(int part_heads);
KernelTable head96(int part_heads);
KernelTable head128(int part_heads);
KernelTable head256(int part_heads);

// Fills `halves` with the anchors of the plan's rows, before the pieces run.
void launch_prepare(const KernelArgs& args, int head_dim, int rows, DeviceStream stream);

void launch_combine(const KernelArgs& args, int head_dim, int rows, float* out,
                    DeviceStream stream);

}  // namespace akv::kernels::cuda::decode
