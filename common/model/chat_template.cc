#include "common/model/chat_template.h"

#include <algorithm>

#include "common/model/builtin_templates.h"
#include "common/model/jinja/interpreter.h"
#include "common/model/jinja/parser.h"

namespace akv::model {
namespace {

using jinja::Text;
using jinja::Value;

constexpr size_t kMaxSourceBytes = 1 << 20;
constexpr std::string_view kRoles[] = {"system",    "user",     "assistant", "tool",
                                       "developer", "function", "ipython"};
constexpr std::string_view kReserved[] = {"messages", "add_generation_prompt", "bos_token",
                                          "eos_token"};

template <class Range>
bool is_among(const Range& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Value message_value(const ChatMessage& message) {
  jinja::Dict dict;
  const bool usual_role = is_among(kRoles, message.role);
  dict.items.emplace_back(Text::literal("role"), Value::text(Text(message.role, usual_role)));
  dict.items.emplace_back(Text::literal("content"), Value::foreign(message.content));
  if (message.extra.is_dict()) {
    for (const auto& [key, value] : message.extra.as_dict().items) {
      if (key.bytes() != "role" && key.bytes() != "content") dict.items.emplace_back(key, value);
    }
  }
  return Value::dict(std::move(dict));
}

Result<jinja::Variables> variables_of(const ChatTemplate::Inputs& inputs) {
  jinja::Variables variables = jinja::global_functions();
  if (inputs.extra.is_dict()) {
    for (const auto& [key, value] : inputs.extra.as_dict().items) {
      if (is_among(kReserved, key.bytes())) {
        return make_error(Code::kInvalidArgument,
                          "\"" + key.bytes() + "\" cannot be set by chat_template_kwargs",
                          "chat_template_kwargs");
      }
      variables.emplace_back(key.bytes(), value);
    }
  }
  jinja::List messages;
  for (const ChatMessage& message : inputs.messages) messages.push_back(message_value(message));
  variables.emplace_back("messages", Value::list(std::move(messages)));
  variables.emplace_back("add_generation_prompt", Value::boolean(inputs.add_generation_prompt));
  variables.emplace_back("bos_token", Value::literal(inputs.bos_token));
  variables.emplace_back("eos_token", Value::literal(inputs.eos_token));
  return variables;
}

}  // namespace

struct ChatTemplate::Impl {
  jinja::Block block;
  ChatTemplateLimits limits;
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, ChatTemplateLimits limits) {
  if (source.size() > kMaxSourceBytes) {
    return make_error(Code::kInvalidArgument,
                      "a template of " + std::to_string(source.size()) +
                          " bytes is over the limit of " + std::to_string(kMaxSourceBytes),
                      "chat_template");
  }
  auto impl = std::make_unique<Impl>();
  impl->limits = limits;
  AKV_ASSIGN_OR_RETURN(impl->block, jinja::parse_template(source, limits.max_depth));
  return ChatTemplate(std::move(impl));
}

Result<ChatTemplate> ChatTemplate::builtin(std::string_view name) {
  std::string known;
  for (const BuiltinTemplate& t : builtin_templates()) {
    if (t.name == name) return parse(t.source);
    known += " " + std::string(t.name);
  }
  return make_error(Code::kNotFound,
                    "no chat template \"" + std::string(name) + "\"; built in are" + known,
                    "chat_template");
}

std::vector<std::string_view> ChatTemplate::builtin_names() {
  std::vector<std::string_view> names;
  for (const BuiltinTemplate& t : builtin_templates()) names.push_back(t.name);
  return names;
}

Result<std::vector<Segment>> ChatTemplate::render(const Inputs& inputs) const {
  AKV_ASSIGN_OR_RETURN(const jinja::Variables variables, variables_of(inputs));
  const ChatTemplateLimits& l = impl_->limits;
  jinja::Runtime runtime({l.max_steps, l.max_output_bytes, l.max_depth}, inputs.now_unix_s);
  AKV_ASSIGN_OR_RETURN(const Text text, jinja::render(impl_->block, variables, runtime));
  std::vector<Segment> segments;
  size_t begin = 0;
  for (const Text::Run run : text.runs()) {
    segments.push_back({text.bytes().substr(begin, run.end - begin), run.literal});
    begin = run.end;
  }
  return segments;
}

std::vector<int32_t> encode_chat(const Tokenizer& tokenizer, std::span<const Segment> segments) {
  std::vector<int32_t> ids;
  for (const Segment& segment : segments) {
    const auto part = tokenizer.encode(segment.text, false, segment.literal);
    ids.insert(ids.end(), part.begin(), part.end());
  }
  const bool has_bos = !ids.empty() && ids.front() == tokenizer.bos();
  if (tokenizer.add_bos() && !has_bos) ids.insert(ids.begin(), tokenizer.bos());
  return ids;
}

}  // namespace akv::model
