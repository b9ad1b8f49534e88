#include "proto/api_reply.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace akv::proto {
namespace {

using Ordered = nlohmann::ordered_json;

std::string dump(const Ordered& value) {
  return value.dump(-1, ' ', false, Ordered::error_handler_t::replace);
}

bool is_utf8(const std::string& bytes) {
  try {
    (void)Ordered(bytes).dump();
    return true;
  } catch (const Ordered::exception&) {
    return false;
  }
}

// JSON has no infinity; vLLM's stand-in.
double finite(float logprob) { return std::isfinite(logprob) ? double{logprob} : -9999.0; }

// How the older dialect spells a token that is no whole text.
std::string token_name(const std::string& bytes) {
  if (is_utf8(bytes)) return bytes;
  constexpr char kHex[] = "0123456789abcdef";
  std::string name = "bytes:";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    name.append("\\x").append(1, kHex[byte >> 4]).append(1, kHex[byte & 15]);
  }
  return name;
}

Ordered byte_list(const std::string& bytes) {
  Ordered list = Ordered::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return list;
}

Ordered chat_token(const std::string& bytes, float logprob) {
  return {{"token", bytes}, {"logprob", finite(logprob)}, {"bytes", byte_list(bytes)}};
}

Ordered chat_logprobs(const Choice& choice) {
  if (!choice.logprobs) return nullptr;
  Ordered content = Ordered::array();
  for (const LogprobEntry& entry : *choice.logprobs) {
    Ordered token = chat_token(entry.bytes, entry.logprob);
    Ordered top = Ordered::array();
    for (const LogprobAlternative& rival : entry.top)
      top.push_back(chat_token(rival.bytes, rival.logprob));
    token["top_logprobs"] = std::move(top);
    content.push_back(std::move(token));
  }
  return {{"content", std::move(content)}};
}

Ordered completion_logprobs(const Choice& choice) {
  if (!choice.logprobs) return nullptr;
  Ordered tokens = Ordered::array();
  Ordered token_logprobs = Ordered::array();
  Ordered top_logprobs = Ordered::array();
  for (const LogprobEntry& entry : *choice.logprobs) {
    tokens.push_back(token_name(entry.bytes));
    token_logprobs.push_back(finite(entry.logprob));
    Ordered top = Ordered::object();
    for (const LogprobAlternative& rival : entry.top)
      top[token_name(rival.bytes)] = finite(rival.logprob);
    top_logprobs.push_back(entry.top.empty() ? Ordered(nullptr) : std::move(top));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(token_logprobs)},
          {"top_logprobs", std::move(top_logprobs)},
          {"text_offset", choice.text_offsets}};
}

Ordered finish(const Choice& choice) {
  return choice.finish_reason.empty() ? Ordered(nullptr) : Ordered(choice.finish_reason);
}

Ordered usage_object(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

Ordered kv_object(const KvReport& kv) {
  // A dense state is not compressed: its header does not make it "0.99 times".
  double ratio = 1.0;
  if (kv.codec != "none" && kv.state_bytes > 0) {
    ratio = static_cast<double>(kv.dense_bytes) / static_cast<double>(kv.state_bytes);
  }
  return {{"codec", kv.codec},
          {"profile", kv.profile},
          {"theta", kv.theta},
          {"theta_requested", kv.theta_requested},
          {"prompt_tokens", kv.prompt_tokens},
          {"dense_bytes", kv.dense_bytes},
          {"state_bytes", kv.state_bytes},
          {"ratio", ratio},
          {"prefill_ms", kv.prefill_ms},
          {"compress_ms", kv.compress_ms},
          {"transfer_ms", kv.transfer_ms},
          {"prefill_node", kv.prefill_node}};
}

Ordered card(const ModelCard& model) {
  return {{"id", model.id},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "anchorkv"},
          {"root", model.id},
          {"parent", nullptr},
          {"max_model_len", model.context_length}};
}

