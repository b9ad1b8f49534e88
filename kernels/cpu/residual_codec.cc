#include "kernels/residual_codec.h"

#include <cstring>

#include "kernels/codec.h"
#include "kernels/cpu/codec_simd.h"

namespace akv::kernels {
namespace {

// Words are little-endian on the wire whatever the CPU.
void store_word(uint8_t* p, uint32_t word) {
  for (int i = 0; i < 4; ++i) p[i] = static_cast<uint8_t>(word >> (8 * i));
}
uint32_t load_word(const uint8_t* p) {
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word |= static_cast<uint32_t>(p[i]) << (8 * i);
  return word;
}

void pack_row(const uint8_t* codes, int head_dim, int bits, int group, int64_t n, int64_t index,
              uint8_t* stream) {
  const int per_word = 32 / bits;
  const int words = head_dim / per_word;
  for (int w = 0; w < words; ++w) {
    uint32_t word = 0;
    for (int i = 0; i < per_word; ++i) {
      word |= static_cast<uint32_t>(codes[w * per_word + i]) << (bits * i);
    }
    store_word(stream + code_word_offset(index, n, w, words, group), word);
  }
}

}  // namespace

float quantize_row(const float* x, int head_dim, int bits, bool least_squares, uint8_t* codes) {
  return codec_simd(active_isa()).quantize(x, head_dim, bits, least_squares, codes);
}

void unpack_row(const uint8_t* stream, int64_t n, int64_t index, int head_dim, int bits, int group,
                uint8_t* codes) {
  const int per_word = 32 / bits;
  const int words = head_dim / per_word;
  for (int w = 0; w < words; ++w) {
    const uint32_t word = load_word(stream + code_word_offset(index, n, w, words, group));
    for (int i = 0; i < per_word; ++i) {
      codes[w * per_word + i] = static_cast<uint8_t>((word >> (bits * i)) & ((1u << bits) - 1));
    }
  }
}

void encode_residuals(const ResidualCoding& c, const ResidualStream& s, int64_t begin,
                      int64_t end) {
  const CodecSimd& simd = codec_simd(active_isa());
  const int d = s.anchors->head_dim;
  float x[kMaxHeadDim];
  uint8_t codes[kMaxHeadDim];
  for (int64_t i = begin; i < end; ++i) {
    const int64_t t = s.tokens[i];
    simd.expand_rows(s.x + t * s.stride, 0, 1, d, x);
    simd.residual(x, s.anchors->rows.data() + static_cast<int64_t>(s.slot[t]) * d, s.gamma[t], d,
                  x);
    if (c.rope != nullptr) {
      simd.rope_rows(x, 1, d, c.rope->cos_row(t), c.rope->half(),
                     c.rope->pairs() == RopePairs::kInterleaved);
    }
    simd.rotate(x, c.signs, d, hadamard_block(d));
    const float scale = simd.quantize(x, d, c.bits, c.least_squares, codes);
    pack_row(codes, d, c.bits, c.group, s.n, i, s.codes);
    if (s.scale_f32 != nullptr) {
      s.scale_f32[i] = scale;
    } else {
      s.scale_bf16[i] = to_bf16(scale);
    }
  }
}

}  // namespace akv::kernels
