// The host's half of a step: splits of every row, and who runs them.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/decode_attention/plan.h"

namespace akv::kernels::cuda {
namespace {

using decode::kChunk;
using decode::kDenseSplit;
using decode::kMaxDenseSplits;
using decode::kMaxSplits;
using decode::Piece;
using decode::PieceKind;
using decode::PlanHeader;
using decode::PlanRow;

int64_t align16(int64_t bytes) { return (bytes + 15) / 16 * 16; }
int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Tokens of a split: a row's own length decides, nothing else.
int64_t split_tokens(int64_t tokens, int64_t unit, int64_t max_splits) {
  return unit * std::max<int64_t>(1, ceil_div(ceil_div(tokens, unit), max_splits));
}
int64_t splits(int64_t tokens, int64_t unit, int64_t max_splits) {
  return tokens == 0 ? 0 : ceil_div(tokens, split_tokens(tokens, unit, max_splits));
}

// Cost of a piece in compressed tokens: what it reads and computes, and what it costs to begin and
// end (queries, anchors to shared memory and their product with the histogram, the partial).
int64_t cost(const Piece& piece, int anchors) {
  const int64_t tokens = piece.end - piece.begin;
  if (piece.kind == PieceKind::kCompressed) return tokens + 256 + anchors / 2;
  return 4 * tokens + 128;
}

int64_t row_pieces(int64_t compressed, int64_t dense, int64_t suffix) {
  return splits(compressed, kChunk, kMaxSplits) + splits(dense, kDenseSplit, kMaxDenseSplits) +
         splits(suffix, kDenseSplit, kMaxDenseSplits);
}

int64_t compressed_tokens(const DecodeAttentionRow& row) {
  return row.prompt == nullptr ? 0 : row.prompt_tokens - row.window_drop;
}
int64_t dense_tokens(const DecodeAttentionRow& row) {
  return row.dense_prompt == nullptr ? 0 : row.prompt_tokens - row.window_drop;
}

// Writes the pieces of one row, KV head and part from `out` on.
class PieceWriter {
 public:
  PieceWriter(Piece* out, int row, int kv_head, int part) : out_(out) {
    piece_.row = static_cast<uint16_t>(row);
    piece_.kv_head = static_cast<uint16_t>(kv_head);
    piece_.part = static_cast<uint8_t>(part);
  }
  void add(PieceKind kind, int64_t tokens, int64_t unit, int64_t max_splits) {
    const int64_t step = split_tokens(tokens, unit, max_splits);
    piece_.kind = kind;
    for (int64_t begin = 0; begin < tokens; begin += step) {
      piece_.begin = static_cast<int32_t>(begin);
      piece_.end = static_cast<int32_t>(std::min(begin + step, tokens));
      *out_++ = piece_;
    }
  }

 private:
  Piece* out_;
  Piece piece_;
};

void write_pieces(const DecodeAttentionRow& row, int index, const DecodeAttentionShape& shape,
                  int64_t pieces, Piece* out) {
  const int parts = decode::parts_of(shape.heads / shape.kv_heads);
  for (int i = 0; i < shape.kv_heads * parts; ++i) {
    PieceWriter writer(out + i * pieces, index, i / parts, i % parts);
    writer.add(PieceKind::kCompressed, compressed_tokens(row), kChunk, kMaxSplits);
    writer.add(PieceKind::kDense, dense_tokens(row), kDenseSplit, kMaxDenseSplits);
    writer.add(PieceKind::kSuffix, row.suffix_tokens, kDenseSplit, kMaxDenseSplits);
  }
}

// Runs of pieces of about equal cost: a piece goes to the block in whose share its middle lies.
void deal(std::span<const DecodeAttentionRow> rows, const Piece* pieces, int64_t count, int blocks,
          int32_t* starts) {
  int64_t total = 0, before = 0;
  for (int64_t i = 0; i < count; ++i) total += cost(pieces[i], rows[pieces[i].row].anchors);
  int block = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t own = cost(pieces[i], rows[pieces[i].row].anchors);
    while (block < blocks && (2 * before + own) * blocks >= 2 * total * block) {
      starts[block++] = static_cast<int32_t>(i);
    }
    before += own;
  }
  while (block <= blocks) starts[block++] = static_cast<int32_t>(count);
}

template <class T>
T* at(std::byte* plan, int64_t offset) {
  return reinterpret_cast<T*>(plan + offset);
}

struct PlanSizes {
  int64_t rows = 0, pieces = 0, pages = 0;
};

PlanHeader layout(const PlanSizes& sizes, int blocks, int64_t* bytes) {
  PlanHeader header;
  header.rows = static_cast<int32_t>(sizes.rows);
  header.pieces = static_cast<int32_t>(sizes.pieces);
  int64_t end = sizeof(PlanHeader);
  const auto take = [&end](int64_t size) {
    const int64_t offset = end;
    end = align16(end + size);
    return offset;
  };
  header.starts = take((int64_t{blocks} + 1) * static_cast<int64_t>(sizeof(int32_t)));
  header.row_table = take(sizes.rows * static_cast<int64_t>(sizeof(PlanRow)));
  header.piece_table = take(sizes.pieces * static_cast<int64_t>(sizeof(Piece)));
  // NOLINTNEXTLINE(bugprone-sizeof-expression): a table of pointers
  header.pages = take(sizes.pages * static_cast<int64_t>(sizeof(const bf16*)));
  *bytes = end;
  return header;
}

int64_t page_count(const DecodeAttentionRow& row) {
  return ceil_div(row.suffix_tokens, kSuffixPageTokens);
}

int64_t pieces_of(const DecodeAttentionRow& row) {
  return row_pieces(compressed_tokens(row), dense_tokens(row), row.suffix_tokens);
}

}  // namespace

