// Values of the template language.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/result.h"
#include "common/model/jinja/text.h"

namespace akv::model::jinja {

class Value;
using List = std::vector<Value>;

// In insertion order, as Python's; small, so looked up linearly.
struct Dict {
  std::vector<std::pair<Text, Value>> items;
  bool is_namespace = false;  // namespace(...): the one kind of value that `set` can change

  const Value* find(std::string_view key) const;
  void set(const Text& key, Value value);
};

struct Function;  // macro or built-in; see runtime.h

// Cheap to copy: lists and dicts are shared. Only a namespace is ever changed after it was made.
class Value {
 public:
  struct Undefined {
    std::string name;  // for the message if it is used
  };
  Value() : v_(Undefined{}) {}
  static Value undefined(std::string name) { return Value(Undefined{std::move(name)}); }
  static Value none() { return Value(nullptr); }
  static Value boolean(bool b) { return Value(b); }
  static Value integer(int64_t i) { return Value(i); }
  static Value real(double d) { return Value(d); }
  static Value text(Text t) { return Value(std::make_shared<const Text>(std::move(t))); }
  // Text of a request: never recognised as control tokens.
  static Value foreign(std::string_view s) { return text(Text::foreign(s)); }
  static Value literal(std::string_view s) { return text(Text::literal(s)); }
  static Value list(List l);
  static Value dict(Dict d);
  static Value function(std::shared_ptr<const Function> f) { return Value(std::move(f)); }

  bool is_undefined() const { return std::holds_alternative<Undefined>(v_); }
  bool is_none() const { return std::holds_alternative<std::nullptr_t>(v_); }
  bool is_bool() const { return std::holds_alternative<bool>(v_); }
  bool is_int() const { return std::holds_alternative<int64_t>(v_); }
  bool is_real() const { return std::holds_alternative<double>(v_); }
  bool is_number() const { return is_bool() || is_int() || is_real(); }
  bool is_text() const { return std::holds_alternative<std::shared_ptr<const Text>>(v_); }
  bool is_list() const { return std::holds_alternative<std::shared_ptr<const List>>(v_); }
  bool is_dict() const { return std::holds_alternative<std::shared_ptr<Dict>>(v_); }
  bool is_function() const { return std::holds_alternative<std::shared_ptr<const Function>>(v_); }

  // REQUIRES: the matching is_...().
  bool as_bool() const { return std::get<bool>(v_); }
  int64_t as_int() const;  // bool or int
  double as_real() const;  // any number
  const Text& as_text() const { return *std::get<std::shared_ptr<const Text>>(v_); }
  const List& as_list() const { return *std::get<std::shared_ptr<const List>>(v_); }
  const Dict& as_dict() const { return *std::get<std::shared_ptr<Dict>>(v_); }
  Dict& as_mutable_dict() const { return *std::get<std::shared_ptr<Dict>>(v_); }
  const Function& as_function() const { return *std::get<std::shared_ptr<const Function>>(v_); }
  const std::string& undefined_name() const { return std::get<Undefined>(v_).name; }

  // A list that prints as Python's tuple; nothing else tells the two apart.
  Value as_tuple() const {
    Value copy = *this;
    copy.is_tuple_ = true;
    return copy;
  }
  bool is_tuple() const { return is_tuple_; }
  bool is_namespace() const { return is_dict() && as_dict().is_namespace; }
  // Levels of lists and dicts inside each other, 0 for scalars; at most 255 is told apart. The
  // evaluator keeps it small, so that recursion over a value is bounded.
  int depth() const { return depth_; }

  bool truthy() const;
  // "string", "mapping" and so on, for messages.
  std::string_view kind() const;
  // Python's ==: 1 == 1.0 == True, origins of text do not count.
  friend bool operator==(const Value& a, const Value& b);

 private:
  using Variant = std::variant<Undefined, std::nullptr_t, bool, int64_t, double,
                               std::shared_ptr<const Text>, std::shared_ptr<const List>,
                               std::shared_ptr<Dict>, std::shared_ptr<const Function>>;
  explicit Value(Variant v, uint8_t depth = 0) : v_(std::move(v)), depth_(depth) {}
  Variant v_;
  uint8_t depth_ = 0;
  bool is_tuple_ = false;
};

// Parses JSON text (a request's chat_template_kwargs, tools, ...): every string in it is foreign.
// kInvalidArgument for bad JSON or nesting deeper than 64.
Result<Value> value_from_json(std::string_view json);

}  // namespace akv::model::jinja
