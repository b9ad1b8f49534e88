#include "proto/api_request.h"

#include <limits>

#include "proto/api_fields.h"

namespace akv::proto {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr size_t kMaxNameBytes = 256;
constexpr double kMaxBias = 100;
constexpr size_t kMaxStopIds = 128;

void read_stop(ApiFields& fields, const ApiLimits& limits, std::vector<std::string>& stop) {
  const Json* field = fields.find("stop");
  if (field == nullptr) return;
  const Json list = field->is_array() ? *field : Json::array({*field});
  if (list.size() > limits.max_stop_strings)
    return fields.fail("stop",
                       "must hold at most " + std::to_string(limits.max_stop_strings) + " strings");
  for (const Json& item : list) {
    if (!item.is_string())
      return fields.fail("stop", "must be a string or a list of strings", "invalid_type");
    const auto& text = item.get_ref<const std::string&>();
    if (text.size() > limits.max_stop_bytes)
      return fields.fail("stop", "must be of strings of at most " +
                                     std::to_string(limits.max_stop_bytes) + " bytes");
    if (!text.empty()) stop.push_back(text);
  }
}

void read_logit_bias(ApiFields& fields, const ApiLimits& limits, Sampling& sampling) {
  const Json* field = fields.find("logit_bias");
  if (field == nullptr) return;
  if (!field->is_object())
    return fields.fail("logit_bias", "must be an object of token id and bias", "invalid_type");
  if (field->size() > limits.max_logit_bias)
    return fields.fail("logit_bias",
                       "must hold at most " + std::to_string(limits.max_logit_bias) + " tokens");
  for (const auto& [key, value] : field->items()) {
    const bool digits =
        !key.empty() && key.size() <= 9 && key.find_first_not_of("0123456789") == key.npos;
    if (!digits) return fields.fail("logit_bias", "must have token ids as keys");
    if (!value.is_number() || std::abs(value.get<double>()) > kMaxBias)
      return fields.fail("logit_bias", "must have biases from -100 to 100, got " + shown(value));
    sampling.logit_bias.emplace_back(std::stoi(key), value.get<float>());
  }
}

void read_stop_token_ids(ApiFields& fields, Sampling& sampling) {
  const Json* field = fields.find("stop_token_ids");
  if (field == nullptr) return;
  if (!field->is_array())
    return fields.fail("stop_token_ids", "must be a list of token ids", "invalid_type");
  fields.integers("stop_token_ids", *field, kMaxStopIds, sampling.stop_token_ids);
}

void read_sampling(ApiFields& fields, const ApiLimits& limits, CommonFields& common) {
  Sampling& s = common.sampling;
  fields.real("temperature", s.temperature, {0, 100});
  fields.integer("top_k", s.top_k, -1, kMaxInt32);
  if (s.top_k < 0) s.top_k = 0;
  fields.real("top_p", s.top_p, {0, 1, true});
  fields.real("min_p", s.min_p, {0, 1});
  fields.real("repetition_penalty", s.repetition_penalty, {0, 100, true});
  fields.real("presence_penalty", s.presence_penalty, {-2, 2});
  fields.real("frequency_penalty", s.frequency_penalty, {-2, 2});
  fields.boolean("ignore_eos", s.ignore_eos);
  fields.integer("min_tokens", s.min_tokens, 0, kMaxInt32);
  read_logit_bias(fields, limits, s);
  read_stop_token_ids(fields, s);
  int64_t seed = 0;
  fields.integer("seed", seed, std::numeric_limits<int64_t>::min(),
                 std::numeric_limits<int64_t>::max());
  common.has_seed = fields.find("seed") != nullptr;
  s.seed = static_cast<uint64_t>(seed);
}

void read_kv(ApiFields& fields, KvOptions& kv) {
  const Json* field = fields.find("kv");
  if (field == nullptr) return;
  ApiFields inner(*field, "kv");
  std::string codec;
  std::string profile;
  double theta = 0;
  inner.word("codec", codec, {"anchorkv", "none"});
  inner.word("profile", profile, {"pooled", "paper"});
  inner.real("theta", theta, {0, 1, true});
  fields.adopt(inner);
  if (!codec.empty()) kv.codec = codec;
  if (!profile.empty()) kv.profile = profile;
  if (theta > 0) kv.theta = theta;
}

void read_response_format(ApiFields& fields) {
  const Json* field = fields.find("response_format");
  if (field == nullptr) return;
  ApiFields inner(*field, "response_format");
  std::string type;
  inner.word("type", type, {"text", "json_object", "json_schema"});
  fields.adopt(inner);
  if (type == "json_object" || type == "json_schema")
    fields.refuse_unsupported("response_format",
                              "'response_format' of type " + type + " is not supported");
}

void read_stream(ApiFields& fields, CommonFields& common) {
  fields.boolean("stream", common.stream);
  const Json* field = fields.find("stream_options");
  if (field == nullptr) return;
  ApiFields inner(*field, "stream_options");
  inner.boolean("include_usage", common.include_usage);
  fields.adopt(inner);
}

void read_max_tokens(ApiFields& fields, CommonFields& common) {
  int32_t value = 0;
  fields.integer("max_tokens", value, 1, kMaxInt32);
  fields.integer("max_completion_tokens", value, 1, kMaxInt32);
  if (value > 0) common.max_tokens = value;
}

void read_common(ApiFields& fields, const ApiLimits& limits, CommonFields& common) {
  fields.text("model", common.model, kMaxNameBytes);
  read_max_tokens(fields, common);
  read_sampling(fields, limits, common);
  read_stop(fields, limits, common.stop);
  fields.boolean("include_stop_str_in_output", common.include_stop_str_in_output);
  fields.boolean("skip_special_tokens", common.skip_special_tokens);
  fields.boolean("return_token_ids", common.return_token_ids);
  fields.integer("n", common.n, 1, limits.max_choices);
  read_stream(fields, common);
  read_kv(fields, common.kv);
  read_response_format(fields);
  fields.unsupported({"use_beam_search", "guided_json", "guided_regex", "guided_choice",
                      "guided_grammar", "structured_outputs", "prompt_logprobs",
                      "allowed_token_ids", "bad_words", "logits_processors", "prompt_embeds"});
}

void read_chat_logprobs(ApiFields& fields, const ApiLimits& limits, Sampling& sampling) {
  bool wanted = false;
  int32_t top = 0;
  fields.boolean("logprobs", wanted);
  fields.integer("top_logprobs", top, 0, limits.max_top_logprobs);
  if (fields.find("top_logprobs") != nullptr && top > 0 && !wanted)
    return fields.fail("top_logprobs", "needs 'logprobs' to be true");
  if (wanted) sampling.logprobs = top;
}

void read_tools(ApiFields& fields) {
  fields.unsupported({"tools", "functions", "audio", "prediction", "web_search_options",
                      "documents", "chat_template", "continue_final_message"});
  const Json* choice = fields.find("tool_choice");
  if (choice != nullptr && *choice != "none" && *choice != "auto")
    fields.refuse_unsupported("tool_choice", "'tool_choice' is not supported by this server");
  const Json* modalities = fields.find("modalities");
  if (modalities != nullptr && *modalities != Json::array({"text"}))
    fields.refuse_unsupported("modalities", "'modalities' other than text are not supported");
}

// Joins the text parts of a content list.
std::string read_parts(ApiFields& message, const Json& parts, const std::string& path) {
  std::string joined;
  for (size_t i = 0; i < parts.size() && message.ok(); ++i) {
    ApiFields part(parts[i], path + "[" + std::to_string(i) + "]");
    std::string type;
    part.text("type", type, kMaxNameBytes);
    const Json* text = part.find("text");
    if (part.ok() && type != "text")
      part.refuse_unsupported(part.param("type"),
                              "content parts of type '" + type + "' are not supported, only text");
    else if (part.ok() && (text == nullptr || !text->is_string()))
      part.fail(part.param("text"), "must be a string", "invalid_type");
    if (part.ok()) joined += text->get_ref<const std::string&>();
    message.adopt(part);
  }
  return joined;
}

void read_message(ApiFields& fields, const Json& json, size_t index, ChatMessage& message) {
  const std::string path = "messages[" + std::to_string(index) + "]";
  ApiFields inner(json, path);
  inner.word("role", message.role,
             {"system", "developer", "user", "assistant", "tool", "function"});
  if (message.role.empty()) inner.fail(inner.param("role"), "is missing", "missing_field");
  // What templates know as system is called developer by newer clients.
  if (message.role == "developer") message.role = "system";
  inner.text("name", message.name, kMaxNameBytes);
  inner.unsupported({"tool_calls", "function_call", "audio"});
  const Json* content = inner.find("content");
  const bool may_lack = message.role == "assistant";
  if (content == nullptr && !may_lack)
    inner.fail(inner.param("content"), "is missing", "missing_field");
  if (inner.ok() && content != nullptr) {
    if (content->is_string())
      message.content = content->get<std::string>();
    else if (content->is_array())
      message.content = read_parts(inner, *content, path + ".content");
    else
      inner.fail(inner.param("content"), "must be a string or a list of parts", "invalid_type");
  }
  fields.adopt(inner);
}

void read_messages(ApiFields& fields, const ApiLimits& limits, std::vector<ChatMessage>& messages) {
  const Json* list = fields.find("messages");
  if (list == nullptr) return fields.fail("messages", "is missing", "missing_field");
  if (!list->is_array() || list->empty())
    return fields.fail("messages", "must be a list of at least one message", "invalid_type");
  if (list->size() > limits.max_messages)
    return fields.fail("messages",
                       "must hold at most " + std::to_string(limits.max_messages) + " messages");
  messages.resize(list->size());
  for (size_t i = 0; i < messages.size() && fields.ok(); ++i)
    read_message(fields, (*list)[i], i, messages[i]);
}

void read_template_kwargs(ApiFields& fields, std::string& kwargs) {
  const Json* field = fields.find("chat_template_kwargs");
  if (field == nullptr) return;
  if (!field->is_object())
    return fields.fail("chat_template_kwargs", "must be an object", "invalid_type");
  if (!field->empty()) kwargs = dump_json(*field);
}

bool is_id_list(const Json& value) {
  return value.is_array() && !value.empty() && value[0].is_number();
}

void read_prompt(ApiFields& fields, const Json& value, const ApiLimits& limits,
                 std::vector<Prompt>& prompts) {
  if (value.is_string()) {
    prompts.emplace_back(value.get<std::string>());
  } else if (is_id_list(value)) {
    std::vector<int32_t> ids;
    if (fields.integers("prompt", value, limits.max_prompt_ids, ids))
      prompts.emplace_back(std::move(ids));
  } else {
    fields.fail("prompt", "must be a string, a list of token ids, or a list of these",
                "invalid_type");
  }
}

void read_prompts(ApiFields& fields, const ApiLimits& limits, CompletionRequest& request) {
  const Json* field = fields.find("prompt");
  if (field == nullptr) return fields.fail("prompt", "is missing", "missing_field");
  if (!field->is_array() || is_id_list(*field))
    return read_prompt(fields, *field, limits, request.prompts);
  if (field->empty()) return fields.fail("prompt", "is empty");
  const auto choices = static_cast<size_t>(limits.max_choices);
  if (field->size() * static_cast<size_t>(request.common.n) > choices)
    return fields.fail(
        "prompt", "and 'n' together ask for more than " + std::to_string(choices) + " choices");
  for (const Json& item : *field)
    if (fields.ok()) read_prompt(fields, item, limits, request.prompts);
}

void read_completion(ApiFields& fields, const ApiLimits& limits, CompletionRequest& request) {
  read_common(fields, limits, request.common);
  read_prompts(fields, limits, request);
  fields.integer("logprobs", request.common.sampling.logprobs, 0, limits.max_top_logprobs);
  fields.boolean("echo", request.echo);
  if (request.echo && request.common.sampling.logprobs >= 0)
    fields.refuse_unsupported("echo", "'echo' together with 'logprobs' is not supported");
  int32_t best_of = request.common.n;
  fields.integer("best_of", best_of, 1, limits.max_choices);
  if (best_of != request.common.n)
    fields.refuse_unsupported("best_of", "'best_of' other than 'n' is not supported");
  fields.unsupported({"suffix"});
}

void read_chat(ApiFields& fields, const ApiLimits& limits, ChatRequest& request) {
  read_common(fields, limits, request.common);
  read_chat_logprobs(fields, limits, request.common.sampling);
  read_tools(fields);
  read_messages(fields, limits, request.messages);
  read_template_kwargs(fields, request.chat_template_kwargs);
  fields.boolean("add_generation_prompt", request.add_generation_prompt);
}

void read_tokenize(ApiFields& fields, const ApiLimits& limits, TokenizeRequest& request) {
  request.has_messages = fields.find("messages") != nullptr;
  if (request.has_messages) read_messages(fields, limits, request.messages);
  const char* key = fields.find("content") != nullptr ? "content" : "prompt";
  if (!request.has_messages && fields.find(key) == nullptr)
    fields.fail("prompt", "is missing (or 'content', or 'messages')", "missing_field");
  if (!request.has_messages) fields.text(key, request.content, limits.max_tokenize_bytes);
  // vLLM's name and llama-server's.
  fields.boolean("add_special_tokens", request.add_special);
  fields.boolean("add_special", request.add_special);
  request.parse_special = !request.has_messages;
  fields.boolean("parse_special", request.parse_special);
  fields.boolean("with_pieces", request.with_pieces);
  fields.boolean("add_generation_prompt", request.add_generation_prompt);
}

void read_detokenize(ApiFields& fields, const ApiLimits& limits, std::vector<int32_t>& tokens) {
  const Json* list = fields.find("tokens");
  if (list == nullptr) return fields.fail("tokens", "is missing", "missing_field");
  if (!list->is_array())
    return fields.fail("tokens", "must be a list of token ids", "invalid_type");
  fields.integers("tokens", *list, limits.max_prompt_ids, tokens);
}

template <class T, class Read>
Parsed<T> parse(std::string_view body, const ApiLimits& limits, Read read) {
  Parsed<T> parsed;
  std::string reason;
  const std::optional<Json> json = parse_json(body, limits.max_json_depth, &reason);
  if (!json) {
    parsed.error.message = "the body is not valid JSON: " + reason;
    parsed.error.code = "invalid_json";
    return parsed;
  }
  ApiFields fields(*json);
  T value{};
  if (fields.ok()) read(fields, limits, value);
  if (fields.ok())
    parsed.value = std::move(value);
  else
    parsed.error = fields.error();
  return parsed;
}

}  // namespace

Parsed<ChatRequest> parse_chat_request(std::string_view body, const ApiLimits& limits) {
  return parse<ChatRequest>(body, limits, read_chat);
}

Parsed<CompletionRequest> parse_completion_request(std::string_view body, const ApiLimits& limits) {
  return parse<CompletionRequest>(body, limits, read_completion);
}

Parsed<TokenizeRequest> parse_tokenize_request(std::string_view body, const ApiLimits& limits) {
  return parse<TokenizeRequest>(body, limits, read_tokenize);
}

Parsed<std::vector<int32_t>> parse_detokenize_request(std::string_view body,
                                                      const ApiLimits& limits) {
  return parse<std::vector<int32_t>>(body, limits, read_detokenize);
}

}  // namespace akv::proto
