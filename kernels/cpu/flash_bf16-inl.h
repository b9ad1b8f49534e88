// Operands of prefill attention as pairs of bf16 (flash-inl.h), for files compiled with
// AVX512_BF16. Included after flash-inl.h, inside an unnamed namespace.

inline __m512i to_bf16_pairs(__m512 low, __m512 high) {
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

struct Bf16Operands {
  using Cell = uint32_t;
  static constexpr int kPack = 2;
  static constexpr int kTurnedKeys = 16;

  // n floats, a multiple of 2, side by side.
  static void from_floats(const float* x, int n, Cell* out) {
    int i = 0;
    for (; i + 32 <= n; i += 32) {
      _mm512_storeu_si512(out + i / 2,
                          to_bf16_pairs(_mm512_loadu_ps(x + i), _mm512_loadu_ps(x + i + 16)));
    }
    if (i < n) to_bf16(x + i, n - i, reinterpret_cast<uint16_t*>(out) + i);
  }

  // rows [16][row_stride] -> to[cell * stride + key] for the first `cells` cells; row_stride a
  // multiple of 16.
  static void turn(const Cell* rows, int64_t row_stride, int64_t cells, Cell* to, int64_t stride) {
    for (int64_t cell = 0; cell < cells; cell += 16) {
      __m512i r[16], s[16];
      for (int i = 0; i < 16; ++i) r[i] = _mm512_load_si512(rows + i * row_stride + cell);
      for (int i = 0; i < 16; i += 2) {
        s[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        s[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
      }
      for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(s[i], s[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(s[i], s[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(s[i + 1], s[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(s[i + 1], s[i + 3]);
      }
      // r[4 a + c], lane b: cell 4 b + c of keys 4 a ..; now lanes become keys.
      for (int c = 0; c < 4; ++c) {
        const __m512i low0 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x44);
        const __m512i high0 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xee);
        const __m512i low1 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x44);
        const __m512i high1 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xee);
        const __m512i out[4] = {
            _mm512_shuffle_i32x4(low0, low1, 0x88), _mm512_shuffle_i32x4(low0, low1, 0xdd),
            _mm512_shuffle_i32x4(high0, high1, 0x88), _mm512_shuffle_i32x4(high0, high1, 0xdd)};
        for (int b = 0; b < 4 && cell + 4 * b + c < cells; ++b) {
          _mm512_storeu_si512(to + (cell + 4 * b + c) * stride, out[b]);
        }
      }
    }
  }

  // Two rows of values, dimension by dimension: the first in the low halves.
  static void pack_values(const float* const rows[kPack], int n, Cell* out) {
    int i = 0;
    for (; i + 16 <= n; i += 16) {
      const __m256i low = (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(rows[0] + i));
      const __m256i high = (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(rows[1] + i));
      const __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16);
      _mm512_storeu_si512(out + i, _mm512_or_si512(wide, _mm512_cvtepu16_epi32(low)));
    }
    for (; i < n; ++i) {
      uint16_t low, high;
      to_bf16(rows[0] + i, 1, &low);
      to_bf16(rows[1] + i, 1, &high);
      out[i] = low | static_cast<uint32_t>(high) << 16;
    }
  }
};
