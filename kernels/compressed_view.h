// What a kernel sees of a compressed layer, a dense layer and a dense suffix: plain views into
// bytes that somebody else owns (a received state, a suffix page). No view is hostile: common/kv
// verifies every index, count and scale before it hands one out, so kernels do not check again.
//
// Symbols as in the paper: S prompt tokens, W window (the last W positions, exact), P = S - W, k
// anchors per KV head with the window included, D head_dim (a multiple of 16), Hq = g * H.
//
//   key of token t    gamma_t * K_a(t) (pre-RoPE) [+ residual],   t in [0, P)
//   value of token t  gamma_t * V_a(t)            [+ residual]
//   window            anchor slots k-W .. k-1 are positions P .. S-1, exact
//
// Every pointer is aligned to its element size and to no more; records are 8-byte aligned.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/types.h"

namespace akv::kernels {

// Tokens whose KEY codes lie word by word side by side, so that a vector register of 16 (or 8)
// tokens loads without a transpose; see code_word_offset. VALUE codes are row-major (group 1): the
// value pass walks residuals one by one.
inline constexpr int kKeyCodeGroup = 16;
inline constexpr int kValueCodeGroup = 1;

// Byte offset, inside one head's code stream of n residuals, of the 32-bit little-endian word
// `word` of residual `index`. A residual has `words` = D/16 (2 bits) or D/8 (4 bits) words. Groups
// of `group` residuals are stored word-major [words][r]; the last group holds the r = n % group
// that are left, so that no byte is padding: offset = (first * words + word * r + index - first)
// * 4.
inline constexpr int64_t code_word_offset(int64_t index, int64_t n, int word, int words,
                                          int group) {
  const int64_t first = index / group * group;
  const int64_t r = n - first < group ? n - first : group;
  return (first * words + word * r + (index - first)) * 4;
}

// One side (keys or values) of one KV head. Residuals are counted per width class, each class in
// position order in a stream of its own.
struct CompressedSideView {
  // Anchor slot of every non-window token, [P]; exactly one of the two is set.
  const uint8_t* slots8 = nullptr;
  const uint16_t* slots16 = nullptr;
  // Coefficient of every non-window token, [P]; exactly one is set. gamma8 is `log8`: decode with
  // log8_table() of kernels/codec.h (bit 7 sign, n = bits 0..6, 0 is 0, else 2^((n-1)/16 - 5)).
  const uint8_t* gamma8 = nullptr;
  const bf16* gamma16 = nullptr;
  // Bit t%64 of word t/64, [ceil(P/64)]: token t has a residual; bits from P on are 0.
  const uint64_t* mask = nullptr;
  // The same: its residual has 4 bits (a subset of mask). Null: no residual has 4 bits.
  const uint64_t* mask4 = nullptr;
  // Residuals of this head and class before word w, [ceil(P/64)]. prefix4 is null with mask4.
  const uint32_t* prefix2 = nullptr;
  const uint32_t* prefix4 = nullptr;
  uint32_t n2 = 0;  // residuals of 2 bits
  uint32_t n4 = 0;  // residuals of 4 bits
  // Codes, n2 * D/4 and n4 * D/2 bytes, addressed with code_word_offset. In a word, code i (2 bits:
  // i < 16, 4 bits: i < 8) is coordinate word * (32 / bits) + i, lowest bits first.
  const uint8_t* codes2 = nullptr;
  const uint8_t* codes4 = nullptr;
  // Scales in stream order, [n2] and [n4]; exactly one type is set (both classes alike).
  const bf16* scale2_bf16 = nullptr;
  const bf16* scale4_bf16 = nullptr;
  const float* scale2_f32 = nullptr;
  const float* scale4_f32 = nullptr;
  // Exact rows of the anchors by slot, [k][D]. Keys are PRE-RoPE; an anchor's RoPE position is that
  // of the token that refers to it, for the window its own position.
  const bf16* anchors = nullptr;
};

struct CompressedHeadView {
  CompressedSideView key;
  CompressedSideView value;
};

// One layer of a compressed prompt. `heads` points at kv_heads entries.
struct CompressedLayerView {
  int32_t tokens = 0;    // S
  int32_t prefix = 0;    // P = S - W
  int32_t window = 0;    // W
  int32_t anchors = 0;   // k, window included
  int32_t head_dim = 0;  // D
  int32_t kv_heads = 0;  // H
  // True (`post`): key residuals are U R_t r_t, the logit term is scale_t <U q, level(code_t)>.
  // False (`pre`, the paper): they are U r_t and need q_t = R_t^T q.
  bool key_domain_post = false;
  // The +-1 diagonal of U, [D]; U = B^-1/2 * blocks of Hadamard_B * diag(signs) with B =
  // hadamard_block(D) of kernels/codec.h.
  const float* signs = nullptr;
  const CompressedHeadView* heads = nullptr;
};

// One layer of a dense prompt: keys POST-RoPE.
struct DenseLayerView {
  int32_t tokens = 0;       // S
  int32_t head_dim = 0;     // D
  int32_t kv_heads = 0;     // H
  const bf16* k = nullptr;  // [H][S][D]
  const bf16* v = nullptr;  // [H][S][D]
};

// Tokens after the prompt, in pages of kSuffixPageTokens tokens. A page holds all layers; a layer's
// part starts layer_offset elements into it: K post-RoPE [kSuffixPageTokens][H][D], then V alike.
inline constexpr int kSuffixPageTokens = 64;
struct SuffixView {
  const bf16* const* pages = nullptr;  // ceil(tokens / kSuffixPageTokens)
  int64_t layer_offset = 0;            // elements
  int32_t tokens = 0;
};

// Place of token t in its side's stream of residuals. REQUIRES: bit t of mask is set.
struct ResidualPlace {
  bool four_bits = false;
  uint32_t index = 0;
};
inline ResidualPlace residual_place(const CompressedSideView& side, int64_t t) {
  const int64_t w = t >> 6;
  const uint64_t below = (uint64_t{1} << (t & 63)) - 1;
  const uint64_t four = side.mask4 == nullptr ? 0 : side.mask4[w];
  if ((four >> (t & 63)) & 1) {
    return {true, side.prefix4[w] + static_cast<uint32_t>(std::popcount(four & below))};
  }
  const uint64_t two = side.mask[w] & ~four & below;
  return {false, side.prefix2[w] + static_cast<uint32_t>(std::popcount(two))};
}

}  // namespace akv::kernels
