// The source of every codec_simd_*.cc: compiled once per instruction set with AKV_LANES floats to a
// register (4, 8, 16). Uses the compilers' vector extension, so the three differ in flags only.
// Everything is in an anonymous namespace: nothing compiled for a newer CPU may be linked into the
// code of an older one.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/codec.h"
#include "kernels/cpu/codec_simd.h"
#include "kernels/window_attention.h"

namespace akv::kernels {
namespace {

constexpr int kLanes = AKV_LANES;
constexpr int kHalf = AKV_LANES / 2;
typedef float V __attribute__((vector_size(kLanes * 4)));
typedef int32_t VI __attribute__((vector_size(kLanes * 4)));
typedef uint32_t VU __attribute__((vector_size(kLanes * 4)));
typedef uint16_t VH __attribute__((vector_size(kLanes * 2)));
typedef float F __attribute__((vector_size(kHalf * 4)));   // half a register of floats
typedef double W __attribute__((vector_size(kHalf * 8)));  // the same, widened

template <class T, class P>
inline __attribute__((always_inline)) T load(const P* p) {
  T v;
  std::memcpy(&v, p, sizeof(T));
  return v;
}
template <class T, class P>
inline __attribute__((always_inline)) void store(P* p, T v) {
  std::memcpy(p, &v, sizeof(T));
}
inline __attribute__((always_inline)) V splat(float x) { return x - V{}; }
inline __attribute__((always_inline)) W splat_wide(double x) { return x - W{}; }
inline __attribute__((always_inline)) V max(V a, V b) { return a > b ? a : b; }
inline __attribute__((always_inline)) V abs(V a) {
  return reinterpret_cast<V>(reinterpret_cast<VI>(a) & 0x7fffffff);
}
inline __attribute__((always_inline)) W widen(F x) { return __builtin_convertvector(x, W); }

// Horizontal reductions, in a fixed tree order.
template <class Vec, class Scalar, class Op>
inline __attribute__((always_inline)) Scalar reduce(Vec v, Op op) {
  constexpr int n = sizeof(Vec) / sizeof(Scalar);
  Scalar x[n];
  std::memcpy(x, &v, sizeof(Vec));
#pragma GCC unroll 4
  for (int step = n / 2; step > 0; step /= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < step; ++i) x[i] = op(x[i], x[i + step]);
  }
  return x[0];
}
inline float sum(V v) {
  return reduce<V, float>(v, [](float a, float b) { return a + b; });
}
inline double sum_wide(W v) {
  return reduce<W, double>(v, [](double a, double b) { return a + b; });
}
inline float maximum(V v) {
  return reduce<V, float>(v, [](float a, float b) { return a > b ? a : b; });
}
inline int32_t sum_int(VI v) {
  return reduce<VI, int32_t>(v, [](int32_t a, int32_t b) { return a + b; });
}
inline int32_t minimum_int(VI v) {
  return reduce<VI, int32_t>(v, [](int32_t a, int32_t b) { return a < b ? a : b; });
}

// e^x for x <= 0 to about 1 ulp; 0 below -87.3, where the result would be denormal.
inline __attribute__((always_inline)) V exp_nonpositive(V x) {
  const V low = splat(-87.3f);
  const V in = max(x, low);
  const V magic = splat(12582912.0f);
  const V shifted = in * 1.44269504088896341f + magic;
  const V n = shifted - magic;
  const V r = (in - n * 0.693359375f) - n * -2.12194440e-4f;
  V p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const VI exponent = (reinterpret_cast<VI>(shifted) << 23) + 0x3f800000;
  const V scaled = p * reinterpret_cast<V>(exponent);
  return x < low ? V{} : scaled;
}

// ---- products

// R rows by C registers of columns, all of them in registers.
template <int R, int C>
inline __attribute__((always_inline)) void gemm_block(const float* a, int64_t a_row,
                                                      int64_t a_depth, const float* b, int64_t ldb,
                                                      int depth, float* c, int64_t ldc,
                                                      bool accumulate) {
  V acc[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < C; ++j) acc[r][j] = accumulate ? load<V>(c + r * ldc + j * kLanes) : V{};
  }
  for (int d = 0; d < depth; ++d) {
    V row[C];
#pragma GCC unroll 4
    for (int j = 0; j < C; ++j) row[j] = load<V>(b + d * ldb + j * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const V x = splat(a[r * a_row + d * a_depth]);
#pragma GCC unroll 4
      for (int j = 0; j < C; ++j) acc[r][j] += x * row[j];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < C; ++j) store(c + r * ldc + j * kLanes, acc[r][j]);
  }
}