Ordered head_object(const ReplyHead& head, const char* object) {
  Ordered reply = {
      {"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
  if (!head.system_fingerprint.empty()) reply["system_fingerprint"] = head.system_fingerprint;
  return reply;
}

void add_usage(Ordered& reply, const Usage& usage, const std::optional<KvReport>& kv) {
  reply["usage"] = usage_object(usage);
  if (kv) reply["kv"] = kv_object(*kv);
}

std::string one_choice_chunk(Ordered reply, Ordered choice, bool usage_null) {
  reply["choices"] = Ordered::array({std::move(choice)});
  if (usage_null) reply["usage"] = nullptr;
  return dump(reply);
}

std::string usage_chunk(Ordered reply, const Usage& usage, const std::optional<KvReport>& kv) {
  reply["choices"] = Ordered::array();
  add_usage(reply, usage, kv);
  return dump(reply);
}

Ordered completion_choice(const Choice& choice) {
  Ordered object = {{"index", choice.index},
                    {"text", choice.text},
                    {"logprobs", completion_logprobs(choice)},
                    {"finish_reason", finish(choice)}};
  if (choice.token_ids) object["token_ids"] = *choice.token_ids;
  return object;
}

constexpr const char* kChatChunk = "chat.completion.chunk";

}  // namespace

std::string error_json(const ApiError& error) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? Ordered(nullptr) : Ordered(text);
  };
  return dump({{"error",
                {{"message", error.message},
                 {"type", error.type},
                 {"param", or_null(error.param)},
                 {"code", or_null(error.code)}}}});
}

std::string chat_reply(const ReplyHead& head, std::span<const Choice> choices, const Usage& usage,
                       const std::optional<KvReport>& kv) {
  Ordered reply = head_object(head, "chat.completion");
  Ordered list = Ordered::array();
  for (const Choice& choice : choices) {
    Ordered object = {
        {"index", choice.index},
        {"message", {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}}},
        {"logprobs", chat_logprobs(choice)},
        {"finish_reason", finish(choice)}};
    if (choice.token_ids) object["token_ids"] = *choice.token_ids;
    list.push_back(std::move(object));
  }
  reply["choices"] = std::move(list);
  add_usage(reply, usage, kv);
  return dump(reply);
}

std::string completion_reply(const ReplyHead& head, std::span<const Choice> choices,
                             const Usage& usage, const std::optional<KvReport>& kv) {
  Ordered reply = head_object(head, "text_completion");
  Ordered list = Ordered::array();
  for (const Choice& choice : choices) list.push_back(completion_choice(choice));
  reply["choices"] = std::move(list);
  add_usage(reply, usage, kv);
  return dump(reply);
}

std::string chat_role_chunk(const ReplyHead& head, int index, bool usage_null) {
  Ordered choice = {{"index", index},
                    {"delta", {{"role", "assistant"}, {"content", ""}}},
                    {"logprobs", nullptr},
                    {"finish_reason", nullptr}};
  return one_choice_chunk(head_object(head, kChatChunk), std::move(choice), usage_null);
}

std::string chat_chunk(const ReplyHead& head, const Choice& choice, bool usage_null) {
  Ordered delta = Ordered::object();
  if (!choice.text.empty() || choice.finish_reason.empty()) delta["content"] = choice.text;
  Ordered object = {{"index", choice.index},
                    {"delta", std::move(delta)},
                    {"logprobs", chat_logprobs(choice)},
                    {"finish_reason", finish(choice)}};
  if (choice.token_ids) object["token_ids"] = *choice.token_ids;
  return one_choice_chunk(head_object(head, kChatChunk), std::move(object), usage_null);
}

std::string completion_chunk(const ReplyHead& head, const Choice& choice, bool usage_null) {
  return one_choice_chunk(head_object(head, "text_completion"), completion_choice(choice),
                          usage_null);
}

std::string chat_usage_chunk(const ReplyHead& head, const Usage& usage,
                             const std::optional<KvReport>& kv) {
  return usage_chunk(head_object(head, kChatChunk), usage, kv);
}

std::string completion_usage_chunk(const ReplyHead& head, const Usage& usage,
                                   const std::optional<KvReport>& kv) {
  return usage_chunk(head_object(head, "text_completion"), usage, kv);
}

std::string models_reply(std::span<const ModelCard> models) {
  Ordered data = Ordered::array();
  for (const ModelCard& model : models) data.push_back(card(model));
  return dump({{"object", "list"}, {"data", std::move(data)}});
}

std::string model_reply(const ModelCard& model) { return dump(card(model)); }

std::string tokenize_reply(std::span<const int32_t> tokens,
                           const std::optional<std::vector<std::string>>& pieces,
                           int64_t context_length) {
  Ordered list = Ordered::array();
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!pieces) {
      list.push_back(tokens[i]);
      continue;
    }
    const std::string& piece = (*pieces)[i];
    list.push_back(
        {{"id", tokens[i]}, {"piece", is_utf8(piece) ? Ordered(piece) : byte_list(piece)}});
  }
  return dump(
      {{"tokens", std::move(list)}, {"count", tokens.size()}, {"max_model_len", context_length}});
}

std::string detokenize_reply(std::string_view text) {
  return dump({{"content", text}, {"prompt", text}});
}

std::string version_reply(std::string_view version) { return dump({{"version", version}}); }

}  // namespace akv::proto
