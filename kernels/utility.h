// Utility of a residual: how much attention output error it would repair (Eq. 6 and the pooled
// form of anchorkv.md section 9). Per KV head, both sides at once.
#pragma once

#include <cstdint>

#include "kernels/anchor_assign.h"
#include "kernels/window_attention.h"

namespace akv::kernels {

struct UtilityParams {
  const ObservedHead* head = nullptr;
  const Observation* observation = nullptr;
  bool eq6 = false;                         // else pooled
  int pool = 31;                            // width of the pooled mean, at most 255
  const AnchorRows* key_anchors = nullptr;  // Eq. 6 only
  const int32_t* positions = nullptr;       // [k], anchors
  int anchors = 0;                          // k
  Assignment key, value;                    // slot, gamma and residual2 are read
};

// uK, uV: [P]. Sums over queries in double, their terms from f32 products; -1 on anchors. One chunk
// of kCodecChunk tokens, whose slots and coefficients are complete; chunks may run on different
// threads. scratch: utility_scratch_floats() floats, aligned for doubles.
void utility_chunk(const UtilityParams& params, int64_t chunk, double* key, double* value,
                   float* scratch);
size_t utility_scratch_floats(int head_dim, int lanes);

}  // namespace akv::kernels
