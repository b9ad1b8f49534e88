// Vector operations of attention_kernels-inl.h for AVX-512 (F, BW, DQ, VL), 16 lanes; with VNNI
// where the including file is compiled for it. Included once per translation unit.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/attention_constants.h"
#include "kernels/types.h"

namespace akv::kernels::attention::AKV_SIMD {

inline constexpr int kLanes = 16;
using F = __m512;
using I = __m512i;

static inline F zero() { return _mm512_setzero_ps(); }
static inline F set1(float x) { return _mm512_set1_ps(x); }
static inline F load(const float* p) { return _mm512_loadu_ps(p); }
static inline void store(float* p, F x) { _mm512_storeu_ps(p, x); }
static inline F add(F a, F b) { return _mm512_add_ps(a, b); }
static inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
static inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
static inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
static inline F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
static inline F max(F a, F b) { return _mm512_max_ps(a, b); }
static inline float sum(F x) { return _mm512_reduce_add_ps(x); }
static inline float highest(F x) { return _mm512_reduce_max_ps(x); }

static inline F load_bf16(const bf16* p) {
  const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
}
// 2 * kLanes numbers: the even and the odd ones.
static inline void load_bf16_pairs(const bf16* p, F* even, F* odd) {
  const I raw = _mm512_loadu_si512(p);
  *even = _mm512_castsi512_ps(_mm512_slli_epi32(raw, 16));
  *odd = _mm512_castsi512_ps(_mm512_and_si512(raw, _mm512_set1_epi32(-65536)));
}
static inline I load_u8(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
static inline I load_u16(const uint16_t* p) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
static inline I load_words(const uint8_t* p) { return _mm512_loadu_si512(p); }
template <int N>
static inline I shift_right(I x) {
  return _mm512_srli_epi32(x, N);
}
static inline void store_scaled(uint32_t* p, I x, uint32_t factor) {
  _mm512_storeu_si512(p, _mm512_mullo_epi32(x, _mm512_set1_epi32(static_cast<int>(factor))));
}

// Rounds to nearest even and saturates to int16.
static inline void store_i16(int16_t* p, F x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x)));
}

// 2^x for x <= 0, below 2^-120 as 2^-120; relative error < 2e-7.
static inline F exp2(F x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(kExp2Floor));
  const F n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const F r = _mm512_sub_ps(x, n);
  F p = _mm512_set1_ps(kExp2[5]);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExp2[4]));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExp2[3]));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExp2[2]));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExp2[1]));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExp2[0]));
  return _mm512_scalef_ps(p, n);
}

static inline F log8(const uint8_t* p) {
  const F fractions = load(kLog8Fractions);
  const I b = load_u8(p);
  const I n = _mm512_and_si512(b, _mm512_set1_epi32(127));
  const I m = _mm512_sub_epi32(n, _mm512_set1_epi32(1));
  const I exponent =
      _mm512_slli_epi32(_mm512_sub_epi32(_mm512_srai_epi32(m, 4), _mm512_set1_epi32(5)), 23);
  const I magnitude =
      _mm512_add_epi32(_mm512_castps_si512(_mm512_permutexvar_ps(m, fractions)), exponent);
  const I sign = _mm512_slli_epi32(_mm512_and_si512(b, _mm512_set1_epi32(128)), 24);
  const __mmask16 nonzero = _mm512_test_epi32_mask(n, n);
  return _mm512_castsi512_ps(_mm512_maskz_or_epi32(nonzero, magnitude, sign));
}

// Level of the lowest 2 (4) bits of every lane.
static inline F level2(I word) { return _mm512_permutexvar_ps(word, load(kLevels2)); }
static inline F level4(I word) { return _mm512_permutexvar_ps(word, load(kLevels4)); }

// Levels of 16 consecutive coordinates of one row: 4 bytes (2 bits) or 8 bytes (4 bits).
static inline void row_levels2(const uint8_t* p, F* out) {
  int word;
  __builtin_memcpy(&word, p, sizeof(word));
  const I shifts = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  out[0] = level2(_mm512_srlv_epi32(_mm512_set1_epi32(word), shifts));
}
static inline void row_levels4(const uint8_t* p, F* out) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  const I twice = _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(bytes, bytes));
  const I shifts = _mm512_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4);
  out[0] = level4(_mm512_srlv_epi32(twice, shifts));
}

