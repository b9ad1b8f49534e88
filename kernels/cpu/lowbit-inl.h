// Product of a few activation rows with rows of stored blocks; see decode-inl.h for how it is
// included. The order of a row's sum is: units of 32 columns in order, the unit's vectors in order,
// one accumulator per output (kChains of them in the portable form), lanes summed at the end. It is
// the same for every number of activation rows (M) and weight rows (R) that share a pass.

#if defined(AKV_DECODE_AVX512)
using Acc = __m512;
constexpr int kChains = 1;
inline Acc acc_zero() { return _mm512_setzero_ps(); }
inline void acc_add(Acc& a, const __m512& w, const float* x) {
  a = _mm512_fmadd_ps(w, _mm512_load_ps(x), a);
}
inline float acc_sum(const Acc* a) { return _mm512_reduce_add_ps(*a); }
// Weight rows that share the loads of x: what 32 registers hold.
constexpr int rows_for(int m) { return m <= 4 ? 4 : 2; }
#elif defined(AKV_DECODE_AVX2)
using Acc = __m256;
constexpr int kChains = 1;
inline Acc acc_zero() { return _mm256_setzero_ps(); }
inline void acc_add(Acc& a, const __m256& w, const float* x) {
  a = _mm256_fmadd_ps(w, _mm256_load_ps(x), a);
}
inline float acc_sum(const Acc* a) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(*a), _mm256_extractf128_ps(*a, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
constexpr int rows_for(int m) { return m == 1 ? 4 : m <= 4 ? 2 : 1; }
#else
using Acc = float;
constexpr int kChains = 32;
inline Acc acc_zero() { return 0.0f; }
inline void acc_add(Acc& a, float w, const float* x) { a += w * *x; }
inline float acc_sum(const Acc* a) {
  float sum = 0.0f;
  for (int i = 0; i < kChains; ++i) sum += a[i];
  return sum;
}
constexpr int rows_for(int) { return 1; }
#endif

constexpr int kUnitCols = kLowbitCols;
constexpr int kChunkUnits = 64;  // scales of this many units per row are held ready

// Whether R units of weights, the sums and a pair of temporaries fit the registers: then x is
// loaded once for all R rows, else row by row.
template <int R, int M>
constexpr bool fits_registers() {
#if defined(AKV_DECODE_AVX512)
  return R * Unit::kVectors + R * M + 4 <= 32;
#elif defined(AKV_DECODE_AVX2)
  return R * Unit::kVectors + R * M + 4 <= 16;
#else
  return false;
#endif
}

template <class F, int R, int M>
inline void add_unit(const uint8_t* const block[R], int unit, const float* const scales[R],
                     const float* x, Acc acc[R][M][kChains]) {
  if constexpr (fits_registers<R, M>()) {
    Unit w[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) F::decode(block[r], unit, scales[r], w[r]);
#pragma GCC unroll 16
    for (int v = 0; v < Unit::kVectors; ++v) {
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          acc_add(acc[r][m][0], w[r].v[v], x + m * kUnitCols + v * Unit::kLanes);
        }
      }
    }
  } else {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      Unit w;
      F::decode(block[r], unit, scales[r], w);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
        for (int v = 0; v < Unit::kVectors; ++v) {
          acc_add(acc[r][m][v % kChains], w.v[v], x + m * kUnitCols + v * Unit::kLanes);
        }
      }
    }
  }
}

// The last cols % 32 columns of a plain format; x is padded there already.
template <class F, int R, int M>
inline void add_tail(const uint8_t* const block[R], int64_t left, const float* x,
                     Acc acc[R][M][kChains]) {
  alignas(64) uint8_t padded[R][128] = {};
  const uint8_t* whole[R];
  const float* scales[R] = {};
  for (int r = 0; r < R; ++r) {
    __builtin_memcpy(padded[r], block[r], static_cast<size_t>(left * F::kBytes / kUnitCols));
    whole[r] = padded[r];
  }
  add_unit<F, R, M>(whole, 0, scales, x, acc);
}

