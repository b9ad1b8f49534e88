#include "common/model/jinja/runtime.h"

#include <algorithm>

namespace akv::model::jinja {
namespace {

// All texts made on the way may together be this many times the output's limit.
constexpr size_t kWorkPerOutput = 8;

Error too_much(std::string what) {
  return make_error(Code::kResourceExhausted, std::move(what), "chat_template");
}

}  // namespace

Status Runtime::charge(size_t steps) {
  // Saturating: a list of 2^62 must not wrap the count.
  const auto left = static_cast<size_t>(limits_.max_steps - steps_);
  if (steps > left) {
    return too_much("rendering takes more than " + std::to_string(limits_.max_steps) + " steps");
  }
  steps_ += static_cast<int64_t>(steps);
  return {};
}

Status Runtime::reserve_text(size_t times, size_t bytes) const {
  if (times == 0 || bytes <= limits_.max_output_bytes / times) return {};
  return too_much("rendering makes more text than the limit of " +
                  std::to_string(limits_.max_output_bytes) + " bytes allows");
}

Result<Value> Runtime::text(Text text) {
  text_bytes_ += text.size();
  AKV_RETURN_IF_ERROR(reserve_text(1, text.size()));
  AKV_RETURN_IF_ERROR(reserve_text(1, text_bytes_ / kWorkPerOutput));
  return Value::text(std::move(text));
}

Status Runtime::check_depth(const Value& value) const {
  if (value.depth() > limits_.max_depth) {
    return too_much("a value is nested deeper than " + std::to_string(limits_.max_depth));
  }
  return {};
}

Result<Value> Runtime::list(List list) {
  AKV_RETURN_IF_ERROR(charge(list.size()));
  // A namespace that could contain itself would never be freed.
  const bool holds_namespace =
      std::any_of(list.begin(), list.end(), [](const Value& v) { return v.is_namespace(); });
  if (holds_namespace) return type_error("a namespace cannot be put into a list");
  Value value = Value::list(std::move(list));
  AKV_RETURN_IF_ERROR(check_depth(value));
  return value;
}

Result<Value> Runtime::dict(Dict dict) {
  AKV_RETURN_IF_ERROR(charge(dict.items.size()));
  const bool holds_namespace = std::any_of(dict.items.begin(), dict.items.end(),
                                           [](auto& item) { return item.second.is_namespace(); });
  if (holds_namespace) return type_error("a namespace cannot be put into a mapping");
  Value value = Value::dict(std::move(dict));
  AKV_RETURN_IF_ERROR(check_depth(value));
  return value;
}

Error type_error(std::string message) {
  return make_error(Code::kInvalidArgument, std::move(message), "chat_template");
}

Result<Value> call_builtin(Runtime& runtime, const Builtin& builtin, const Args& args) {
  AKV_RETURN_IF_ERROR(runtime.charge(1));
  if (builtin.call_raw != nullptr) return builtin.call_raw(runtime, args);
  const auto who = [&] { return "\"" + std::string(builtin.name) + "\""; };
  if (args.positional.size() > builtin.params.size()) {
    return type_error(who() + " takes " + std::to_string(builtin.params.size() - 1) +
                      " arguments at most");
  }
  std::vector<Value> bound = args.positional;
  bound.resize(builtin.params.size());
  for (const auto& [name, value] : args.named) {
    const auto at = std::find(builtin.params.begin(), builtin.params.end(), name);
    if (at == builtin.params.end()) {
      return type_error(who() + " has no argument \"" + name + "\"");
    }
    bound[static_cast<size_t>(at - builtin.params.begin())] = value;
  }
  return builtin.call(runtime, bound);
}

}  // namespace akv::model::jinja
