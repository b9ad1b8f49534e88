// Residuals of the compressed attention: their logits on the key side, their weighted sum in the
// rotated domain on the value side. Included after a attention_simd_*.h, in its namespace.
#pragma once

#include "kernels/cpu/attention_kernels.h"

namespace akv::kernels::attention::AKV_SIMD {

inline constexpr int kVec = 16 / kLanes;  // vectors of 16 numbers
inline constexpr int kKeyGroup = 16;      // kKeyCodeGroup: this file takes 16 tokens at a time

static_assert(kKeyGroup == kKeyCodeGroup && kValueCodeGroup == 1);

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline float widen_bf16(bf16 x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16);
}

// The stages of a Walsh-Hadamard transform below 16, on every 16 coordinates.
static inline void hadamard16(float* x) {
  F v[kVec];
  for (int i = 0; i < kVec; ++i) {
    F u = butterfly<2>(butterfly<1>(load(x + i * kLanes)));
    if constexpr (kLanes >= 8) u = butterfly<4>(u);
    if constexpr (kLanes >= 16) u = butterfly<8>(u);
    v[i] = u;
  }
  for (int half = 1; half < kVec; half *= 2) {
    for (int i = 0; i < kVec; ++i) {
      if ((i & half) != 0) continue;
      const F a = v[i], b = v[i + half];
      v[i] = add(a, b);
      v[i + half] = sub(a, b);
    }
  }
  for (int i = 0; i < kVec; ++i) store(x + i * kLanes, v[i]);
}

// x = H x / sqrt(B) in blocks of B, the largest power of two in head_dim (at least 16); its own
// inverse.
static void hadamard(float* x, int head_dim) {
  const int block = head_dim & -head_dim;
  for (int i = 0; i < head_dim; i += 16) hadamard16(x + i);
  for (int half = 16; half < block; half *= 2) {
    for (int i = 0; i < head_dim; i += 2 * half) {
      for (int j = i; j < i + half; j += kLanes) {
        const F a = load(x + j), b = load(x + j + half);
        store(x + j, add(a, b));
        store(x + j + half, sub(a, b));
      }
    }
  }
  const F norm = set1(1.0f / __builtin_sqrtf(static_cast<float>(block)));
  for (int i = 0; i < head_dim; i += kLanes) store(x + i, mul(load(x + i), norm));
}

// U x = H (s x), U^T x = s (H x), in place.
static void rotate_to_codes(float* x, const float* signs, int head_dim) {
  for (int i = 0; i < head_dim; ++i) x[i] *= signs[i];
  hadamard(x, head_dim);
}
static void rotate_from_codes(float* x, const float* signs, int head_dim) {
  hadamard(x, head_dim);
  for (int i = 0; i < head_dim; ++i) x[i] *= signs[i];
}

// One width class of one side.
struct ResidualStream {
  const uint8_t* codes = nullptr;
  const bf16* scale_bf16 = nullptr;
  const float* scale_f32 = nullptr;
  int64_t n = 0;

  float scale(int64_t i) const {
    return scale_f32 != nullptr ? scale_f32[i] : widen_bf16(scale_bf16[i]);
  }
  // The scales of `count` residuals from i on.
  void scales(int64_t i, int count, float* out) const {
    for (int j = 0; j < count; ++j) out[j] = scale(i + j);
  }
};

static inline ResidualStream stream2(const CompressedSideView& side) {
  return {side.codes2, side.scale2_bf16, side.scale2_f32, side.n2};
}
static inline ResidualStream stream4(const CompressedSideView& side) {
  return {side.codes4, side.scale4_bf16, side.scale4_f32, side.n4};
}
// Bits of word w of the tokens whose residual has that width.
static inline uint64_t bits2(const CompressedSideView& side, int64_t w) {
  return side.mask4 == nullptr ? side.mask[w] : side.mask[w] & ~side.mask4[w];
}
static inline uint64_t bits4(const CompressedSideView& side, int64_t w) {
  return side.mask4 == nullptr ? 0 : side.mask4[w];
}

