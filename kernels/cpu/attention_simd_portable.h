// Vector operations of attention_kernels-inl.h in plain C++, 4 lanes; compilers turn the loops into
// what the baseline has. The contracts are those of attention_simd_avx512.h.
#pragma once

#include <cstdint>

#include "kernels/cpu/attention_constants.h"
#include "kernels/types.h"

namespace akv::kernels::attention::AKV_SIMD {

inline constexpr int kLanes = 4;
struct F {
  float x[4];
};
struct I {
  uint32_t x[4];
};

template <class Fn>
static inline F map(Fn fn) {
  return F{{fn(0), fn(1), fn(2), fn(3)}};
}
static inline float bits_to_float(uint32_t u) { return __builtin_bit_cast(float, u); }
static inline float widen(bf16 v) { return bits_to_float(static_cast<uint32_t>(v.bits) << 16); }

static inline F zero() { return F{{0, 0, 0, 0}}; }
static inline F set1(float v) { return F{{v, v, v, v}}; }
static inline F load(const float* p) { return F{{p[0], p[1], p[2], p[3]}}; }
static inline void store(float* p, F v) {
  for (int i = 0; i < 4; ++i) p[i] = v.x[i];
}
static inline F add(F a, F b) {
  return map([&](int i) { return a.x[i] + b.x[i]; });
}
static inline F sub(F a, F b) {
  return map([&](int i) { return a.x[i] - b.x[i]; });
}
static inline F mul(F a, F b) {
  return map([&](int i) { return a.x[i] * b.x[i]; });
}
static inline F fma(F a, F b, F c) {
  return map([&](int i) { return a.x[i] * b.x[i] + c.x[i]; });
}
static inline F fnma(F a, F b, F c) {
  return map([&](int i) { return c.x[i] - a.x[i] * b.x[i]; });
}
static inline F max(F a, F b) {
  return map([&](int i) { return a.x[i] > b.x[i] ? a.x[i] : b.x[i]; });
}
static inline float sum(F v) { return (v.x[0] + v.x[2]) + (v.x[1] + v.x[3]); }
static inline float highest(F v) {
  const float a = v.x[0] > v.x[1] ? v.x[0] : v.x[1];
  const float b = v.x[2] > v.x[3] ? v.x[2] : v.x[3];
  return a > b ? a : b;
}

static inline F load_bf16(const bf16* p) {
  return map([&](int i) { return widen(p[i]); });
}
static inline void load_bf16_pairs(const bf16* p, F* even, F* odd) {
  *even = map([&](int i) { return widen(p[2 * i]); });
  *odd = map([&](int i) { return widen(p[2 * i + 1]); });
}
static inline I load_u8(const uint8_t* p) { return I{{p[0], p[1], p[2], p[3]}}; }
static inline I load_u16(const uint16_t* p) { return I{{p[0], p[1], p[2], p[3]}}; }
static inline I load_words(const uint8_t* p) {
  I out;
  __builtin_memcpy(out.x, p, sizeof(out.x));
  return out;
}
template <int N>
static inline I shift_right(I v) {
  return I{{v.x[0] >> N, v.x[1] >> N, v.x[2] >> N, v.x[3] >> N}};
}
static inline void store_scaled(uint32_t* p, I v, uint32_t factor) {
  for (int i = 0; i < 4; ++i) p[i] = v.x[i] * factor;
}

// Nearest integer of |x| < 2^22, ties to even, without a call: the magic number's trick.
static inline int32_t nearest(float x) {
  const float shifted = x + 12582912.0f;
  return static_cast<int32_t>(__builtin_bit_cast(uint32_t, shifted)) - 0x4b400000;
}
static inline void store_i16(int16_t* p, F v) {
  for (int i = 0; i < 4; ++i) {
    const int32_t n = nearest(v.x[i]);
    p[i] = static_cast<int16_t>(n > 32767 ? 32767 : n < -32768 ? -32768 : n);
  }
}

static inline float exp2_one(float x) {
  if (!(x > kExp2Floor)) x = kExp2Floor;
  const int32_t n = nearest(x);
  const float r = x - static_cast<float>(n);
  float p = kExp2[5];
  for (int i = 4; i >= 0; --i) p = p * r + kExp2[i];
  return bits_to_float(__builtin_bit_cast(uint32_t, p) + (static_cast<uint32_t>(n) << 23));
}
static inline F exp2(F v) {
  return map([&](int i) { return exp2_one(v.x[i]); });
}

static inline float log8_one(uint8_t b) {
  const int m = (b & 127) - 1;
  if (m < 0) return 0.0f;
  const uint32_t exponent = static_cast<uint32_t>((m >> 4) - 5) << 23;
  const uint32_t magnitude = __builtin_bit_cast(uint32_t, kLog8Fractions[m & 15]) + exponent;
  return bits_to_float(magnitude | static_cast<uint32_t>(b & 128) << 24);
}
static inline F log8(const uint8_t* p) {
  return map([&](int i) { return log8_one(p[i]); });
}

static inline F level2(I word) {
  return map([&](int i) { return kLevels2[word.x[i] & 3]; });
}
static inline F level4(I word) {
  return map([&](int i) { return kLevels4[word.x[i] & 15]; });
}
static inline void row_levels2(const uint8_t* p, F* out) {
  for (int b = 0; b < 4; ++b) {
    out[b] = map([&](int i) { return kLevels2[(p[b] >> (2 * i)) & 3]; });
  }
}
static inline void row_levels4(const uint8_t* p, F* out) {
  for (int b = 0; b < 4; ++b) {
    out[b] = map([&](int i) { return kLevels4[(p[2 * b + i / 2] >> (4 * (i & 1))) & 15]; });
  }
}

static inline void store_token_major(const F* w, float* out) {
  for (int t = 0; t < 4; ++t) {
    for (int h = 0; h < 4; ++h) out[4 * t + h] = w[h].x[t];
  }
}
static inline void expand(uint64_t bits_a, const float* a, uint64_t bits_b, const float* b,
                          float* dst) {
  for (int i = 0; i < 64; i += kLanes) store(dst + i, zero());
  for (; bits_a != 0; bits_a &= bits_a - 1) dst[__builtin_ctzll(bits_a)] = *a++;
  for (; bits_b != 0; bits_b &= bits_b - 1) dst[__builtin_ctzll(bits_b)] = *b++;
}
static inline void list_bits(uint64_t bits, uint32_t base, uint32_t* dst) {
  for (; bits != 0; bits &= bits - 1) {
    *dst++ = base + static_cast<uint32_t>(__builtin_ctzll(bits));
  }
}

template <int kStep>
static inline F butterfly(F v) {
  return map([&](int i) { return v.x[i ^ kStep] + ((i & kStep) != 0 ? -v.x[i] : v.x[i]); });
}

template <int kHeads, int kVectors>
static inline void phase_dots(const int16_t* phases, const int16_t* table, const uint32_t* offsets,
                              F* out) {
  constexpr int kStride = kVectors * 32;
  for (int t = 0; t < 4; ++t) {
    const int16_t* phase = phases + t * kStride;
    const int16_t* row = table + offsets[t] / sizeof(int16_t);
    for (int h = 0; h < kHeads; ++h) {
      int32_t dot = 0;
      for (int i = 0; i < kStride; ++i) dot += phase[i] * row[h * kStride + i];
      out[h].x[t] = static_cast<float>(dot);
    }
  }
}

static inline F load_i16_as_f32(const int16_t* p) {
  return map([&](int i) { return static_cast<float>(p[i]); });
}
static inline void sum4(const F* a, float* out) {
  for (int u = 0; u < 4; ++u) out[u] = sum(a[u]);
}

template <int kHeads>
static inline void dense_dots(const float* q, const bf16* const* k, int head_dim, float* out,
                              int stride) {
  for (int u = 0; u < 4; ++u) {
    F acc[kHeads];
    for (int h = 0; h < kHeads; ++h) acc[h] = zero();
    for (int d = 0; d < head_dim; d += 4) {
      const F row = load_bf16(k[u] + d);
      for (int h = 0; h < kHeads; ++h) acc[h] = fma(load(q + h * head_dim + d), row, acc[h]);
    }
    for (int h = 0; h < kHeads; ++h) out[h * stride + u] = sum(acc[h]);
  }
}

}  // namespace akv::kernels::attention::AKV_SIMD
