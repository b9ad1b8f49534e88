// Operands of prefill attention as pairs of bf16 (flash-inl.h), for files compiled with
// AVX512_BF16. Included after flash-inl.h, inside an unnamed namespace.

inline __m512i to_bf16_pairs(__m512 low, __m512 high) {
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

struct Bf16Operands {
  using Cell = uint32_t;
  static constexpr int kPack = 2;

  // n floats, a multiple of 2, side by side.
  static void from_floats(const float* x, int n, Cell* out) {
    int i = 0;
    for (; i + 32 <= n; i += 32) {
      _mm512_storeu_si512(out + i / 2,
                          to_bf16_pairs(_mm512_loadu_ps(x + i), _mm512_loadu_ps(x + i + 16)));
    }
    if (i < n) to_bf16(x + i, n - i, reinterpret_cast<uint16_t*>(out) + i);
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
