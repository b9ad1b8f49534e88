// Vector operations of attention_kernels-inl.h for AVX2 with FMA, 8 lanes. Included once per
// translation unit. The contracts are those of attention_simd_avx512.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/attention_constants.h"
#include "kernels/types.h"

namespace akv::kernels::attention::AKV_SIMD {

inline constexpr int kLanes = 8;
using F = __m256;
using I = __m256i;

static inline F zero() { return _mm256_setzero_ps(); }
static inline F set1(float x) { return _mm256_set1_ps(x); }
static inline F load(const float* p) { return _mm256_loadu_ps(p); }
static inline void store(float* p, F x) { _mm256_storeu_ps(p, x); }
static inline F add(F a, F b) { return _mm256_add_ps(a, b); }
static inline F sub(F a, F b) { return _mm256_sub_ps(a, b); }
static inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
static inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
static inline F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
static inline F max(F a, F b) { return _mm256_max_ps(a, b); }
static inline float sum(F x) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
static inline float highest(F x) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}

static inline F load_bf16(const bf16* p) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
}
static inline void load_bf16_pairs(const bf16* p, F* even, F* odd) {
  const I raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  *even = _mm256_castsi256_ps(_mm256_slli_epi32(raw, 16));
  *odd = _mm256_castsi256_ps(_mm256_and_si256(raw, _mm256_set1_epi32(-65536)));
}
static inline I load_u8(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
static inline I load_u16(const uint16_t* p) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
static inline I load_words(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
template <int N>
static inline I shift_right(I x) {
  return _mm256_srli_epi32(x, N);
}
static inline void store_scaled(uint32_t* p, I x, uint32_t factor) {
  const I product = _mm256_mullo_epi32(x, _mm256_set1_epi32(static_cast<int>(factor)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), product);
}

static inline void store_i16(int16_t* p, F x) {
  const I words = _mm256_cvtps_epi32(x);
  const __m128i packed =
      _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}

static inline F exp2(F x) {
  x = _mm256_max_ps(x, _mm256_set1_ps(kExp2Floor));
  const F n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const F r = _mm256_sub_ps(x, n);
  F p = _mm256_set1_ps(kExp2[5]);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExp2[4]));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExp2[3]));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExp2[2]));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExp2[1]));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  const I exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
}

// table[low 4 bits of every lane] of a table of 16.
static inline F lookup16(I index, const float* table) {
  const F low = _mm256_permutevar8x32_ps(load(table), index);
  const F high = _mm256_permutevar8x32_ps(load(table + 8), index);
  return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
}

static inline F log8(const uint8_t* p) {
  const I b = load_u8(p);
  const I n = _mm256_and_si256(b, _mm256_set1_epi32(127));
  const I m = _mm256_sub_epi32(n, _mm256_set1_epi32(1));
  const I exponent =
      _mm256_slli_epi32(_mm256_sub_epi32(_mm256_srai_epi32(m, 4), _mm256_set1_epi32(5)), 23);
  const I magnitude = _mm256_add_epi32(_mm256_castps_si256(lookup16(m, kLog8Fractions)), exponent);
  const I sign = _mm256_slli_epi32(_mm256_and_si256(b, _mm256_set1_epi32(128)), 24);
  const I is_zero = _mm256_cmpeq_epi32(n, _mm256_setzero_si256());
  return _mm256_castsi256_ps(_mm256_andnot_si256(is_zero, _mm256_or_si256(magnitude, sign)));
}

static inline F level2(I word) { return _mm256_permutevar8x32_ps(load(kLevels2), word); }
static inline F level4(I word) { return lookup16(word, kLevels4); }

static inline void row_levels2(const uint8_t* p, F* out) {
  int word;
  __builtin_memcpy(&word, p, sizeof(word));
  const I all = _mm256_set1_epi32(word);
  out[0] = level2(_mm256_srlv_epi32(all, _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14)));
  out[1] = level2(_mm256_srlv_epi32(all, _mm256_setr_epi32(16, 18, 20, 22, 24, 26, 28, 30)));
}
static inline void row_levels4(const uint8_t* p, F* out) {
  const I shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
  for (int i = 0; i < 2; ++i) {
    int word;
    __builtin_memcpy(&word, p + 4 * i, sizeof(word));
    out[i] = level4(_mm256_srlv_epi32(_mm256_set1_epi32(word), shifts));
  }
}