template <int R, int C>
void gemm_columns(const float* a, int64_t a_row, int64_t a_depth, int rows, const float* b,
                  int64_t ldb, int depth, float* c, int64_t ldc, bool accumulate) {
  int r = 0;
  for (; r + R <= rows; r += R) {
    gemm_block<R, C>(a + r * a_row, a_row, a_depth, b, ldb, depth, c + r * ldc, ldc, accumulate);
  }
  for (; r < rows; ++r) {
    gemm_block<1, C>(a + r * a_row, a_row, a_depth, b, ldb, depth, c + r * ldc, ldc, accumulate);
  }
}

// Rows by register columns that fit the register file: 32 registers with AVX-512, else 16.
constexpr int kRows4 = kLanes == 16 ? 6 : 3;
constexpr int kRows3 = kLanes == 16 ? 8 : 4;
constexpr int kRows2 = kLanes == 16 ? 12 : 6;
constexpr int kRows1 = kLanes == 16 ? 14 : 8;

void gemm(const float* a, int64_t a_row, int64_t a_depth, int rows, const float* b, int64_t ldb,
          int cols, int depth, float* c, int64_t ldc, bool accumulate) {
  int left = cols / kLanes;
  const auto run = [&](auto kernel, int registers) {
    kernel(a, a_row, a_depth, rows, b, ldb, depth, c, ldc, accumulate);
    b += registers * kLanes;
    c += registers * kLanes;
    left -= registers;
  };
  while (left >= 6 || left == 3) run(gemm_columns<kRows3, 3>, 3);
  while (left >= 4) run(gemm_columns<kRows4, 4>, 4);
  while (left >= 2) run(gemm_columns<kRows2, 2>, 2);
  while (left >= 1) run(gemm_columns<kRows1, 1>, 1);
}

double dot(const float* a, const float* b, int dim) {
  W acc0{}, acc1{};
  for (int i = 0; i < dim; i += kLanes) {
    acc0 += widen(load<F>(a + i)) * widen(load<F>(b + i));
    acc1 += widen(load<F>(a + i + kHalf)) * widen(load<F>(b + i + kHalf));
  }
  return sum_wide(acc0 + acc1);
}

float residual(const float* x, const float* a, float gamma, int dim, float* r) {
  V acc{};
  for (int i = 0; i < dim; i += kLanes) {
    const V d = load<V>(x + i) - gamma * load<V>(a + i);
    if (r != nullptr) store(r + i, d);
    acc += d * d;
  }
  return sum(acc);
}

// ---- rows of tokens

void expand_rows(const bf16* src, int64_t stride, int rows, int dim, float* dst) {
  // Rows of one head lie a whole token apart, too sparse for the hardware to run ahead of.
  constexpr int kAhead = 16;
  for (int r = 0; r < rows; ++r) {
    const bf16* ahead = src + (r + kAhead < rows ? r + kAhead : rows - 1) * stride;
    for (int i = 0; i < dim; i += 32) __builtin_prefetch(ahead + i);
    for (int i = 0; i < dim; i += kLanes) {
      const VU wide = __builtin_convertvector(load<VH>(src + r * stride + i), VU) << 16;
      store(dst + r * dim + i, reinterpret_cast<V>(wide));
    }
  }
}

void rope_row_half(float* x, const float* cos, const float* sin, int half) {
  int j = 0;
  for (; j + kLanes <= half; j += kLanes) {
    const V a = load<V>(x + j), b = load<V>(x + half + j);
    const V c = load<V>(cos + j), s = load<V>(sin + j);
    store(x + j, a * c - b * s);
    store(x + half + j, a * s + b * c);
  }
  for (; j < half; ++j) {
    const float a = x[j], b = x[half + j];
    x[j] = a * cos[j] - b * sin[j];
    x[half + j] = a * sin[j] + b * cos[j];
  }
}