// Transposes four heads x 16 tokens to out[token][head].
static inline void store_token_major(const F* w, float* out) {
  const F a = _mm512_unpacklo_ps(w[0], w[1]), b = _mm512_unpackhi_ps(w[0], w[1]);
  const F c = _mm512_unpacklo_ps(w[2], w[3]), d = _mm512_unpackhi_ps(w[2], w[3]);
  const F r[4] = {_mm512_shuffle_ps(a, c, 0x44), _mm512_shuffle_ps(a, c, 0xee),
                  _mm512_shuffle_ps(b, d, 0x44), _mm512_shuffle_ps(b, d, 0xee)};
  // 128-bit lane l of r[i] is token 4 l + i.
  const F lo = _mm512_shuffle_f32x4(r[0], r[1], 0x44), hi = _mm512_shuffle_f32x4(r[0], r[1], 0xee);
  const F lo2 = _mm512_shuffle_f32x4(r[2], r[3], 0x44),
          hi2 = _mm512_shuffle_f32x4(r[2], r[3], 0xee);
  store(out, _mm512_shuffle_f32x4(lo, lo2, 0x88));
  store(out + 16, _mm512_shuffle_f32x4(lo, lo2, 0xdd));
  store(out + 32, _mm512_shuffle_f32x4(hi, hi2, 0x88));
  store(out + 48, _mm512_shuffle_f32x4(hi, hi2, 0xdd));
}

// dst[i] = the next value of a for every bit i of bits_a, of b for bits_b, else 0; i < 64, no bit
// in both.
static inline void expand(uint64_t bits_a, const float* a, uint64_t bits_b, const float* b,
                          float* dst) {
  for (int i = 0; i < 4; ++i, bits_a >>= 16, bits_b >>= 16) {
    const __mmask16 mask_a = static_cast<__mmask16>(bits_a),
                    mask_b = static_cast<__mmask16>(bits_b);
    const F x = _mm512_maskz_expandloadu_ps(mask_a, a);
    store(dst + 16 * i, _mm512_mask_expandloadu_ps(x, mask_b, b));
    a += __builtin_popcount(mask_a);
    b += __builtin_popcount(mask_b);
  }
}

// dst[j] = base + the place of the j-th bit of bits. Writes up to 16 numbers past the last one.
static inline void list_bits(uint64_t bits, uint32_t base, uint32_t* dst) {
  I places =
      _mm512_add_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                       _mm512_set1_epi32(static_cast<int>(base)));
  for (int i = 0; i < 4; ++i, bits >>= 16) {
    const __mmask16 mask = static_cast<__mmask16>(bits);
    _mm512_storeu_si512(dst, _mm512_maskz_compress_epi32(mask, places));
    dst += __builtin_popcount(mask);
    places = _mm512_add_epi32(places, _mm512_set1_epi32(16));
  }
}

// Lane i: x[i] + x[i + kStep] where bit kStep of i is 0, else x[i - kStep] - x[i].
template <int kStep>
static inline F butterfly(F x) {
  const __mmask16 odd = kStep == 1 ? 0xaaaa : kStep == 2 ? 0xcccc : kStep == 4 ? 0xf0f0 : 0xff00;
  F partner;
  if constexpr (kStep == 1) partner = _mm512_permute_ps(x, 0xb1);
  if constexpr (kStep == 2) partner = _mm512_permute_ps(x, 0x4e);
  if constexpr (kStep == 4) partner = _mm512_shuffle_f32x4(x, x, 0xb1);
  if constexpr (kStep == 8) partner = _mm512_shuffle_f32x4(x, x, 0x4e);
  return _mm512_mask_sub_ps(_mm512_add_ps(partner, x), odd, partner, x);
}

static inline I dot_i16(I sum, I a, I b) {
#if defined(__AVX512VNNI__)
  return _mm512_dpwssd_epi32(sum, a, b);
#else
  return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
#endif
}

