// The codec's inner loops, one table of functions per instruction set. Internal to kernels/: the
// operators of window_attention.h, anchor_assign.h, utility.h and residual_codec.h are built on it.
// Lane counts are padded by the callers: `cols` and `lanes` are multiples of 16.
#pragma once

#include <cstdint>

#include "kernels/isa.h"
#include "kernels/types.h"

namespace akv::kernels {

// Arguments of utility_rows: one chunk of tokens [first, first + rows) of one KV head.
struct UtilityRows {
  // Weights of row t: alpha [P][lanes] times factor [chunk of t][lanes].
  const float* alpha = nullptr;
  const float* factor = nullptr;
  int64_t prefix = 0;  // P
  int64_t first = 0;
  int rows = 0;
  int lanes = 0;
  int pool = 1;                        // odd width of the mean of alpha; 1: alpha itself
  const float* v_dot_y = nullptr;      // [rows][lanes]: V_t . y_w
  const float* weight = nullptr;       // pooled: [lanes], |q_w|^2 / D^2
  const float* logit_error = nullptr;  // Eq. 6: [rows][lanes], q_w . R_t rK_t / sqrt(D)
  const float* y2 = nullptr;           // [lanes]: |y_w|^2
  const float* v2 = nullptr;           // [rows]: |V_t|^2
  float* strip = nullptr;              // scratch, 3 * 16 * (rows + pool) floats
  double* lane_sums = nullptr;         // scratch, 2 * 16 * rows doubles
  double* key = nullptr;    // out [rows]: sum_w a^2 e |V_t - y_w|^2, a pooled, e as above squared
  double* value = nullptr;  // out [rows]: sum_w a^2
};

struct CodecSimd {
  // c[r][j] (+)= sum_d a[r * a_row + d * a_depth] * b[d * ldb + j], d in increasing order for every
  // (r, j): equal inputs give equal outputs wherever they stand.
  void (*gemm)(const float* a, int64_t a_row, int64_t a_depth, int rows, const float* b,
               int64_t ldb, int cols, int depth, float* c, int64_t ldc, bool accumulate);
  void (*expand_rows)(const bf16* src, int64_t stride, int rows, int dim, float* dst);
  // x [rows][dim] in place; row r's angles are at cos + r * 2 * half, its sines half further on.
  void (*rope_rows)(float* x, int rows, int dim, const float* cos, int half, bool interleaved);
  // logits [rows][lanes] become exp(logit - max); max and sum [lanes] are updated, scale [lanes] is
  // the factor that older sums and products were multiplied by.
  void (*softmax_rows)(float* logits, int rows, int lanes, float* max, float* sum, float* scale);
  // mean[r] = inv * sum over lanes of alpha [rows][lanes] * factor [lanes].
  void (*mean_rows)(const float* alpha, int rows, int lanes, const float* factor, float inv,
                    float* mean);
  // Per row of c [rows][cols]: the largest |c| * inv_norm (NaN entries never win), the number of
  // entries within `slack` relative of it and the first of them; -1 if no entry is a number.
  void (*argmax_rows)(const float* c, int rows, int cols, const float* inv_norm, float slack,
                      int* first, int* close, float* best);
  double (*dot)(const float* a, const float* b, int dim);  // in double
  // r = x - gamma * a; returns |r|^2. r may be null.
  float (*residual)(const float* x, const float* a, float gamma, int dim, float* r);
  void (*utility_rows)(const UtilityRows& args);
  // x := U x for one row.
  void (*rotate)(float* x, const float* signs, int dim, int block);
  // Codes (one a byte) and scale of one rotated residual; returns the scale before storage.
  float (*quantize)(const float* x, int dim, int bits, bool least_squares, uint8_t* codes);
};

// The table for an instruction set; kAvx512Bf16 uses that of kAvx512.
const CodecSimd& codec_simd(Isa isa);

const CodecSimd& codec_simd_portable();
const CodecSimd& codec_simd_avx2();
const CodecSimd& codec_simd_avx512();

}  // namespace akv::kernels