void rope_row_interleaved(float* x, const float* cos, const float* sin, int half) {
  for (int j = 0; j < half; ++j) {
    const float a = x[2 * j], b = x[2 * j + 1];
    x[2 * j] = a * cos[j] - b * sin[j];
    x[2 * j + 1] = a * sin[j] + b * cos[j];
  }
}

void rope_rows(float* x, int rows, int dim, const float* cos, int half, bool interleaved) {
  for (int r = 0; r < rows; ++r) {
    const float* c = cos + static_cast<int64_t>(r) * 2 * half;
    if (interleaved) {
      rope_row_interleaved(x + static_cast<int64_t>(r) * dim, c, c + half, half);
    } else {
      rope_row_half(x + static_cast<int64_t>(r) * dim, c, c + half, half);
    }
  }
}

void softmax_rows(float* logits, int rows, int lanes, float* max_out, float* sum_out,
                  float* scale) {
  for (int w = 0; w < lanes; w += kLanes) {
    const V old = load<V>(max_out + w);
    V top = old;
    for (int r = 0; r < rows; ++r) top = max(top, load<V>(logits + r * lanes + w));
    const V factor = exp_nonpositive(old - top);
    V total = load<V>(sum_out + w) * factor;
    for (int r = 0; r < rows; ++r) {
      float* p = logits + r * lanes + w;
      const V e = exp_nonpositive(load<V>(p) - top);
      store(p, e);
      total += e;
    }
    store(max_out + w, top);
    store(sum_out + w, total);
    store(scale + w, factor);
  }
}

void mean_rows(const float* alpha, int rows, int lanes, const float* factor, float inv,
               float* mean) {
  for (int r = 0; r < rows; ++r) {
    V acc{};
    for (int w = 0; w < lanes; w += kLanes) {
      acc += load<V>(alpha + static_cast<int64_t>(r) * lanes + w) * load<V>(factor + w);
    }
    mean[r] = sum(acc) * inv;
  }
}

void argmax_rows(const float* c, int rows, int cols, const float* inv_norm, float slack, int* first,
                 int* close, float* best) {
  VI lane{};
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  for (int r = 0; r < rows; ++r) {
    const float* row = c + static_cast<int64_t>(r) * cols;
    V top = splat(-1.0f);
    for (int j = 0; j < cols; j += kLanes) {
      const V v = abs(load<V>(row + j)) * load<V>(inv_norm + j);
      top = v > top ? v : top;  // false for NaN
    }
    const float value = maximum(top);
    const V cut = splat(value - value * slack);
    VI lowest = (VI{} + INT32_MAX), count{};
    for (int j = 0; j < cols; j += kLanes) {
      const V v = abs(load<V>(row + j)) * load<V>(inv_norm + j);
      const VI in = v >= cut;
      const VI index = lane + j;
      count -= in;
      lowest = (in & (index < lowest)) ? index : lowest;
    }
    best[r] = value;
    first[r] = value < 0 ? -1 : minimum_int(lowest);
    close[r] = value < 0 ? 0 : sum_int(count);
  }
}

// ---- utilities

