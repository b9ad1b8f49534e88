#include "decode_node/api/prompt.h"

#include <ctime>
#include <utility>

#include "common/model/chat_template.h"
#include "common/model/tokenizer.h"
#include "decode_node/api/errors.h"

namespace akv::decode::api {
namespace {

proto::ApiError invalid(std::string message, std::string param, std::string code) {
  return {400, std::move(message), "invalid_request_error", std::move(code), std::move(param)};
}

template <class T>
proto::Parsed<T> failed(proto::ApiError error) {
  return {std::nullopt, std::move(error)};
}

std::string_view piece_or_empty(const model::Tokenizer& tokenizer, int32_t token) {
  return token < 0 ? std::string_view{} : tokenizer.piece(token);
}

// First id outside of the vocabulary, or -1.
int32_t foreign_id(const ModelInfo& model, const std::vector<int32_t>& ids) {
  for (const int32_t id : ids)
    if (id < 0 || id >= model.vocab) return id;
  return -1;
}

proto::ApiError outside_vocabulary(const ModelInfo& model, int32_t id, const char* param) {
  return invalid("'" + std::string(param) + "' holds token " + std::to_string(id) +
                     ", but the vocabulary ends at " + std::to_string(model.vocab - 1),
                 param, "invalid_value");
}

// Rendering and tokenising take time in proportion to the text: none is spent on what cannot fit.
std::optional<proto::ApiError> far_too_long(const ModelInfo& model, int64_t fewest,
                                            const char* param) {
  if (fewest <= model.context_length) return std::nullopt;
  return api_error(make_error(Code::kContextLength,
                              "the context is " + std::to_string(model.context_length) +
                                  " tokens, but the prompt has at least " + std::to_string(fewest),
                              param));
}

int64_t fewest_tokens(const ModelInfo& model, const std::vector<proto::ChatMessage>& messages) {
  int64_t fewest = 0;
  for (const proto::ChatMessage& message : messages)
    fewest += model.tokenizer->fewest_tokens(message.content);
  return fewest;
}

Result<model::jinja::Value> template_extra(const std::string& kwargs) {
  if (kwargs.empty()) return model::jinja::Value();
  return model::jinja::value_from_json(kwargs);
}

std::vector<model::ChatMessage> template_messages(const std::vector<proto::ChatMessage>& messages) {
  std::vector<model::ChatMessage> converted;
  converted.reserve(messages.size());
  for (const proto::ChatMessage& message : messages) {
    model::ChatMessage out;
    out.role = message.role;
    out.content = message.content;
    if (!message.name.empty()) {
      model::jinja::Dict extra;
      extra.set(model::jinja::Text::literal("name"), model::jinja::Value::foreign(message.name));
      out.extra = model::jinja::Value::dict(std::move(extra));
    }
    converted.push_back(std::move(out));
  }
  return converted;
}

}  // namespace

proto::Parsed<PromptIds> chat_prompt(const ModelInfo& model,
                                     const std::vector<proto::ChatMessage>& messages,
                                     const std::string& chat_template_kwargs,
                                     bool add_generation_prompt) {
  if (model.chat_template == nullptr)
    return failed<PromptIds>(invalid("the model has no chat template; use /v1/completions",
                                     "messages", "no_chat_template"));
  if (auto error = far_too_long(model, fewest_tokens(model, messages), "messages"))
    return failed<PromptIds>(std::move(*error));
  auto extra = template_extra(chat_template_kwargs);
  if (!extra.ok())
    return failed<PromptIds>(
        invalid(extra.error().message, "chat_template_kwargs", "invalid_value"));
  const std::vector<model::ChatMessage> converted = template_messages(messages);
  model::ChatTemplate::Inputs inputs;
  inputs.messages = converted;
  inputs.add_generation_prompt = add_generation_prompt;
  inputs.bos_token = piece_or_empty(*model.tokenizer, model.tokenizer->bos());
  inputs.eos_token = piece_or_empty(*model.tokenizer, model.tokenizer->eos());
  inputs.extra = std::move(extra).value();
  inputs.now_unix_s = std::time(nullptr);
  const auto segments = model.chat_template->render(inputs);
  if (!segments.ok())
    return failed<PromptIds>(invalid("the chat template refuses: " + segments.error().message,
                                     "messages", "template_error"));
  return {model::encode_chat(*model.tokenizer, *segments), {}};
}

proto::Parsed<PromptIds> completion_prompt(const ModelInfo& model, const proto::Prompt& prompt) {
  PromptIds ids;
  if (const auto* text = std::get_if<std::string>(&prompt)) {
    if (auto error = far_too_long(model, model.tokenizer->fewest_tokens(*text), "prompt"))
      return failed<PromptIds>(std::move(*error));
    ids = model.tokenizer->encode(*text, true, true);
  } else {
    ids = std::get<PromptIds>(prompt);
    if (const int32_t id = foreign_id(model, ids); id >= 0)
      return failed<PromptIds>(outside_vocabulary(model, id, "prompt"));
  }
  if (ids.empty()) return failed<PromptIds>(invalid("'prompt' is empty", "prompt", "empty_prompt"));
  return {std::move(ids), {}};
}

proto::Parsed<PromptIds> tokenize(const ModelInfo& model, const proto::TokenizeRequest& request) {
  if (!request.has_messages)
    return {model.tokenizer->encode(request.content, request.add_special, request.parse_special),
            {}};
  return chat_prompt(model, request.messages, "", request.add_generation_prompt);
}

proto::Parsed<int32_t> output_budget(const ModelInfo& model, int64_t prompt_tokens,
                                     std::optional<int32_t> max_tokens) {
  const int64_t room = model.context_length - prompt_tokens;
  if (room >= 1 && (!max_tokens || *max_tokens <= room))
    return {max_tokens.value_or(static_cast<int32_t>(room)), {}};
  std::string message = "the context is " + std::to_string(model.context_length) +
                        " tokens, but the prompt has " + std::to_string(prompt_tokens);
  if (max_tokens) message += " and max_tokens is " + std::to_string(*max_tokens);
  const Error error = make_error(Code::kContextLength, message, room < 1 ? "prompt" : "max_tokens");
  return failed<int32_t>(api_error(error));
}

proto::ApiError unknown_model(const ModelInfo& model, const std::string& asked) {
  return {404, "the model '" + asked + "' is not served here, '" + model.name + "' is",
          "not_found_error", "model_not_found", "model"};
}

proto::ApiError check_common(const ModelInfo& model, const proto::CommonFields& common) {
  if (!common.model.empty() && common.model != model.name)
    return unknown_model(model, common.model);
  const proto::Sampling& sampling = common.sampling;
  if (const int32_t id = foreign_id(model, sampling.stop_token_ids); id >= 0)
    return outside_vocabulary(model, id, "stop_token_ids");
  for (const auto& [id, bias] : sampling.logit_bias)
    if (id >= model.vocab) return outside_vocabulary(model, id, "logit_bias");
  return {0, "", "", "", ""};
}

}  // namespace akv::decode::api
