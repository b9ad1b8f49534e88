// What the host writes and the kernels read: the rows and pieces of a step, dealt out to blocks.
// Compiled by both sides; plain data.
#pragma once

#include <cstdint>

#include "kernels/compressed_view.h"
#include "kernels/cuda/decode_attention.h"

namespace akv::kernels::cuda::decode {

inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kTile = 128;      // positions whose angles a block keeps in registers
inline constexpr int kChunk = 512;     // compressed tokens between two looks at the maximum
inline constexpr int kMaxPart = 8;     // query heads of a piece at most: the N of an MMA
inline constexpr int kMaxSplits = 32;  // of a compressed prompt, per KV head
inline constexpr int kDenseSplit = 512;
inline constexpr int kMaxDenseSplits = 64;

enum class PieceKind : uint8_t { kCompressed, kDense, kSuffix };

// Tokens [begin, end) of one row, KV head and part of its query heads. A compressed prompt's tokens
// count its window, less window_drop.
struct Piece {
  int32_t begin = 0;
  int32_t end = 0;
  uint16_t row = 0;
  uint16_t kv_head = 0;
  PieceKind kind = PieceKind::kCompressed;
  uint8_t part = 0;
  uint16_t pad = 0;
};
static_assert(sizeof(Piece) == 16);

struct PlanRow {
  const CompressedLayerView* prompt = nullptr;
  const DenseLayerView* dense_prompt = nullptr;
  int32_t first_page = 0;
  int32_t first_piece = 0;  // pieces of a row: [KV head][part][pieces]
  int32_t pieces = 0;
  int32_t compressed_pieces = 0;  // the first of them
};
static_assert(sizeof(PlanRow) == 32);

// At the start of a plan; offsets in bytes from it.
struct PlanHeader {
  int32_t rows = 0;
  int32_t pieces = 0;
  int64_t starts = 0;  // int32 [blocks + 1]: block b runs pieces [starts[b], starts[b + 1])
  int64_t row_table = 0;
  int64_t piece_table = 0;
  int64_t pages = 0;
  int64_t pad = 0;
};
static_assert(sizeof(PlanHeader) == 48);

// Query heads of a group are cut into equal parts of at most kMaxPart.
inline constexpr int parts_of(int group) { return (group + kMaxPart - 1) / kMaxPart; }
inline constexpr int part_begin(int group, int part) { return group * part / parts_of(group); }
// Heads of a part as the kernel is compiled for it.
inline constexpr int part_heads(int group, int head_dim) {
  const int largest = (group + parts_of(group) - 1) / parts_of(group);
  return largest <= 4 && (head_dim == 64 || head_dim == 128) ? 4 : 8;
}

// Floats of a piece's partial result per head: maximum (base 2), sum, o [D], z [D].
inline constexpr int64_t partial_stride(int head_dim) { return 2 * int64_t{head_dim} + 2; }

// Words between the histograms of two heads: the lanes of a load fall into different banks.
inline constexpr int64_t histogram_stride(int anchors) { return (anchors + 31) / 32 * 32 + 8; }

}  // namespace akv::kernels::cuda::decode
