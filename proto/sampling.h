// How tokens are drawn: one wire type for the HTTP request and the control messages.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace akv::proto {

struct Sampling {
  double temperature = 1.0;                           // >= 0; 0 is greedy
  int32_t top_k = 0;                                  // 0: off
  double top_p = 1.0;                                 // (0, 1]
  double min_p = 0.0;                                 // [0, 1]
  double repetition_penalty = 1.0;                    // > 0
  double presence_penalty = 0.0;                      // [-2, 2]
  double frequency_penalty = 0.0;                     // [-2, 2]
  std::vector<std::pair<int32_t, float>> logit_bias;  // token, [-100, 100]
  uint64_t seed = 0;      // the front door draws one where the request has none
  int32_t logprobs = -1;  // -1: none; n >= 0: of the token and its n most likely rivals
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  int32_t min_tokens = 0;  // eos and stop ids are not drawn before
  bool operator==(const Sampling&) const = default;
};

// A drawn token. logprob is of the unmodified distribution, meaningful when logprobs >= 0.
struct TokenOut {
  int32_t id = 0;
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top;  // most likely first, `logprobs` of them
  bool operator==(const TokenOut&) const = default;
};

}  // namespace akv::proto