template <int kBits>
static inline F level(I word) {
  if constexpr (kBits == 2) {
    return level2(word);
  } else {
    return level4(word);
  }
}

// Logits <uq_h, level(code)> * scale of the 16 tokens of one full group: lanes are tokens, words
// lie [words][16]. Two sums per head hide the latency of the additions.
template <int kHeads, int kBits>
static inline void group_dots(const uint8_t* codes, const float* uq, int head_dim,
                              const float* scales, float* out, int stride) {
  constexpr int kPerWord = 32 / kBits;
  const int words = head_dim / kPerWord;
  for (int part = 0; part < kVec; ++part) {
    F even[kHeads], odd[kHeads];
    for (int h = 0; h < kHeads; ++h) even[h] = odd[h] = zero();
    for (int w = 0; w < words; ++w) {
      I word = load_words(codes + w * 64 + part * kLanes * 4);
      const float* q = uq + w * kPerWord;
      for (int j = 0; j < kPerWord; j += 2) {
        const F a = level<kBits>(word), b = level<kBits>(shift_right<kBits>(word));
        for (int h = 0; h < kHeads; ++h) {
          even[h] = fma(set1(q[h * head_dim + j]), a, even[h]);
          odd[h] = fma(set1(q[h * head_dim + j + 1]), b, odd[h]);
        }
        word = shift_right<2 * kBits>(word);
      }
    }
    const F scale = load(scales + part * kLanes);
    for (int h = 0; h < kHeads; ++h) {
      store(out + h * stride + part * kLanes, mul(add(even[h], odd[h]), scale));
    }
  }
}

// Logits of the residuals of one width class in stream order, made group by group as tiles ask for
// them; a group that straddles two tiles is made once.
template <int kHeads, int kBits>
struct KeyResiduals {
  static constexpr int kCapacity = kTile + 2 * kKeyGroup;

  ResidualStream stream;
  int64_t base = 0;  // stream index of values[h][0], a multiple of 16
  int64_t end = 0;   // made so far: [base, end)
  alignas(64) float values[kHeads][kCapacity];

  void group(int64_t first, const float* uq, int head_dim) {
    const int words = head_dim * kBits / 32;
    const uint8_t* codes = stream.codes + first * words * 4;
    const int count = static_cast<int>(smaller(stream.n - first, kKeyGroup));
    alignas(64) float scales[kKeyGroup] = {};
    stream.scales(first, count, scales);
    // The last group is stored without padding: spread it so that one loop serves all.
    alignas(64) uint8_t padded[kMaxHeadDim * kBits / 32 * 64];
    if (count < kKeyGroup) {
      for (int w = 0; w < words; ++w) {
        __builtin_memset(padded + w * 64, 0, 64);
        __builtin_memcpy(padded + w * 64, codes + w * count * 4, static_cast<size_t>(count) * 4);
      }
      codes = padded;
    }
    group_dots<kHeads, kBits>(codes, uq, head_dim, scales, &values[0][first - base], kCapacity);
  }

  // Makes the values of stream indices [first, last).
  void advance(int64_t first, int64_t last, const float* uq, int head_dim) {
    if (first >= last) return;
    const int64_t aligned = first / kKeyGroup * kKeyGroup;
    if (end > aligned && aligned > base) {
      for (int h = 0; h < kHeads; ++h) {
        __builtin_memcpy(values[h], values[h] + (aligned - base), kKeyGroup * sizeof(float));
      }
    } else if (end <= aligned) {
      end = aligned;
    }
    base = aligned;
    for (; end < last; end += kKeyGroup) group(end, uq, head_dim);
  }

  const float* at(int h, int64_t index) const { return values[h] + (index - base); }
};

