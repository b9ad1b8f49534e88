// Golden cases made by the oracle in double (kernels/reference) for shapes that golden/codec lacks.
#pragma once

#include <cstdint>
#include <string>

#include "tests/kv/golden_case.h"

namespace akv::kv::testing {

struct CaseSpec {
  int64_t tokens = 256;
  int kv_heads = 2, head_dim = 64, group = 2, window = 32, layer = 3;
  double theta = 0.2;
  kernels::RopePairs pairs = kernels::RopePairs::kHalf;
  int rope_dim = 0;
  int clusters = 12;  // rows are noisy copies of this many centres
  double noise = 0.4;
  int zero_every = 0;    // > 0: every n-th key and value row is zero
  int repeat_every = 0;  // > 0: row t equals row t - n
  uint32_t seed = 1;
};

// Inputs only.
GoldenCase make_inputs(const CaseSpec& spec);
// Inputs, and what the oracle makes of them for both profiles.
GoldenCase make_reference_case(const CaseSpec& spec);

}  // namespace akv::kv::testing
