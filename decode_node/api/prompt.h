// From request bodies to token ids, with all checks that need the model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "decode_node/api/service.h"
#include "proto/api_request.h"

namespace akv::decode::api {

using PromptIds = std::vector<int32_t>;

// Template, then tokens; literals of the template and message texts are tokenised apart.
proto::Parsed<PromptIds> chat_prompt(const ModelInfo& model,
                                     const std::vector<proto::ChatMessage>& messages,
                                     const std::string& chat_template_kwargs,
                                     bool add_generation_prompt);
// Text (special tokens recognised) or ids, checked against the vocabulary. Not empty.
proto::Parsed<PromptIds> completion_prompt(const ModelInfo& model, const proto::Prompt& prompt);
proto::Parsed<PromptIds> tokenize(const ModelInfo& model, const proto::TokenizeRequest& request);

// max_tokens for a prompt of this length: what was asked, or all that the context leaves.
proto::Parsed<int32_t> output_budget(const ModelInfo& model, int64_t prompt_tokens,
                                     std::optional<int32_t> max_tokens);
proto::ApiError unknown_model(const ModelInfo& model, const std::string& asked);
// Model name and token ids of the common fields. status 0: all is well.
proto::ApiError check_common(const ModelInfo& model, const proto::CommonFields& common);

}  // namespace akv::decode::api