// One strip of kLanes observation queries: the mean of alpha over `pool` positions for every row,
// by sums within blocks of `pool` rows (prefix and suffix, no subtraction: weights span many
// magnitudes). in, pre, suf: [rows + pool - 1][kLanes].
void pooled_strip(const UtilityRows& u, int w, float* in, float* pre, float* suf) {
  const int n = u.rows + u.pool - 1;
  const int64_t start = u.first - u.pool / 2;
  // Prefix sums start anew every `pool` rows, suffix sums end there.
  V run{};
  for (int i = 0, phase = 0; i < n; ++i) {
    const int64_t t = start + i;
    const bool inside = t >= 0 && t < u.prefix;
    const float* row = u.alpha + t * u.lanes + w;
    if (t + 8 < u.prefix && t >= 0) __builtin_prefetch(row + 8 * u.lanes);
    const V a = inside ? load<V>(row) * load<V>(u.factor + t / kCodecChunk * u.lanes + w) : V{};
    run = phase == 0 ? a : run + a;
    store(in + i * kLanes, a);
    store(pre + i * kLanes, run);
    if (++phase == u.pool) phase = 0;
  }
  run = V{};
  for (int i = n - 1, phase = n % u.pool; i >= 0; --i, --phase) {
    if (phase == 0) {
      run = V{};
      phase = u.pool;
    }
    run += load<V>(in + i * kLanes);
    store(suf + i * kLanes, run);
  }
  const float inv = 1.0f / static_cast<float>(u.pool);
  for (int i = 0, phase = 0; i < u.rows; ++i) {
    const V tail = load<V>(pre + (i + u.pool - 1) * kLanes);
    const V head = phase == 0 ? V{} : load<V>(suf + i * kLanes);
    store(in + i * kLanes, (head + tail) * inv);
    if (++phase == u.pool) phase = 0;
  }
}

// |V - y|^2 from its expansion, as cancellation may leave it a little below zero.
inline __attribute__((always_inline)) W distance2(W v_dot_y, W y2, double v2) {
  const W d = (v2 - 2.0 * v_dot_y) + y2;
  return d > 0.0 ? d : W{};
}

template <bool kEq6>
void accumulate_strip(const UtilityRows& u, int w, const float* a) {
  for (int part = 0; part < kLanes; part += kHalf) {
    const W y2 = widen(load<F>(u.y2 + w + part));
    const W weight = kEq6 ? W{} : widen(load<F>(u.weight + w + part));
    for (int r = 0; r < u.rows; ++r) {
      const int64_t at = static_cast<int64_t>(r) * u.lanes + w + part;
      const W alpha = widen(load<F>(a + r * kLanes + part));
      const W square = alpha * alpha;
      W error = weight;
      if constexpr (kEq6) {
        const W e = widen(load<F>(u.logit_error + at));
        error = e * e;
      }
      const W d = distance2(widen(load<F>(u.v_dot_y + at)), y2, u.v2[r]);
      double* key = u.lane_sums + static_cast<int64_t>(r) * kLanes;
      double* value = key + kHalf;
      store(key, load<W>(key) + square * error * d);
      store(value, load<W>(value) + square);
    }
  }
}

void utility_rows(const UtilityRows& u) {
  float* in = u.strip;
  float* pre = in + 16 * (u.rows + u.pool);
  float* suf = pre + 16 * (u.rows + u.pool);
  std::memset(u.lane_sums, 0, sizeof(double) * kLanes * u.rows);
  for (int w = 0; w < u.lanes; w += kLanes) {
    pooled_strip(u, w, in, pre, suf);
    if (u.logit_error != nullptr) {
      accumulate_strip<true>(u, w, in);
    } else {
      accumulate_strip<false>(u, w, in);
    }
  }
  for (int r = 0; r < u.rows; ++r) {
    const double* sums = u.lane_sums + static_cast<int64_t>(r) * kLanes;
    u.key[r] = sum_wide(load<W>(sums));
    u.value[r] = sum_wide(load<W>(sums + kHalf));
  }
}

// ---- residual codec

// Butterfly of lanes kStep apart: lane i becomes x[i] + x[i ^ kStep], its sign by bit kStep of i.
template <int kStep, int... kLane>
inline __attribute__((always_inline)) V butterfly(V x, std::integer_sequence<int, kLane...>) {
  const V other = __builtin_shufflevector(x, x, (kLane ^ kStep)...);
  const V sign = {((kLane & kStep) != 0 ? -1.0f : 1.0f)...};
  return x * sign + other;
}

// The steps of a Hadamard transform of n >= kLanes that stay within one register.
inline __attribute__((always_inline)) V hadamard_lanes(V x) {
  constexpr auto lanes = std::make_integer_sequence<int, kLanes>();
  if constexpr (kLanes > 8) x = butterfly<8 % kLanes>(x, lanes);
  if constexpr (kLanes > 4) x = butterfly<4 % kLanes>(x, lanes);
  x = butterfly<2>(x, lanes);
  return butterfly<1>(x, lanes);
}