namespace decode {

void size_plan(DecodeAttentionConfig* config) {
  const DecodeAttentionShape& shape = config->shape;
  const DecodeAttentionLimits& limits = config->limits;
  const int group = shape.heads / shape.kv_heads;
  const auto most = [](int64_t tokens, int64_t unit, int64_t max_splits) {
    return std::min(ceil_div(tokens, unit), max_splits);  // of any length up to `tokens`
  };
  const int64_t prompt = std::max(most(limits.prompt_tokens, kChunk, kMaxSplits),
                                  most(limits.prompt_tokens, kDenseSplit, kMaxDenseSplits)) +
                         most(limits.suffix_tokens, kDenseSplit, kMaxDenseSplits);
  PlanSizes sizes;
  sizes.rows = limits.rows;
  sizes.pieces = prompt * limits.rows * shape.kv_heads * parts_of(group);
  sizes.pages = limits.rows * ceil_div(limits.suffix_tokens, kSuffixPageTokens);
  config->max_pieces = sizes.pieces;
  layout(sizes, config->blocks, &config->plan_bytes);
  const int64_t partials =
      sizes.pieces * part_heads(group, shape.head_dim) * partial_stride(shape.head_dim);
  config->histogram_offset = (partials * static_cast<int64_t>(sizeof(float)) + 255) / 256 * 256;
  config->scratch_bytes = config->histogram_offset;
  if (config->histogram_capacity < limits.anchors) {
    config->scratch_bytes +=
        config->blocks * part_heads(group, shape.head_dim) * histogram_stride(limits.anchors) * 4;
  }
  config->halves_offset = align16(config->scratch_bytes);
  if (config->anchor_capacity < limits.anchors) {
    config->scratch_bytes = config->halves_offset + int64_t{2} * limits.rows * shape.kv_heads *
                                                        limits.anchors * shape.head_dim;
  }
}

}  // namespace decode

const char* decode_attention_unsupported(const DecodeAttentionShape& shape) {
  if (shape.kv_heads <= 0 || shape.heads % shape.kv_heads != 0) {
    return "query heads are not a multiple of KV heads";
  }
  const int group = shape.heads / shape.kv_heads;
  if (group < 1 || group > 16) return "the CUDA attention takes 1 to 16 query heads per KV head";
  for (const int dim : {64, 96, 128, 256}) {
    if (shape.head_dim == dim) return nullptr;
  }
  return "the CUDA attention takes heads of 64, 96, 128 and 256 dimensions";
}

int64_t build_decode_attention_plan(const DecodeAttentionConfig& config,
                                    std::span<const DecodeAttentionRow> rows, std::byte* host) {
  const int heads =
      config.shape.kv_heads * decode::parts_of(config.shape.heads / config.shape.kv_heads);
  PlanSizes sizes;
  sizes.rows = static_cast<int64_t>(rows.size());
  for (const DecodeAttentionRow& row : rows) {
    sizes.pieces += pieces_of(row) * heads;
    sizes.pages += page_count(row);
  }
  int64_t bytes = 0;
  const PlanHeader header = layout(sizes, config.blocks, &bytes);
  std::memcpy(host, &header, sizeof(header));
  int64_t piece = 0, page = 0;
  Piece* pieces = at<Piece>(host, header.piece_table);
  for (size_t r = 0; r < rows.size(); ++r) {
    const DecodeAttentionRow& row = rows[r];
    PlanRow& out = at<PlanRow>(host, header.row_table)[r];
    out.prompt = row.prompt;
    out.dense_prompt = row.dense_prompt;
    out.first_page = static_cast<int32_t>(page);
    out.first_piece = static_cast<int32_t>(piece);
    out.pieces = static_cast<int32_t>(pieces_of(row));
    out.compressed_pieces =
        static_cast<int32_t>(splits(compressed_tokens(row), kChunk, kMaxSplits));
    std::copy_n(row.pages, page_count(row), at<const bf16*>(host, header.pages) + page);
    write_pieces(row, static_cast<int>(r), config.shape, out.pieces, pieces + piece);
    piece += int64_t{out.pieces} * heads;
    page += page_count(row);
  }
  deal(rows, pieces, piece, config.blocks, at<int32_t>(host, header.starts));
  return bytes;
}

CompressedSideView rebased(const CompressedSideView& side, const void* from, const void* to) {
  CompressedSideView out = side;
  const auto move = [&](auto*& pointer) {
    if (pointer == nullptr) return;
    const auto address = reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(from) +
                         reinterpret_cast<uintptr_t>(to);
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(address);
  };
  move(out.slots8);
  move(out.slots16);
  move(out.gamma8);
  move(out.gamma16);
  move(out.mask);
  move(out.mask4);
  move(out.prefix2);
  move(out.prefix4);
  move(out.codes2);
  move(out.codes4);
  move(out.scale2_bf16);
  move(out.scale4_bf16);
  move(out.scale2_f32);
  move(out.scale4_f32);
  move(out.anchors);
  return out;
}

}  // namespace akv::kernels::cuda
