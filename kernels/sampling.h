// From logits to a token on a device: truncation and a counter-based draw.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device_stream.h"

namespace akv::kernels::cuda {

// One row's rules; ranges and meaning as in model::SamplingParams. Penalties, biases and logprobs
// are not here: rows that ask for them are sampled on the host.
struct SampleRule {
  uint64_t seed = 0;
  uint64_t position = 0;  // absolute, of the token that is drawn
  float temperature = 0;  // below 1e-5: greedy, ties to the lowest id
  float top_p = 1;
  float min_p = 0;
  int32_t top_k = 0;  // 0 or -1: all
};

// tokens[r] = the token drawn from logits [rows, vocab] by rules[r] (on the device), or -1 where a
// logit is not finite. The draw is model::sample's: the same counter, the same order of tokens, so
// that the same logits give the same token but where the uniform number falls within the rounding
// of exp() of a border (a chance of about 1e-6). scratch: sample_scratch_bytes of device memory,
// for the weights. vocab <= 2^18. A row's token does not depend on the other rows.
void sample(const float* logits, int64_t rows, int64_t vocab, const SampleRule* rules,
            int32_t* tokens, void* scratch, DeviceStream stream);
size_t sample_scratch_bytes(int64_t rows, int64_t vocab);

}  // namespace akv::kernels::cuda