template <class F, int R, int M>
void lowbit_rows(const LowbitTile& t, int64_t row) {
  constexpr int kChunkBlocks = kChunkUnits / F::kUnits;
  alignas(64) float ready[R][kChunkUnits * (F::kScales > 0 ? F::kScales : 1)];
  Acc acc[R][M][kChains];
#pragma GCC unroll 16
  for (auto& of_row : acc) {
#pragma GCC unroll 16
    for (auto& of_x : of_row) {
#pragma GCC unroll 4
      for (Acc& a : of_x) a = acc_zero();
    }
  }
  const int64_t blocks = t.cols / (kUnitCols * F::kUnits);
  const uint8_t* block[R];
  for (int r = 0; r < R; ++r) block[r] = t.w + (row + r) * t.row_stride;
  const float* x = t.x;
  // The next group of rows follows in memory; it is fetched evenly while this one is computed.
  constexpr int kLines = (R * F::kBytes + 63) / 64;
  const uint8_t* next = block[0] + R * t.row_stride;
  for (int64_t b0 = 0; b0 < blocks; b0 += kChunkBlocks) {
    const int64_t n = blocks - b0 < kChunkBlocks ? blocks - b0 : kChunkBlocks;
    const float* scales[R];
    for (int r = 0; r < R; ++r) {
      F::prepare(block[r], n, ready[r]);
      scales[r] = ready[r];
    }
    for (int64_t b = 0; b < n; ++b) {
#pragma GCC unroll 1
      for (int unit = 0; unit < F::kUnits; ++unit) {
        add_unit<F, R, M>(block, unit, scales, x, acc);
        x += M * kUnitCols;
        for (int r = 0; r < R; ++r) scales[r] += F::kScales;
      }
      for (int r = 0; r < R; ++r) block[r] += F::kBytes;
#pragma GCC unroll 16
      for (int line = 0; line < kLines; ++line) __builtin_prefetch(next + line * 64);
      next += R * F::kBytes;
    }
  }
  if constexpr (F::kScales == 0) {
    const int64_t left = t.cols % kUnitCols;
    if (left != 0) add_tail<F, R, M>(block, left, x, acc);
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
    if (m >= t.m) break;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) t.y[m * t.y_stride + row + r] = acc_sum(acc[r][m]);
  }
}

// All rows of the tile for M activation rows: groups of rows that share the loads of x, then single
// rows.
template <class F, int M>
void lowbit_all_rows(const LowbitTile& t) {
  constexpr int kShared = rows_for(M);
  int64_t row = 0;
  for (; row + kShared <= t.rows; row += kShared) lowbit_rows<F, kShared, M>(t, row);
  if constexpr (kShared > 1) {
    for (; row < t.rows; ++row) lowbit_rows<F, 1, M>(t, row);
  }
}

template <class F>
void lowbit_tile_of(const LowbitTile& t) {
  switch (lowbit_padded(t.m)) {
    case 1:
      return lowbit_all_rows<F, 1>(t);
    case 2:
      return lowbit_all_rows<F, 2>(t);
    case 3:
      return lowbit_all_rows<F, 3>(t);
    case 4:
      return lowbit_all_rows<F, 4>(t);
    case 6:
      return lowbit_all_rows<F, 6>(t);
    case 8:
      return lowbit_all_rows<F, 8>(t);
    default:
      return;
  }
}

template <class F>
void dequantize_row_of(const uint8_t* row, int64_t cols, float* out) {
  constexpr int kChunkBlocks = kChunkUnits / F::kUnits;
  alignas(64) float ready[kChunkUnits * (F::kScales > 0 ? F::kScales : 1)];
  const int64_t blocks = cols / (kUnitCols * F::kUnits);
  for (int64_t b0 = 0; b0 < blocks; b0 += kChunkBlocks) {
    const int64_t n = blocks - b0 < kChunkBlocks ? blocks - b0 : kChunkBlocks;
    F::prepare(row, n, ready);
    const float* scales = ready;
    for (int64_t b = 0; b < n; ++b, row += F::kBytes) {
      for (int unit = 0; unit < F::kUnits; ++unit, scales += F::kScales, out += kUnitCols) {
        Unit w;
        F::decode(row, unit, scales, w);
        __builtin_memcpy(out, w.v, sizeof(w.v));
      }
    }
  }
  const int64_t left = cols % (kUnitCols * F::kUnits);
  if (F::kScales == 0 && left != 0) {
    uint8_t block[128] = {};
    __builtin_memcpy(block, row, static_cast<size_t>(left * F::kBytes / kUnitCols));
    Unit w;
    F::decode(block, 0, ready, w);
    __builtin_memcpy(out, w.v, static_cast<size_t>(left) * 4);
  }
}

// TensorType's numbers: types.h is not included here (see table.h).
template <class Fn>
inline void with_format(uint32_t type, Fn fn) {
  switch (type) {
    case 0:
      return fn(FormatF32{});
    case 1:
      return fn(FormatF16{});
    case 2:
      return fn(FormatQ4_0{});
    case 3:
      return fn(FormatQ4_1{});
    case 6:
      return fn(FormatQ5_0{});
    case 7:
      return fn(FormatQ5_1{});
    case 8:
      return fn(FormatQ8_0{});
    case 12:
      return fn(FormatQ4_K{});
    case 13:
      return fn(FormatQ5_K{});
    case 14:
      return fn(FormatQ6_K{});
    case 30:
      return fn(FormatBF16{});
    default:
      return;
  }
}

void lowbit_tile(const LowbitTile& t) {
  with_format(t.type, [&](auto format) { lowbit_tile_of<decltype(format)>(t); });
}

void dequantize_row(uint32_t type, const uint8_t* row, int64_t cols, float* out) {
  with_format(type, [&](auto format) { dequantize_row_of<decltype(format)>(row, cols, out); });
}
