// What built-in filters, tests, methods and functions see of a rendering.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/model/jinja/value.h"

namespace akv::model::jinja {

struct Limits {
  int64_t max_steps;
  size_t max_output_bytes;
  int max_depth;
};

// One rendering's bounds and clock. Not thread-safe.
class Runtime {
 public:
  Runtime(const Limits& limits, int64_t now_unix_s) : limits_(limits), now_unix_s_(now_unix_s) {}

  // Counts work; kResourceExhausted once it is too much.
  Status charge(size_t steps);
  // Every text made passes here: counts its bytes and bounds it.
  Result<Value> text(Text text);
  // To be asked before making a text of `times` parts that may be far longer than what it is made
  // of: an error if it can exceed the output's limit.
  Status reserve_text(size_t times, size_t bytes) const;
  // The same for lists and dicts: bounds their depth and counts their elements.
  Result<Value> list(List list);
  Result<Value> dict(Dict dict);

  const Limits& limits() const { return limits_; }
  int64_t now_unix_s() const { return now_unix_s_; }

 private:
  Status check_depth(const Value& value) const;

  Limits limits_;
  int64_t now_unix_s_;
  int64_t steps_ = 0;
  size_t text_bytes_ = 0;
};

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// A filter, test, method or global function.
struct Builtin {
  std::string_view name;
  // Parameters in order; the first is what stands before the | or the dot. Arguments are bound to
  // them by position and name; those left out are undefined. Empty: takes `Args` as they are.
  std::vector<std::string_view> params;
  Result<Value> (*call)(Runtime&, const std::vector<Value>&) = nullptr;
  Result<Value> (*call_raw)(Runtime&, const Args&) = nullptr;
};

// Binds the arguments and calls. kInvalidArgument names a parameter that does not exist.
Result<Value> call_builtin(Runtime& runtime, const Builtin& builtin, const Args& args);

// A callable value: macro, method bound to its object, global function.
struct Function {
  std::string name;
  std::function<Result<Value>(Runtime&, const Args&)> call;
};

// Null if this subset has none of that name.
const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
// Method of a string, list or mapping.
const Builtin* find_method(const Value& object, std::string_view name);
// Namespace(), range(), raise_exception() and so on, as values.
std::vector<std::pair<std::string, Value>> global_functions();
// The error param that raise_exception leaves: its message is the template's own.
inline constexpr std::string_view kRaised = "chat_template.raise_exception";

// Operations of the language, shared by evaluator and built-ins. `op` for messages.
Error type_error(std::string message);
Result<Value> add(Runtime& runtime, const Value& a, const Value& b);
Result<bool> less(const Value& a, const Value& b);
Result<bool> contains(const Value& container, const Value& item);
// Elements of a list, keys of a mapping, characters of a string, nothing of an undefined value.
Result<List> iterate(Runtime& runtime, const Value& value);
// value.name and value[key]: methods and keys; undefined if there is none.
Result<Value> get_attribute(const Value& value, std::string_view name);
Result<Value> get_item(const Value& value, const Value& key);

// What {{ value }} prints: Python's str(). Text keeps its origins; other values that hold text of
// a request become foreign as a whole.
Result<Text> to_text(const Value& value);
struct JsonStyle {
  int indent = -1;  // none
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
// Python's json.dumps(), as Hugging Face's tojson filter.
Result<Text> to_json(const Value& value, const JsonStyle& style);

}  // namespace akv::model::jinja
