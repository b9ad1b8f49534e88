// The tests behind "is".
#include <algorithm>
#include <unordered_map>

#include "common/model/jinja/runtime.h"
#include "common/model/jinja/text_ops.h"

namespace akv::model::jinja {
namespace {

using Values = std::vector<Value>;

// A test that looks at the value's kind alone.
template <bool (*Predicate)(const Value&)>
Result<Value> kind_test(Runtime&, const Values& v) {
  return Value::boolean(Predicate(v[0]));
}

template <Result<bool> (*Compare)(const Value&, const Value&)>
Result<Value> compare_test(Runtime&, const Values& v) {
  AKV_ASSIGN_OR_RETURN(const bool holds, Compare(v[0], v[1]));
  return Value::boolean(holds);
}

Result<int64_t> integer_of(const Value& v) {
  if (v.is_int() || v.is_bool()) return v.as_int();
  return type_error(std::string(v.kind()) + " is no integer");
}

Result<Value> odd(Runtime&, const Values& v) {
  AKV_ASSIGN_OR_RETURN(const int64_t i, integer_of(v[0]));
  return Value::boolean(i % 2 != 0);
}

Result<Value> even(Runtime&, const Values& v) {
  AKV_ASSIGN_OR_RETURN(const int64_t i, integer_of(v[0]));
  return Value::boolean(i % 2 == 0);
}

Result<Value> divisible_by(Runtime&, const Values& v) {
  AKV_ASSIGN_OR_RETURN(const int64_t i, integer_of(v[0]));
  AKV_ASSIGN_OR_RETURN(const int64_t by, integer_of(v[1]));
  if (by == 0) return type_error("division by zero");
  return Value::boolean(by == -1 || i % by == 0);
}

Result<Value> in(Runtime& runtime, const Values& v) {
  AKV_RETURN_IF_ERROR(runtime.charge(v[1].is_list() ? v[1].as_list().size() : 1));
  AKV_ASSIGN_OR_RETURN(const bool holds, contains(v[1], v[0]));
  return Value::boolean(holds);
}

bool is_defined(const Value& v) { return !v.is_undefined(); }
bool is_undefined(const Value& v) { return v.is_undefined(); }
bool is_none(const Value& v) { return v.is_none(); }
bool is_boolean(const Value& v) { return v.is_bool(); }
bool is_true(const Value& v) { return v.is_bool() && v.as_bool(); }
bool is_false(const Value& v) { return v.is_bool() && !v.as_bool(); }
bool is_integer(const Value& v) { return v.is_int(); }
bool is_float(const Value& v) { return v.is_real(); }
bool is_number(const Value& v) { return v.is_number(); }
bool is_string(const Value& v) { return v.is_text(); }
bool is_callable(const Value& v) { return v.is_function(); }
bool is_sequence(const Value& v) { return v.is_text() || v.is_list() || v.is_dict(); }
bool is_iterable(const Value& v) { return is_sequence(v) || v.is_undefined(); }
bool is_mapping(const Value& v) { return v.is_dict() && !v.is_namespace(); }
bool has_letter(const Value& v) { return !(lower(v.as_text()) == upper(v.as_text())); }
bool is_lower(const Value& v) {
  return v.is_text() && has_letter(v) && lower(v.as_text()) == v.as_text();
}
bool is_upper(const Value& v) {
  return v.is_text() && has_letter(v) && upper(v.as_text()) == v.as_text();
}

Result<bool> eq(const Value& a, const Value& b) { return a == b; }
Result<bool> ne(const Value& a, const Value& b) { return !(a == b); }
Result<bool> gt(const Value& a, const Value& b) { return less(b, a); }
Result<bool> le(const Value& a, const Value& b) {
  AKV_ASSIGN_OR_RETURN(const bool greater, less(b, a));
  return !greater;
}
Result<bool> ge(const Value& a, const Value& b) {
  AKV_ASSIGN_OR_RETURN(const bool smaller, less(a, b));
  return !smaller;
}

using Call = Result<Value> (*)(Runtime&, const Values&);

std::unordered_map<std::string_view, Builtin> make_table() {
  std::unordered_map<std::string_view, Builtin> table;
  const auto unary = [&](std::string_view name, Call call) {
    table[name] = Builtin{name, {"value"}, call};
  };
  const auto binary = [&](std::initializer_list<std::string_view> names, Call call) {
    for (const auto name : names) table[name] = Builtin{name, {"value", "other"}, call};
  };
  unary("defined", kind_test<is_defined>);
  unary("undefined", kind_test<is_undefined>);
  unary("none", kind_test<is_none>);
  unary("boolean", kind_test<is_boolean>);
  unary("true", kind_test<is_true>);
  unary("false", kind_test<is_false>);
  unary("integer", kind_test<is_integer>);
  unary("float", kind_test<is_float>);
  unary("number", kind_test<is_number>);
  unary("string", kind_test<is_string>);
  unary("mapping", kind_test<is_mapping>);
  unary("sequence", kind_test<is_sequence>);
  unary("iterable", kind_test<is_iterable>);
  unary("callable", kind_test<is_callable>);
  unary("lower", kind_test<is_lower>);
  unary("upper", kind_test<is_upper>);
  unary("odd", odd);
  unary("even", even);
  binary({"divisibleby"}, divisible_by);
  binary({"in"}, in);
  binary({"eq", "equalto", "=="}, compare_test<eq>);
  binary({"ne", "!="}, compare_test<ne>);
  binary({"lt", "lessthan", "<"}, compare_test<less>);
  binary({"gt", "greaterthan", ">"}, compare_test<gt>);
  binary({"le", "<="}, compare_test<le>);
  binary({"ge", ">="}, compare_test<ge>);
  return table;
}

}  // namespace

const Builtin* find_test(std::string_view name) {
  static const auto table = make_table();
  const auto at = table.find(name);
  return at == table.end() ? nullptr : &at->second;
}

}  // namespace akv::model::jinja