// One key residual in the `pre` domain: codes to levels, U^T, and the rotation of its position.
template <int kBits>
static void turned_residual(const ResidualStream& stream, int64_t index, const float* signs,
                            int head_dim, const int16_t* phase, const PhaseView& phases,
                            float* out) {
  constexpr int kPerWord = 32 / kBits;
  const int words = head_dim / kPerWord;
  const int64_t first = index / kKeyGroup * kKeyGroup;
  const int64_t members = smaller(stream.n - first, kKeyGroup);
  const float* levels = kBits == 2 ? kLevels2 : kLevels4;
  for (int w = 0; w < words; ++w) {
    uint32_t word;
    __builtin_memcpy(&word, stream.codes + (first * words + w * members + index - first) * 4, 4);
    for (int j = 0; j < kPerWord; ++j) {
      out[w * kPerWord + j] = levels[(word >> (j * kBits)) & ((1u << kBits) - 1)];
    }
  }
  rotate_from_codes(out, signs, head_dim);
  const float unit = 1.0f / kPhaseOne;
  const int step = phases.interleaved ? 2 : 1;
  const int partner = phases.interleaved ? 1 : phases.half;
  for (int j = 0; j < phases.half; ++j) {
    const float c = phase[j] * unit, s = phase[phases.half + j] * unit;
    const float x = out[j * step], y = out[j * step + partner];
    out[j * step] = x * c - y * s;
    out[j * step + partner] = x * s + y * c;
  }
}

// The residuals of a tile on the value side: row i belongs to the tile's token places[i].
struct ValueRows {
  const uint8_t* codes = nullptr;
  int row_bytes = 0;
  int count = 0;
  const uint32_t* places = nullptr;
  const float* scales = nullptr;
};

// z[h] += p[h][place_i] scale_i level(codes of row i) over all rows, for kBlocks * 16 coordinates
// from `codes` on. p[h] and z[h] are `stride` and kMaxHeadDim floats apart.
template <int kHeads, int kBits, int kBlocks>
static inline void accumulate_rows(const ValueRows& rows, const uint8_t* codes, const float* p,
                                   int stride, float* z) {
  constexpr int kBytes = kBits * 2;  // of 16 codes
  F acc[kHeads][kBlocks * kVec];
  for (int h = 0; h < kHeads; ++h) {
    for (int b = 0; b < kBlocks * kVec; ++b) acc[h][b] = load(z + h * kMaxHeadDim + b * kLanes);
  }
  for (int i = 0; i < rows.count; ++i, codes += rows.row_bytes) {
    F row[kBlocks * kVec];
    for (int b = 0; b < kBlocks; ++b) {
      if constexpr (kBits == 2) {
        row_levels2(codes + b * kBytes, row + b * kVec);
      } else {
        row_levels4(codes + b * kBytes, row + b * kVec);
      }
    }
    const F scale = set1(rows.scales[i]);
    for (int b = 0; b < kBlocks * kVec; ++b) row[b] = mul(row[b], scale);
    const float* weight = p + rows.places[i];
    for (int h = 0; h < kHeads; ++h) {
      const F w = set1(weight[h * stride]);
      for (int b = 0; b < kBlocks * kVec; ++b) acc[h][b] = fma(w, row[b], acc[h][b]);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int b = 0; b < kBlocks * kVec; ++b) store(z + h * kMaxHeadDim + b * kLanes, acc[h][b]);
  }
}

// The same for all coordinates of a row.
template <int kHeads, int kBits>
static inline void accumulate_residuals(const ValueRows& rows, int head_dim, const float* p,
                                        int stride, float* z) {
  int d = 0;
  if constexpr (kLanes == 16) {  // enough registers for four blocks of four heads
    for (; d + 64 <= head_dim; d += 64) {
      accumulate_rows<kHeads, kBits, 4>(rows, rows.codes + d * kBits / 8, p, stride, z + d);
    }
  }
  for (; d < head_dim; d += 16) {
    accumulate_rows<kHeads, kBits, 1>(rows, rows.codes + d * kBits / 8, p, stride, z + d);
  }
}

}  // namespace akv::kernels::attention::AKV_SIMD
