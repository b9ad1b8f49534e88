// Coding of chosen residuals (A.1): rotate, quantise, pack. One stream (side, head, width) at a
// time.
#pragma once

#include <cstdint>

#include "kernels/anchor_assign.h"
#include "kernels/compressed_view.h"
#include "kernels/rope.h"
#include "kernels/types.h"

namespace akv::kernels {

// How residuals are coded.
struct ResidualCoding {
  int bits = 2;                     // 2 or 4
  bool least_squares = true;        // else absmax
  int group = kValueCodeGroup;      // word interleaving, see code_word_offset
  const float* signs = nullptr;     // [D], diagonal of U
  const RopeTable* rope = nullptr;  // set: code the residual after rotation (keys, post-RoPE)
};

// The residuals of one stream: n tokens in position order.
struct ResidualStream {
  const bf16* x = nullptr;  // row of token t at x + t * stride
  int64_t stride = 0;
  const AnchorRows* anchors = nullptr;
  const uint16_t* slot = nullptr;   // [P]
  const float* gamma = nullptr;     // [P]
  const int32_t* tokens = nullptr;  // [n]
  int64_t n = 0;
  uint8_t* codes = nullptr;  // out, n * D * bits / 8 bytes
  // Out, [n]; exactly one is set. Codes are not taken again after bf16 rounding.
  float* scale_f32 = nullptr;
  bf16* scale_bf16 = nullptr;
};

// Codes residuals [begin, end) of the stream. Ranges of one stream may run on different threads.
void encode_residuals(const ResidualCoding& coding, const ResidualStream& stream, int64_t begin,
                      int64_t end);

// Codes and scale of one rotated residual x [D], one code a byte: what encode_residuals packs.
float quantize_row(const float* x, int head_dim, int bits, bool least_squares, uint8_t* codes);

// The codes (one a byte) of residual `index` of a stream of n.
void unpack_row(const uint8_t* stream, int64_t n, int64_t index, int head_dim, int bits, int group,
                uint8_t* codes);

}  // namespace akv::kernels
