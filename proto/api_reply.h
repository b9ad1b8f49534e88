// HTTP reply bodies and stream chunks as JSON text, in the shapes of the OpenAI API.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/api.h"

namespace akv::proto {

// What all chunks of one answer share.
struct ReplyHead {
  std::string id;       // "chatcmpl-..." or "cmpl-..."
  int64_t created = 0;  // seconds since 1970
  std::string model;
  std::string system_fingerprint;  // "": left out
};

struct Choice {
  int index = 0;
  std::string text;           // valid UTF-8
  std::string finish_reason;  // "stop", "length"
  // Present when asked for. text_offsets (completions only): start of each token in the text.
  std::optional<std::vector<LogprobEntry>> logprobs;
  std::vector<int64_t> text_offsets;
  std::optional<std::vector<int32_t>> token_ids;
};

std::string chat_reply(const ReplyHead& head, std::span<const Choice> choices, const Usage& usage,
                       const std::optional<KvReport>& kv);
std::string completion_reply(const ReplyHead& head, std::span<const Choice> choices,
                             const Usage& usage, const std::optional<KvReport>& kv);

// Chunks of a stream. usage_null: the request asked for usage, so chunks say "usage":null.
// First chunk of a chat choice: delta {"role":"assistant","content":""}.
std::string chat_role_chunk(const ReplyHead& head, int index, bool usage_null);
// choice.finish_reason "" is null; with a reason and no text the delta is empty.
std::string chat_chunk(const ReplyHead& head, const Choice& choice, bool usage_null);
std::string completion_chunk(const ReplyHead& head, const Choice& choice, bool usage_null);
// The last chunk: "choices":[] with usage and kv.
std::string chat_usage_chunk(const ReplyHead& head, const Usage& usage,
                             const std::optional<KvReport>& kv);
std::string completion_usage_chunk(const ReplyHead& head, const Usage& usage,
                                   const std::optional<KvReport>& kv);

struct ModelCard {
  std::string id;
  int64_t created = 0;
  int64_t context_length = 0;
};
std::string models_reply(std::span<const ModelCard> models);
std::string model_reply(const ModelCard& model);
std::string tokenize_reply(std::span<const int32_t> tokens,
                           const std::optional<std::vector<std::string>>& pieces,
                           int64_t context_length);
std::string detokenize_reply(std::string_view text);
std::string version_reply(std::string_view version);

}  // namespace akv::proto
