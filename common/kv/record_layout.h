// Where everything lies inside one anchorkv record: offsets of its sections, the same for encoder,
// verifier and view. Order and sizes: proto/README.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/kv/plan.h"

namespace akv::kv {

// Byte offsets from the record's start. Sections are ordered by falling alignment, so only the
// value region can need padding (at most 2 bytes, before fp32 scales).
struct RecordLayout {
  int64_t prefix = 0;    // P
  int64_t words = 0;     // ceil(P/64)
  int64_t selected = 0;  // k - W
  int index_bytes = 0;   // of a slot
  int coefficient_bytes = 0;
  int scale_bytes = 0;
  bool two_masks = false;   // widths 2+4
  bool chunk_byte = false;  // the paper's, one per value residual

  uint64_t masks = 0;             // u64 [2 sides][H][1 or 2 masks][words]
  uint64_t anchor_positions = 0;  // int64 (paper) or u32 [H][k - W]
  uint64_t prefixes = 0;          // u32 [2][H][1 or 2 masks][words]
  uint64_t head_offsets = 0;      // int32 [2][H + 1], cumulated residuals of both widths
  uint64_t token_positions = 0;   // int32 [P], paper only
  uint64_t anchors = 0;           // bf16 [2][H][k][D]
  uint64_t key_region = 0;        // LayerPlan::key_bytes
  uint64_t slots = 0;             // u8 or u16 [2][H][P]
  uint64_t gammas = 0;            // u8 or bf16 [2][H][P]
  uint64_t value_region = 0;      // LayerPlan::value_bytes
  uint64_t end = 0;               // of the payload; zero bytes follow up to a multiple of 8

  int masks_per_head() const { return two_masks ? 2 : 1; }
};

RecordLayout record_layout(const KvShape& shape, int64_t tokens, const LayerPlan& plan,
                           const CodecOptions& options);

// Sections of a residual region that holds n2 and n4 residuals in all heads together: scales of all
// 2-bit residuals, scales of the 4-bit ones, their codes, chunk bytes (2 bits first); then zeros.
struct RegionLayout {
  uint64_t scales2 = 0;
  uint64_t scales4 = 0;
  uint64_t codes2 = 0;
  uint64_t codes4 = 0;
  uint64_t chunks = 0;
  uint64_t end = 0;
};
RegionLayout region_layout(int head_dim, uint64_t n2, uint64_t n4, int scale_bytes,
                           bool chunk_byte);

}  // namespace akv::kv
