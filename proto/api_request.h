// HTTP request bodies: JSON text in, checked values out. Nothing is trusted: depth, duplicate keys,
// UTF-8, types and ranges are checked, and an error names the field. Unknown fields are ignored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "proto/api.h"
#include "proto/sampling.h"

namespace akv::proto {

struct ApiLimits {
  int max_json_depth = 32;
  size_t max_stop_strings = 16;
  size_t max_stop_bytes = 256;  // of one stop string
  size_t max_messages = 4096;
  int max_choices = 16;  // n times prompts
  int max_top_logprobs = 20;
  size_t max_logit_bias = 1024;
  size_t max_prompt_ids = 1 << 20;
  size_t max_tokenize_bytes = 4 << 20;  // of a text for /tokenize
};

struct ChatMessage {
  std::string role;
  std::string content;  // parts of type text joined
  std::string name;
};

// What chat and text completion share.
struct CommonFields {
  std::string model;
  std::optional<int32_t> max_tokens;  // max_completion_tokens wins; absent: up to the context
  Sampling sampling;                  // its seed is valid when has_seed
  bool has_seed = false;
  std::vector<std::string> stop;
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  bool return_token_ids = false;
  int n = 1;
  bool stream = false;
  bool include_usage = false;
  KvOptions kv;
};

struct ChatRequest {
  CommonFields common;
  std::vector<ChatMessage> messages;
  std::string chat_template_kwargs;  // JSON object text, "" when absent
  bool add_generation_prompt = true;
};

using Prompt = std::variant<std::string, std::vector<int32_t>>;
struct CompletionRequest {
  CommonFields common;
  std::vector<Prompt> prompts;  // one or more; each makes n choices
  bool echo = false;
};

struct TokenizeRequest {
  std::string content;
  std::vector<ChatMessage> messages;  // instead of content when has_messages
  bool has_messages = false;
  bool add_special = true;
  bool parse_special = true;  // default false for messages
  bool with_pieces = false;
  bool add_generation_prompt = true;
};

Parsed<ChatRequest> parse_chat_request(std::string_view body, const ApiLimits& limits);
Parsed<CompletionRequest> parse_completion_request(std::string_view body, const ApiLimits& limits);
Parsed<TokenizeRequest> parse_tokenize_request(std::string_view body, const ApiLimits& limits);
// Token ids of {"tokens":[...]}.
Parsed<std::vector<int32_t>> parse_detokenize_request(std::string_view body,
                                                      const ApiLimits& limits);

}  // namespace akv::proto