// 128-bit lane l of the result: sums of lane l of a, b, c, d.
static inline I sum_lanes(I a, I b, I c, I d) {
  const I t = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const I u = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  return _mm512_add_epi32(_mm512_unpacklo_epi64(t, u), _mm512_unpackhi_epi64(t, u));
}
static inline I sum_quads(const I* u) {
  const I v = _mm512_add_epi32(_mm512_shuffle_i32x4(u[0], u[1], 0x88),
                               _mm512_shuffle_i32x4(u[0], u[1], 0xdd));
  const I w = _mm512_add_epi32(_mm512_shuffle_i32x4(u[2], u[3], 0x88),
                               _mm512_shuffle_i32x4(u[2], u[3], 0xdd));
  return _mm512_add_epi32(_mm512_shuffle_i32x4(v, w, 0x88), _mm512_shuffle_i32x4(v, w, 0xdd));
}

// out[h] = <phase row t, table row of token t and head h> for 16 consecutive tokens, exact.
// offsets are bytes into the table; a row of the table holds kHeads x kVectors x 32 values.
template <int kHeads, int kVectors>
static inline void phase_dots(const int16_t* phases, const int16_t* table, const uint32_t* offsets,
                              F* out) {
  I quads[kHeads][4];
  for (int quad = 0; quad < 4; ++quad) {
    I acc[kHeads][4];
    for (int u = 0; u < 4; ++u) {
      const int16_t* phase = phases + (4 * quad + u) * kVectors * 32;
      const char* row = reinterpret_cast<const char*>(table) + offsets[4 * quad + u];
      // A plain product first: no zeroing, and one link less in the chain.
      for (int h = 0; h < kHeads; ++h) {
        const char* w = row + h * kVectors * 64;
        acc[h][u] = _mm512_madd_epi16(_mm512_loadu_si512(phase), _mm512_loadu_si512(w));
        for (int i = 1; i < kVectors; ++i) {
          acc[h][u] = dot_i16(acc[h][u], _mm512_loadu_si512(phase + 32 * i),
                              _mm512_loadu_si512(w + i * 64));
        }
      }
    }
    for (int h = 0; h < kHeads; ++h) {
      quads[h][quad] = sum_lanes(acc[h][0], acc[h][1], acc[h][2], acc[h][3]);
    }
  }
  for (int h = 0; h < kHeads; ++h) out[h] = _mm512_cvtepi32_ps(sum_quads(quads[h]));
}

// kLanes int16 as f32.
static inline F load_i16_as_f32(const int16_t* p) {
  const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(raw));
}

// out[u] = the sum of a[u]'s lanes, u < 4.
static inline void sum4(const F* a, float* out) {
  const F t = add(_mm512_unpacklo_ps(a[0], a[1]), _mm512_unpackhi_ps(a[0], a[1]));
  const F u = add(_mm512_unpacklo_ps(a[2], a[3]), _mm512_unpackhi_ps(a[2], a[3]));
  const F v = add(_mm512_shuffle_ps(t, u, 0x44), _mm512_shuffle_ps(t, u, 0xee));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

// out[h * stride + u] = <q_h, k_u> for four rows of keys.
template <int kHeads>
static inline void dense_dots(const float* q, const bf16* const* k, int head_dim, float* out,
                              int stride) {
  F acc[kHeads][4];
  for (int h = 0; h < kHeads; ++h) {
    for (int u = 0; u < 4; ++u) acc[h][u] = zero();
  }
  for (int d = 0; d < head_dim; d += 16) {
    F row[4];
    for (int u = 0; u < 4; ++u) row[u] = load_bf16(k[u] + d);
    for (int h = 0; h < kHeads; ++h) {
      const F x = load(q + h * head_dim + d);
      for (int u = 0; u < 4; ++u) acc[h][u] = fma(x, row[u], acc[h][u]);
    }
  }
  for (int h = 0; h < kHeads; ++h) sum4(acc[h], out + h * stride);
}

}  // namespace akv::kernels::attention::AKV_SIMD
