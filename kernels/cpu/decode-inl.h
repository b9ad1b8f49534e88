// Expansion of stored blocks to f32 registers, 32 weights (a "unit") at a time, for the set that
// the including file is compiled for: AVX-512, AVX2, or plain C++. No include guard on purpose: it
// is included once per instruction set, inside an unnamed namespace.
//
// Each format is a struct with
//   kUnits        units per stored block (1, or 8 for the K formats)
//   kScales       floats per unit that prepare() writes
//   kBytes        bytes per stored block
//   prepare(blocks, n, scales)   scales of n stored blocks, [n * kUnits][kScales]
//   decode(block, unit, scales, Unit& w)   the 32 weights
// so that half-precision scales are converted many at a time, off the vector ports that the
// products need. Products of a scale and a code are exact in f32 (11 + 6 + 6 bits at most, but for
// Q6_K's last one), hence fused and separate multiply-adds give the same bits as ggml's.

#if defined(__AVX512BW__)
#define AKV_DECODE_AVX512 1
#elif defined(__AVX2__)
#define AKV_DECODE_AVX2 1
#endif

inline float half_to_float(uint16_t h) {
#if defined(__F16C__)
  return _cvtsh_ss(h);
#else
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = h >> 10 & 0x1fu;
  const uint32_t mantissa = h & 0x3ffu;
  uint32_t bits;
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 5.9604644775390625e-8f;  // 2^-24
    __builtin_memcpy(&bits, &value, 4);
    bits |= sign;
  } else if (exponent == 31) {
    bits = sign | 0x7f800000u | mantissa << 13;
  } else {
    bits = sign | (exponent + 112) << 23 | mantissa << 13;
  }
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
#endif
}

inline float load_half(const uint8_t* p) {
  uint16_t h;
  __builtin_memcpy(&h, p, 2);
  return half_to_float(h);
}

inline uint32_t load_u32(const uint8_t* p) {
  uint32_t u;
  __builtin_memcpy(&u, p, 4);
  return u;
}

// 32 weights in registers: lanes in order of the columns.
struct Unit {
#if defined(AKV_DECODE_AVX512)
  static constexpr int kVectors = 2;
  static constexpr int kLanes = 16;
  __m512 v[2];
#elif defined(AKV_DECODE_AVX2)
  static constexpr int kVectors = 4;
  static constexpr int kLanes = 8;
  __m256 v[4];
#else
  static constexpr int kVectors = 32;
  static constexpr int kLanes = 1;
  float v[32];
#endif
};

#if defined(AKV_DECODE_AVX512)