// n is a power of two, at least 16.
void hadamard_block(float* x, int n) {
  for (int step = n / 2; step >= kLanes; step /= 2) {
    for (int i = 0; i < n; i += 2 * step) {
      for (int j = i; j < i + step; j += kLanes) {
        const V a = load<V>(x + j), b = load<V>(x + j + step);
        store(x + j, a + b);
        store(x + j + step, a - b);
      }
    }
  }
  for (int i = 0; i < n; i += kLanes) store(x + i, hadamard_lanes(load<V>(x + i)));
}

void rotate(float* x, const float* signs, int dim, int block) {
  const float inv = static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(block)));
  for (int i = 0; i < dim; i += kLanes) {
    store(x + i, load<V>(x + i) * load<V>(signs + i) * inv);
  }
  for (int i = 0; i < dim; i += block) hadamard_block(x + i, block);
}

// Codes of x * inv, their levels' products: sum x*level and sum level^2.
struct Fit {
  float cross = 0;
  float square = 0;
  bool changed = false;
};

template <int kCodes>
Fit fit_codes(const float* x, float inv, int dim, const float* levels, const float* thresholds,
              int32_t* codes) {
  V cross{}, square{};
  VI changed{};
  for (int i = 0; i < dim; i += kLanes) {
    const V value = load<V>(x + i);
    const V u = value * inv;
    V level = splat(levels[0]);
    VI code{};
#pragma GCC unroll 16
    for (int c = 1; c < kCodes; ++c) {
      const VI up = u >= thresholds[c - 1];
      level = up ? splat(levels[c]) : level;
      code -= up;
    }
    changed |= code ^ load<VI>(codes + i);
    store(codes + i, code);
    cross += value * level;
    square += level * level;
  }
  Fit fit{sum(cross), sum(square), false};
  int32_t any[kLanes];
  std::memcpy(any, &changed, sizeof(any));
  for (int i = 0; i < kLanes; ++i) fit.changed |= any[i] != 0;
  return fit;
}

template <int kCodes>
float quantize_with(const float* x, int dim, const float* levels, const float* thresholds,
                    bool least_squares, int32_t* codes) {
  V energy{}, top{};
  for (int i = 0; i < dim; i += kLanes) {
    const V v = load<V>(x + i);
    energy += v * v;
    top = max(top, abs(v));
  }
  const float norm2 = sum(energy);
  if (!(norm2 > 0)) {
    fit_codes<kCodes>(x, 0.0f, dim, levels, thresholds, codes);
    return 0.0f;
  }
  if (!least_squares) {
    const float scale = maximum(top) / levels[kCodes - 1];
    fit_codes<kCodes>(x, 1.0f / scale, dim, levels, thresholds, codes);
    return scale;
  }
  const float rms = __builtin_sqrtf(norm2 / static_cast<float>(dim));
  Fit fit = fit_codes<kCodes>(x, 1.0f / rms, dim, levels, thresholds, codes);
  for (int round = 0; round < 8; ++round) {
    const float scale = fit.cross / fit.square;
    fit = fit_codes<kCodes>(x, 1.0f / scale, dim, levels, thresholds, codes);
    if (!fit.changed) break;
  }
  return fit.cross / fit.square;
}

float quantize(const float* x, int dim, int bits, bool least_squares, uint8_t* codes) {
  int32_t wide[kMaxHeadDim] = {};
  float scale;
  if (bits == 2) {
    scale = quantize_with<4>(x, dim, kLevels2, kThresholds2, least_squares, wide);
  } else {
    scale = quantize_with<16>(x, dim, kLevels4, kThresholds4, least_squares, wide);
  }
  for (int i = 0; i < dim; ++i) codes[i] = static_cast<uint8_t>(wide[i]);
  return scale;
}

constexpr CodecSimd kTable = {gemm, expand_rows, rope_rows,    softmax_rows, mean_rows, argmax_rows,
                              dot,  residual,    utility_rows, rotate,       quantize};

}  // namespace
}  // namespace akv::kernels
