#include "prefill_node/engine/prompt_engine.h"

#include <fmt/format.h>

namespace akv::prefill {

Status check_prompt(std::span<const int32_t> ids, const model::ModelConfig& config) {
  if (ids.empty()) return make_error(Code::kInvalidArgument, "the prompt has no tokens", "prompt");
  if (static_cast<int64_t>(ids.size()) > config.context_length) {
    return make_error(Code::kContextLength,
                      fmt::format("the prompt has {} tokens, the model's context is {}", ids.size(),
                                  config.context_length),
                      "prompt");
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < config.vocab) continue;
    return make_error(Code::kInvalidArgument,
                      fmt::format("token {} at index {} is outside the vocabulary of {}", ids[i], i,
                                  config.vocab),
                      "prompt");
  }
  return {};
}

}  // namespace akv::prefill