inline __m512i widen(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline __m512 iota() {
  return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
// scale * code + offset for all 16 codes: a look-up by code then costs one permute.
inline __m512 table16(float scale, float offset) {
  return _mm512_fmadd_ps(iota(), _mm512_set1_ps(scale), _mm512_set1_ps(offset));
}
// Codes in the low nibbles of the first 16 weights and the high nibbles of the second 16.
inline void nibble_halves(const uint8_t* qs, float scale, float offset, Unit& w) {
  const __m512 table = table16(scale, offset);
  const __m512i bytes = widen(qs);
  w.v[0] = _mm512_permutexvar_ps(bytes, table);  // reads the low 4 bits of each lane only
  w.v[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), table);
}
inline __m512 five_bits(__m512i code, uint32_t high_bits, __m512 low, __m512 high) {
  const __m512i bit = _mm512_maskz_set1_epi32(static_cast<__mmask16>(high_bits), 16);
  const __m512i index = _mm512_or_epi32(_mm512_and_epi32(code, _mm512_set1_epi32(15)), bit);
  return _mm512_permutex2var_ps(low, index, high);
}
inline void nibble_halves5(const uint8_t* qs, uint32_t qh, float scale, float offset, Unit& w) {
  const __m512 low = table16(scale, offset);
  const __m512 high = _mm512_fmadd_ps(_mm512_add_ps(iota(), _mm512_set1_ps(16.0f)),
                                      _mm512_set1_ps(scale), _mm512_set1_ps(offset));
  const __m512i bytes = widen(qs);
  w.v[0] = five_bits(bytes, qh & 0xffffu, low, high);
  w.v[1] = five_bits(_mm512_srli_epi32(bytes, 4), qh >> 16, low, high);
}
// Codes given as integers, each vector with its own scale.
inline void from_codes(__m512i c0, __m512i c1, float s0, float s1, float offset, Unit& w) {
  const __m512 o = _mm512_set1_ps(offset);
  w.v[0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(c0), _mm512_set1_ps(s0), o);
  w.v[1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(c1), _mm512_set1_ps(s1), o);
}
// 32 bytes -> 32-bit lanes of ((byte >> shift) & mask).
inline void unpack_bytes(const uint8_t* p, int shift, int mask, __m512i c[2]) {
  const __m128i count = _mm_cvtsi32_si128(shift);
  const __m512i m = _mm512_set1_epi32(mask);
  c[0] = _mm512_and_epi32(_mm512_srl_epi32(widen(p), count), m);
  c[1] = _mm512_and_epi32(_mm512_srl_epi32(widen(p + 16), count), m);
}
struct Codes {
  __m512i v[2];
};
inline void codes_bytes(const uint8_t* p, int shift, int mask, Codes& c) {
  unpack_bytes(p, shift, mask, c.v);
}
inline void codes_or(Codes& c, const Codes& high, int shift) {
  const __m128i count = _mm_cvtsi32_si128(shift);
  for (int i = 0; i < 2; ++i) c.v[i] = _mm512_or_epi32(c.v[i], _mm512_sll_epi32(high.v[i], count));
}
inline void codes_sub(Codes& c, int x) {
  for (auto& v : c.v) v = _mm512_sub_epi32(v, _mm512_set1_epi32(x));
}
inline void codes_to_unit(const Codes& c, float s0, float s1, float offset, Unit& w) {
  from_codes(c.v[0], c.v[1], s0, s1, offset, w);
}
inline void signed_bytes(const uint8_t* p, float scale, Unit& w) {
  for (int i = 0; i < 2; ++i) {
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * i));
    w.v[i] = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b)), _mm512_set1_ps(scale));
  }
}

#elif defined(AKV_DECODE_AVX2)

inline __m256i widen(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
inline __m256 scale_codes(__m256i codes, __m256 scale, __m256 offset) {
  return _mm256_fmadd_ps(_mm256_cvtepi32_ps(codes), scale, offset);
}
inline void nibble_halves(const uint8_t* qs, float scale, float offset, Unit& w) {
  const __m256 s = _mm256_set1_ps(scale), o = _mm256_set1_ps(offset);
  for (int i = 0; i < 2; ++i) {
    const __m256i bytes = widen(qs + 8 * i);
    w.v[i] = scale_codes(_mm256_and_si256(bytes, _mm256_set1_epi32(15)), s, o);
    w.v[i + 2] = scale_codes(_mm256_srli_epi32(bytes, 4), s, o);
  }
}
// 16 where the lane's bit of `bits` (bit 0 for lane 0) is set.
inline __m256i bit_16(uint32_t bits) {
  const __m256i lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i all = _mm256_set1_epi32(static_cast<int>(bits));
  const __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(all, lanes), lanes);
  return _mm256_and_si256(set, _mm256_set1_epi32(16));
}
inline void nibble_halves5(const uint8_t* qs, uint32_t qh, float scale, float offset, Unit& w) {
  const __m256 s = _mm256_set1_ps(scale), o = _mm256_set1_ps(offset);
  for (int i = 0; i < 2; ++i) {
    const __m256i bytes = widen(qs + 8 * i);
    const __m256i low = _mm256_and_si256(bytes, _mm256_set1_epi32(15));
    const __m256i high = _mm256_srli_epi32(bytes, 4);
    w.v[i] = scale_codes(_mm256_or_si256(low, bit_16(qh >> (8 * i))), s, o);
    w.v[i + 2] = scale_codes(_mm256_or_si256(high, bit_16(qh >> (16 + 8 * i))), s, o);
  }
}
struct Codes {
  __m256i v[4];
};
inline void codes_bytes(const uint8_t* p, int shift, int mask, Codes& c) {
  const __m128i count = _mm_cvtsi32_si128(shift);
  for (int i = 0; i < 4; ++i) {
    c.v[i] = _mm256_and_si256(_mm256_srl_epi32(widen(p + 8 * i), count), _mm256_set1_epi32(mask));
  }
}
inline void codes_or(Codes& c, const Codes& high, int shift) {
  const __m128i count = _mm_cvtsi32_si128(shift);
  for (int i = 0; i < 4; ++i) {
    c.v[i] = _mm256_or_si256(c.v[i], _mm256_sll_epi32(high.v[i], count));
  }
}
inline void codes_sub(Codes& c, int x) {
  for (auto& v : c.v) v = _mm256_sub_epi32(v, _mm256_set1_epi32(x));
}
inline void codes_to_unit(const Codes& c, float s0, float s1, float offset, Unit& w) {
  const __m256 o = _mm256_set1_ps(offset);
  for (int i = 0; i < 4; ++i) {
    w.v[i] = scale_codes(c.v[i], _mm256_set1_ps(i < 2 ? s0 : s1), o);
  }
}
inline void signed_bytes(const uint8_t* p, float scale, Unit& w) {
  for (int i = 0; i < 4; ++i) {
    const __m128i b = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8 * i));
    w.v[i] = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)), _mm256_set1_ps(scale));
  }
}

