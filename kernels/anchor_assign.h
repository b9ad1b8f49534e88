// Nearest anchor and coefficient of every non-window token, for one side of one KV head (Eq. 1, 2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/types.h"

namespace akv::kernels {

// The anchors of one side of one head, expanded for the products. Reused from head to head.
struct AnchorRows {
  int count = 0;                // k
  int padded = 0;               // k rounded up to 16
  int head_dim = 0;             // D
  std::vector<float> rows;      // [k][D]
  std::vector<float> columns;   // [D][padded]
  std::vector<float> inv_norm;  // [padded]; NaN for a zero anchor and for padding
  std::vector<double> norm2;    // [k]
  size_t bytes() const;
};

// Fills `out` from the rows x + positions[a] * stride.
void load_anchors(const bf16* x, int64_t stride, const int32_t* positions, int count, int head_dim,
                  AnchorRows& out);

struct AssignParams {
  const bf16* x = nullptr;  // row of token t at x + t * stride
  int64_t stride = 0;
  int64_t prefix = 0;  // P
  const AnchorRows* anchors = nullptr;
  const int32_t* positions = nullptr;  // [k] ascending
  bool log8 = false;                   // how gamma is stored, else bf16
};

// Per-token results, [P] each.
struct Assignment {
  uint16_t* slot = nullptr;
  uint16_t* code = nullptr;    // gamma as stored: bf16 bits or log8
  float* gamma = nullptr;      // the value of code
  float* residual2 = nullptr;  // |x - gamma x_a|^2
};

// a(i) = argmax |<x_i, x_a>| / (|x_i| |x_a|), ties to the lowest slot; candidates within 1e-5 of
// the best in f32 are decided in double, so equal anchors tie on every CPU. gamma is a double
// quotient, rounded for storage before the residual is formed. An anchor takes its own slot with
// gamma 1, a zero vector slot 0 with gamma 0; a zero anchor is no candidate.
// One chunk of kCodecChunk tokens; chunks may run on different threads. scratch:
// assign_scratch_floats() floats.
void assign_chunk(const AssignParams& params, const Assignment& out, int64_t chunk, float* scratch);
size_t assign_scratch_floats(int head_dim, int anchors);

// gamma (and the residual) of tokens whose slots are given: out.slot is read, the rest written.
void project_on_slots(const AssignParams& params, const Assignment& out);

// residual2 of tokens whose slot and gamma are given.
void measure_residuals(const AssignParams& params, const Assignment& out);

}  // namespace akv::kernels
