// From logits to a token: penalties, truncation and a counter-based draw.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/result.h"

namespace akv::model {

// What a request may ask of sampling; the field names are those of the HTTP API. Stop strings are
// not here: they are matched on text, in the front door (StopMatcher).
struct SamplingParams {
  float temperature = 1.0f;         // 0: greedy, ties to the lowest id. Range [0, 100]
  int32_t top_k = 0;                // keep the k best; 0 or -1: all
  float top_p = 1.0f;               // (0, 1]: keep the smallest best set of at least this mass
  float min_p = 0.0f;               // [0, 1]: drop what is below min_p times the best probability
  float repetition_penalty = 1.0f;  // (0, 100]: divides positive and multiplies negative logits of
                                    // tokens seen in the prompt or the output
  float presence_penalty = 0.0f;    // [-2, 2]: subtracted once for tokens in the output
  float frequency_penalty = 0.0f;   // [-2, 2]: subtracted per occurrence in the output
  std::vector<std::pair<int32_t, float>> logit_bias;  // added to logits; values in [-100, 100]
  uint64_t seed = 0;      // the front door draws one where the request has none
  int32_t logprobs = -1;  // -1: none; n in [0, 20]: the sampled token's and the n best ones'
  std::vector<int32_t> stop_token_ids;  // further tokens that end the generation
  bool ignore_eos = false;              // the model's own end tokens do not end the generation
  int32_t min_tokens = 0;               // no end token is drawn before so many were generated
};

inline constexpr int32_t kMaxLogprobs = 20;
inline constexpr size_t kMaxLogitBias = 1024;
inline constexpr size_t kMaxStopTokenIds = 128;

// kInvalidArgument with a message for the user; `param` is the API's field name.
Status validate(const SamplingParams& params, int32_t vocab_size);

struct Sampled {
  int32_t token = -1;
  // Natural logarithms of the raw distribution: softmax of the logits as the model gave them,
  // before bias, penalties, temperature and truncation. Set if params.logprobs >= 0.
  float logprob = 0.0f;
  std::vector<std::pair<int32_t, float>> top;  // the logprobs best, best first
};

// What sampling remembers of one session. Not thread-safe. Memory: one entry for each distinct
// token, and only if a penalty is in use.
class SamplerState {
 public:
  // `prompt` counts for the repetition penalty. `end_tokens`: Tokenizer::end_tokens().
  // A session resumed elsewhere calls add() for each token already generated.
  SamplerState(const SamplingParams& params, std::span<const int32_t> prompt,
               std::span<const int32_t> end_tokens);
  // The token joined the output.
  void add(int32_t token);
  int64_t generated() const { return generated_; }

  // Why generation ends with this token, which is not counted yet: kNone goes on.
  enum class Stop { kNone, kEndToken, kStopTokenId };
  Stop stops_at(int32_t token) const;

  struct Seen {
    uint32_t in_output = 0;
    bool in_prompt = false;
  };
  const std::unordered_map<int32_t, Seen>& seen() const { return seen_; }
  // Tokens that min_tokens forbids now.
  std::span<const int32_t> forbidden() const;

 private:
  bool counts_tokens_;
  bool ignore_eos_;
  int64_t min_tokens_;
  int64_t generated_ = 0;
  std::unordered_map<int32_t, Seen> seen_;
  std::vector<int32_t> end_tokens_;
  std::vector<int32_t> stop_token_ids_;
  std::vector<int32_t> all_ends_;
};

// Reusable memory of sample(); grows to the vocabulary's size once. One per thread.
struct SamplerScratch {
  struct Candidate {
    float logit;
    int32_t token;
  };
  std::vector<Candidate> candidates;
  std::vector<float> weights;
  std::vector<std::pair<int32_t, float>> raw_of_changed;
};

// Draws the token at absolute position `position` (prompt tokens + tokens generated before it).
// The draw depends on (seed, position) and the logits alone. `logits` [vocab] is overwritten.
// Order: raw logprobs; bias and min_tokens; penalties; temperature; min_p; top_k; top_p; draw.
// Expected time O(vocab). Errors: kInternal if a logit is not finite or nothing is left to draw.
// REQUIRES: validate(params, logits.size()).ok().
Result<Sampled> sample(std::span<float> logits, const SamplingParams& params,
                       const SamplerState& state, uint64_t position, SamplerScratch& scratch);

}  // namespace akv::model