#else

inline void nibble_halves(const uint8_t* qs, float scale, float offset, Unit& w) {
  for (int j = 0; j < 16; ++j) {
    w.v[j] = static_cast<float>(qs[j] & 15) * scale + offset;
    w.v[j + 16] = static_cast<float>(qs[j] >> 4) * scale + offset;
  }
}
inline void nibble_halves5(const uint8_t* qs, uint32_t qh, float scale, float offset, Unit& w) {
  for (int j = 0; j < 16; ++j) {
    const uint32_t low = (qs[j] & 15u) | (qh >> j & 1u) << 4;
    const uint32_t high = (qs[j] >> 4) | (qh >> (j + 16) & 1u) << 4;
    w.v[j] = static_cast<float>(low) * scale + offset;
    w.v[j + 16] = static_cast<float>(high) * scale + offset;
  }
}
struct Codes {
  int v[32];
};
inline void codes_bytes(const uint8_t* p, int shift, int mask, Codes& c) {
  for (int j = 0; j < 32; ++j) c.v[j] = p[j] >> shift & mask;
}
inline void codes_or(Codes& c, const Codes& high, int shift) {
  for (int j = 0; j < 32; ++j) c.v[j] |= high.v[j] << shift;
}
inline void codes_sub(Codes& c, int x) {
  for (int& v : c.v) v -= x;
}
inline void codes_to_unit(const Codes& c, float s0, float s1, float offset, Unit& w) {
  for (int j = 0; j < 32; ++j) w.v[j] = static_cast<float>(c.v[j]) * (j < 16 ? s0 : s1) + offset;
}
inline void signed_bytes(const uint8_t* p, float scale, Unit& w) {
  for (int j = 0; j < 32; ++j) {
    w.v[j] = static_cast<float>(static_cast<int8_t>(p[j])) * scale;
  }
}

#endif

// Pairs of halves at the head of each block: converted four blocks at a time where F16C is there.
inline void prepare_pairs(const uint8_t* blocks, int64_t n, int64_t bytes, float* scales) {
  int64_t b = 0;
#if defined(__F16C__)
#pragma GCC unroll 1
  for (; b + 4 <= n; b += 4) {
    uint32_t pairs[4];
    for (int i = 0; i < 4; ++i) pairs[i] = load_u32(blocks + (b + i) * bytes);
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(pairs));
    _mm256_storeu_ps(scales + 2 * b, _mm256_cvtph_ps(halves));
  }
#endif
#pragma GCC unroll 1
  for (; b < n; ++b) {
    scales[2 * b] = load_half(blocks + b * bytes);
    scales[2 * b + 1] = load_half(blocks + b * bytes + 2);
  }
}