static inline void store_token_major(const F* w, float* out) {
  const F a = _mm256_unpacklo_ps(w[0], w[1]), b = _mm256_unpackhi_ps(w[0], w[1]);
  const F c = _mm256_unpacklo_ps(w[2], w[3]), d = _mm256_unpackhi_ps(w[2], w[3]);
  const F r[4] = {_mm256_shuffle_ps(a, c, 0x44), _mm256_shuffle_ps(a, c, 0xee),
                  _mm256_shuffle_ps(b, d, 0x44), _mm256_shuffle_ps(b, d, 0xee)};
  store(out, _mm256_permute2f128_ps(r[0], r[1], 0x20));
  store(out + 8, _mm256_permute2f128_ps(r[2], r[3], 0x20));
  store(out + 16, _mm256_permute2f128_ps(r[0], r[1], 0x31));
  store(out + 24, _mm256_permute2f128_ps(r[2], r[3], 0x31));
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
static inline F butterfly(F x) {
  if constexpr (kStep == 1) {
    const F partner = _mm256_permute_ps(x, 0xb1);
    return _mm256_blend_ps(add(partner, x), sub(partner, x), 0xaa);
  } else if constexpr (kStep == 2) {
    const F partner = _mm256_permute_ps(x, 0x4e);
    return _mm256_blend_ps(add(partner, x), sub(partner, x), 0xcc);
  } else {
    const F partner = _mm256_permute2f128_ps(x, x, 0x01);
    return _mm256_blend_ps(add(partner, x), sub(partner, x), 0xf0);
  }
}

static inline I load_i16(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
static inline I dot_i16(I sum, I a, I b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
static inline I sum_lanes(I a, I b, I c, I d) {
  const I t = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
  const I u = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
  return _mm256_add_epi32(_mm256_unpacklo_epi64(t, u), _mm256_unpackhi_epi64(t, u));
}

template <int kHeads, int kVectors>
static inline void phase_dots(const int16_t* phases, const int16_t* table, const uint32_t* offsets,
                              F* out) {
  I quads[kHeads][2];
  for (int quad = 0; quad < 2; ++quad) {
    I acc[kHeads][4];
    for (int u = 0; u < 4; ++u) {
      const int16_t* phase = phases + (4 * quad + u) * kVectors * 32;
      const char* row = reinterpret_cast<const char*>(table) + offsets[4 * quad + u];
      for (int h = 0; h < kHeads; ++h) {
        const char* w = row + h * 2 * kVectors * 32;
        acc[h][u] = _mm256_madd_epi16(load_i16(phase), load_i16(w));
        for (int i = 1; i < 2 * kVectors; ++i) {
          acc[h][u] = dot_i16(acc[h][u], load_i16(phase + 16 * i), load_i16(w + i * 32));
        }
      }
    }
    for (int h = 0; h < kHeads; ++h) {
      quads[h][quad] = sum_lanes(acc[h][0], acc[h][1], acc[h][2], acc[h][3]);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    const I total = _mm256_add_epi32(_mm256_permute2x128_si256(quads[h][0], quads[h][1], 0x20),
                                     _mm256_permute2x128_si256(quads[h][0], quads[h][1], 0x31));
    out[h] = _mm256_cvtepi32_ps(total);
  }
}

static inline F load_i16_as_f32(const int16_t* p) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(raw));
}
static inline void sum4(const F* a, float* out) {
  const F t = add(_mm256_unpacklo_ps(a[0], a[1]), _mm256_unpackhi_ps(a[0], a[1]));
  const F u = add(_mm256_unpacklo_ps(a[2], a[3]), _mm256_unpackhi_ps(a[2], a[3]));
  const F v = add(_mm256_shuffle_ps(t, u, 0x44), _mm256_shuffle_ps(t, u, 0xee));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)));
}

template <int kHeads>
static inline void dense_dots(const float* q, const bf16* const* k, int head_dim, float* out,
                              int stride) {
  for (int pair = 0; pair < 4; pair += 2) {
    F acc[kHeads][2];
    for (int h = 0; h < kHeads; ++h) acc[h][0] = acc[h][1] = zero();
    for (int d = 0; d < head_dim; d += 8) {
      const F a = load_bf16(k[pair] + d), b = load_bf16(k[pair + 1] + d);
      for (int h = 0; h < kHeads; ++h) {
        const F x = load(q + h * head_dim + d);
        acc[h][0] = fma(x, a, acc[h][0]);
        acc[h][1] = fma(x, b, acc[h][1]);
      }
    }
    for (int h = 0; h < kHeads; ++h) {
      out[h * stride + pair] = sum(acc[h][0]);
      out[h * stride + pair + 1] = sum(acc[h][1]);
    }
  }
}

}  // namespace akv::kernels::attention::AKV_SIMD
