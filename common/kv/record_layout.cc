#include "common/kv/record_layout.h"

#include "proto/state.h"

namespace akv::kv {
namespace {

uint64_t align_up(uint64_t x, uint64_t to) { return (x + to - 1) / to * to; }

}  // namespace

RecordLayout record_layout(const KvShape& shape, int64_t tokens, const LayerPlan& plan,
                           const CodecOptions& options) {
  const bool paper = options.layout == Layout::kPaper;
  RecordLayout l;
  l.prefix = tokens - options.window;
  l.words = (l.prefix + 63) / 64;
  l.selected = plan.k - options.window;
  l.index_bytes = paper || plan.k > 256 ? 2 : 1;
  l.coefficient_bytes = options.coefficient == Coefficient::kBf16 ? 2 : 1;
  l.scale_bytes = options.scale_type == ScaleType::kF32 ? 4 : 2;
  l.two_masks = options.widths == Widths::k2And4;
  l.chunk_byte = paper;

  const uint64_t heads = shape.kv_heads;
  const uint64_t mask_words = 2 * heads * l.masks_per_head() * l.words;
  uint64_t at = proto::kRecordHeaderBytes;
  const auto place = [&at](uint64_t& field, uint64_t bytes) {
    field = at;
    at += bytes;
  };
  place(l.masks, 8 * mask_words);
  place(l.anchor_positions, (paper ? 8 : 4) * heads * l.selected);
  place(l.prefixes, 4 * mask_words);
  place(l.head_offsets, 4 * 2 * (heads + 1));
  place(l.token_positions, paper ? 4 * l.prefix : 0);
  place(l.anchors, uint64_t{2} * 2 * heads * plan.k * shape.head_dim);
  place(l.key_region, plan.key_bytes);
  place(l.slots, 2 * heads * l.prefix * l.index_bytes);
  place(l.gammas, 2 * heads * l.prefix * l.coefficient_bytes);
  at = align_up(at, l.scale_bytes);
  place(l.value_region, plan.value_bytes);
  l.end = at;
  return l;
}

RegionLayout region_layout(int head_dim, uint64_t n2, uint64_t n4, int scale_bytes,
                           bool chunk_byte) {
  RegionLayout r;
  r.scales2 = 0;
  r.scales4 = r.scales2 + n2 * scale_bytes;
  r.codes2 = r.scales4 + n4 * scale_bytes;
  r.codes4 = r.codes2 + n2 * head_dim / 4;
  r.chunks = r.codes4 + n4 * head_dim / 2;
  r.end = r.chunks + (chunk_byte ? n2 + n4 : 0);
  return r;
}

}  // namespace akv::kv