inline void prepare_singles(const uint8_t* blocks, int64_t n, int64_t bytes, float* scales) {
  int64_t b = 0;
#if defined(__F16C__)
#pragma GCC unroll 1
  for (; b + 4 <= n; b += 4) {
    uint16_t halves[8] = {};
    for (int i = 0; i < 4; ++i) __builtin_memcpy(halves + i, blocks + (b + i) * bytes, 2);
    const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(halves));
    _mm_storeu_ps(scales + b, _mm_cvtph_ps(packed));
  }
#endif
#pragma GCC unroll 1
  for (; b < n; ++b) scales[b] = load_half(blocks + b * bytes);
}

struct FormatQ4_0 {  // half d; nibbles[16]: d * (q - 8)
  static constexpr int kUnits = 1, kScales = 1, kBytes = 18;
  static void prepare(const uint8_t* blocks, int64_t n, float* s) {
    prepare_singles(blocks, n, kBytes, s);
  }
  static void decode(const uint8_t* block, int, const float* s, Unit& w) {
    nibble_halves(block + 2, s[0], -8.0f * s[0], w);
  }
};

struct FormatQ4_1 {  // half d, m; nibbles[16]: d * q + m
  static constexpr int kUnits = 1, kScales = 2, kBytes = 20;
  static void prepare(const uint8_t* blocks, int64_t n, float* s) {
    prepare_pairs(blocks, n, kBytes, s);
  }
  static void decode(const uint8_t* block, int, const float* s, Unit& w) {
    nibble_halves(block + 4, s[0], s[1], w);
  }
};

struct FormatQ5_0 {  // half d; u32 fifth bits; nibbles[16]: d * (q - 16)
  static constexpr int kUnits = 1, kScales = 1, kBytes = 22;
  static void prepare(const uint8_t* blocks, int64_t n, float* s) {
    prepare_singles(blocks, n, kBytes, s);
  }
  static void decode(const uint8_t* block, int, const float* s, Unit& w) {
    nibble_halves5(block + 6, load_u32(block + 2), s[0], -16.0f * s[0], w);
  }
};

struct FormatQ5_1 {  // half d, m; u32 fifth bits; nibbles[16]: d * q + m
  static constexpr int kUnits = 1, kScales = 2, kBytes = 24;
  static void prepare(const uint8_t* blocks, int64_t n, float* s) {
    prepare_pairs(blocks, n, kBytes, s);
  }
  static void decode(const uint8_t* block, int, const float* s, Unit& w) {
    nibble_halves5(block + 8, load_u32(block + 4), s[0], s[1], w);
  }
};

struct FormatQ8_0 {  // half d; int8 q[32]: d * q
  static constexpr int kUnits = 1, kScales = 1, kBytes = 34;
  static void prepare(const uint8_t* blocks, int64_t n, float* s) {
    prepare_singles(blocks, n, kBytes, s);
  }
  static void decode(const uint8_t* block, int, const float* s, Unit& w) {
    signed_bytes(block + 2, s[0], w);
  }
};

// Q4_K and Q5_K: half d, dmin; 8 pairs of 6-bit (scale, min) in 12 bytes. Per unit of 32 the
// weight is (d * scale) * q - dmin * min.
inline void prepare_k(const uint8_t* blocks, int64_t n, int64_t bytes, float* s) {
#pragma GCC unroll 1
  for (int64_t b = 0; b < n; ++b) {
    const uint8_t* block = blocks + b * bytes;
    const float d = load_half(block), dmin = load_half(block + 2);
    const uint8_t* p = block + 4;
    for (int u = 0; u < 8; ++u) {
      const int scale = u < 4 ? p[u] & 63 : (p[u + 4] & 15) | (p[u - 4] >> 6) << 4;
      const int min = u < 4 ? p[u + 4] & 63 : (p[u + 4] >> 4) | (p[u] >> 6) << 4;
      s[(b * 8 + u) * 2] = d * static_cast<float>(scale);
      s[(b * 8 + u) * 2 + 1] = -(dmin * static_cast<float>(min));
    }
  }
}

struct FormatQ4_K {  // ..., nibbles[128]: 32 bytes hold units 2i (low) and 2i + 1 (high)
  static constexpr int kUnits = 8, kScales = 2, kBytes = 144;
  static void prepare(const uint8_t* blocks, int64_t n, float* s) {
    prepare_k(blocks, n, kBytes, s);
  }
  static void decode(const uint8_t* block, int unit, const float* s, Unit& w) {
    Codes codes;
    codes_bytes(block + 16 + unit / 2 * 32, unit % 2 * 4, 15, codes);
    codes_to_unit(codes, s[0], s[0], s[1], w);
  }
};

struct FormatQ5_K {  // ..., fifth bits[32] (bit u of byte j: unit u, weight j), nibbles[128]
  static constexpr int kUnits = 8, kScales = 2, kBytes = 176;
  static void prepare(const uint8_t* blocks, int64_t n, float* s) {
    prepare_k(blocks, n, kBytes, s);
  }
  static void decode(const uint8_t* block, int unit, const float* s, Unit& w) {
    Codes codes, high;
    codes_bytes(block + 48 + unit / 2 * 32, unit % 2 * 4, 15, codes);
    codes_bytes(block + 16, unit, 1, high);
    codes_or(codes, high, 4);
    codes_to_unit(codes, s[0], s[0], s[1], w);
  }
};

struct FormatQ6_K {  // low nibbles[128], high pairs[64], int8 scales[16], half d
  static constexpr int kUnits = 8, kScales = 2, kBytes = 210;
  static void prepare(const uint8_t* blocks, int64_t n, float* s) {
    for (int64_t b = 0; b < n; ++b) {
      const uint8_t* block = blocks + b * kBytes;
      const float d = load_half(block + 208);
      for (int i = 0; i < 16; ++i) {
        s[b * 16 + i] = d * static_cast<float>(static_cast<int8_t>(block[192 + i]));
      }
    }
  }
  static void decode(const uint8_t* block, int unit, const float* s, Unit& w) {
    const int side = unit / 4, r = unit % 4;  // 128 weights per side, four units each
    Codes codes, high;
    codes_bytes(block + side * 64 + r % 2 * 32, r / 2 * 4, 15, codes);
    codes_bytes(block + 128 + side * 32, 2 * r, 3, high);
    codes_or(codes, high, 4);
    codes_sub(codes, 32);
    codes_to_unit(codes, s[0], s[1], 0.0f, w);
  }
};

// Plain formats, 32 elements as one block.
struct FormatF32 {
  static constexpr int kUnits = 1, kScales = 0, kBytes = 128;
  static void prepare(const uint8_t*, int64_t, float*) {}
  static void decode(const uint8_t* block, int, const float*, Unit& w) {
    for (int i = 0; i < Unit::kVectors; ++i) {
      __builtin_memcpy(&w.v[i], block + 4 * Unit::kLanes * i, sizeof(w.v[i]));
    }
  }
};

struct FormatF16 {
  static constexpr int kUnits = 1, kScales = 0, kBytes = 64;
  static void prepare(const uint8_t*, int64_t, float*) {}
  static void decode(const uint8_t* block, int, const float*, Unit& w) {
    for (int i = 0; i < Unit::kVectors; ++i) {
      const uint8_t* p = block + 2 * Unit::kLanes * i;
#if defined(AKV_DECODE_AVX512)
      w.v[i] = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(AKV_DECODE_AVX2)
      w.v[i] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
      w.v[i] = load_half(p);
#endif
    }
  }
};

struct FormatBF16 {
  static constexpr int kUnits = 1, kScales = 0, kBytes = 64;
  static void prepare(const uint8_t*, int64_t, float*) {}
  static void decode(const uint8_t* block, int, const float*, Unit& w) {
    for (int i = 0; i < Unit::kVectors; ++i) {
      const uint8_t* p = block + 2 * Unit::kLanes * i;
#if defined(AKV_DECODE_AVX512)
      const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
      w.v[i] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16));
#elif defined(AKV_DECODE_AVX2)
      const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
      w.v[i] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(b), 16));
#else
      uint32_t bits = static_cast<uint32_t>(p[0] | p[1] << 8) << 16;
      __builtin_memcpy(&w.v[i], &bits, 4);
#endif
    }
  }
};
