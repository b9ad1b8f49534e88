// Methods of strings, lists and mappings. Methods that change their object are left out, as in
// Jinja's sandbox.
#include <algorithm>
#include <unordered_map>

#include "common/model/jinja/builtin_args.h"
#include "common/model/jinja/text_ops.h"

namespace akv::model::jinja {
namespace {

using Table = std::unordered_map<std::string_view, Builtin>;

template <Sides kSides>
Result<Value> strip_method(Runtime& runtime, const Values& v) {
  AKV_ASSIGN_OR_RETURN(const Text* chars, text_arg(v[1], "chars"));
  std::string_view set;
  if (chars != nullptr) set = chars->bytes();
  return runtime.text(strip(v[0].as_text(), kSides, chars != nullptr ? &set : nullptr));
}

template <Text (*Map)(const Text&)>
Result<Value> map_method(Runtime& runtime, const Values& v) {
  return runtime.text(Map(v[0].as_text()));
}

Result<Value> texts(Runtime& runtime, std::vector<Text> parts) {
  List list;
  for (Text& part : parts) {
    AKV_ASSIGN_OR_RETURN(Value value, runtime.text(std::move(part)));
    list.push_back(std::move(value));
  }
  return runtime.list(std::move(list));
}

Result<Value> split_method(Runtime& runtime, const Values& v) {
  AKV_ASSIGN_OR_RETURN(const Text* separator, text_arg(v[1], "sep"));
  AKV_ASSIGN_OR_RETURN(const int64_t max_splits, integer_arg(v[2], -1, "maxsplit"));
  if (separator == nullptr) return texts(runtime, split(v[0].as_text(), nullptr, max_splits));
  if (separator->empty()) return type_error("split() by an empty separator");
  const std::string_view bytes = separator->bytes();
  return texts(runtime, split(v[0].as_text(), &bytes, max_splits));
}

Result<Value> split_lines_method(Runtime& runtime, const Values& v) {
  return texts(runtime, split_lines(v[0].as_text()));
}

// startswith and endswith take one string or a list of them.
template <bool (*Has)(std::string_view, std::string_view)>
Result<Value> affix_method(Runtime& runtime, const Values& v) {
  const List affixes = v[1].is_list() ? v[1].as_list() : List{v[1]};
  AKV_RETURN_IF_ERROR(runtime.charge(affixes.size()));
  for (const Value& affix : affixes) {
    AKV_ASSIGN_OR_RETURN(const Text* text, required_text(affix, "prefix"));
    if (Has(v[0].as_text().bytes(), text->bytes())) return Value::boolean(true);
  }
  return Value::boolean(false);
}
bool has_prefix(std::string_view s, std::string_view p) { return s.starts_with(p); }
bool has_suffix(std::string_view s, std::string_view p) { return s.ends_with(p); }

Result<Value> remove_prefix(Runtime& runtime, const Values& v) {
  AKV_ASSIGN_OR_RETURN(const Text* prefix, required_text(v[1], "prefix"));
  const Text& text = v[0].as_text();
  const size_t cut = text.bytes().starts_with(prefix->bytes()) ? prefix->size() : 0;
  return runtime.text(text.slice(cut, text.size()));
}

Result<Value> remove_suffix(Runtime& runtime, const Values& v) {
  AKV_ASSIGN_OR_RETURN(const Text* suffix, required_text(v[1], "suffix"));
  const Text& text = v[0].as_text();
  const size_t cut = text.bytes().ends_with(suffix->bytes()) ? suffix->size() : 0;
  return runtime.text(text.slice(0, text.size() - cut));
}

Result<Value> count_method(Runtime&, const Values& v) {
  AKV_ASSIGN_OR_RETURN(const Text* part, required_text(v[1], "sub"));
  const std::string& bytes = v[0].as_text().bytes();
  if (part->empty()) return Value::integer(static_cast<int64_t>(CharIndex(bytes).count()) + 1);
  int64_t n = 0;
  for (size_t at = bytes.find(part->bytes()); at != std::string::npos; ++n) {
    at = bytes.find(part->bytes(), at + part->size());
  }
  return Value::integer(n);
}

Result<Value> replace_method(Runtime& runtime, const Values& v) {
  AKV_ASSIGN_OR_RETURN(const Text* old, required_text(v[1], "old"));
  AKV_ASSIGN_OR_RETURN(const Text* fresh, required_text(v[2], "new"));
  AKV_ASSIGN_OR_RETURN(const int64_t count, integer_arg(v[3], -1, "count"));
  // Only where it grows: counting the places first costs a second search.
  if (fresh->size() > old->size()) {
    AKV_ASSIGN_OR_RETURN(const Value found, count_method(runtime, {v[0], v[1]}));
    AKV_RETURN_IF_ERROR(
        runtime.reserve_text(static_cast<size_t>(found.as_int()), fresh->size() - old->size()));
  }
  return runtime.text(replace(v[0].as_text(), old->bytes(), *fresh, count));
}

Result<Value> find_method_of_text(Runtime&, const Values& v) {
  AKV_ASSIGN_OR_RETURN(const Text* part, required_text(v[1], "sub"));
  const std::string& bytes = v[0].as_text().bytes();
  const size_t at = bytes.find(part->bytes());
  if (at == std::string::npos) return Value::integer(-1);
  return Value::integer(
      static_cast<int64_t>(CharIndex(std::string_view(bytes).substr(0, at)).count()));
}

Result<Value> join_method(Runtime& runtime, const Values& v) {
  AKV_ASSIGN_OR_RETURN(const List items, iterate(runtime, v[1]));
  Text joined;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is_text()) return type_error("join() of " + std::string(items[i].kind()));
    if (i > 0) joined.append(v[0].as_text());
    joined.append(items[i].as_text());
    if (joined.size() > runtime.limits().max_output_bytes) break;  // text() refuses it
  }
  return runtime.text(std::move(joined));
}

// All of the bytes pass, and there is one.
template <bool (*Passes)(char)>
Result<Value> all_method(Runtime&, const Values& v) {
  const std::string& s = v[0].as_text().bytes();
  return Value::boolean(!s.empty() && std::all_of(s.begin(), s.end(), Passes));
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_alnum(char c) { return is_digit(c) || is_letter(c); }
bool is_space(char c) { return is_python_space(static_cast<uint8_t>(c)) && c >= 0; }

Table text_methods() {
  Table t;
  const auto add = [&](std::string_view name, std::vector<std::string_view> params,
                       Result<Value> (*call)(Runtime&, const Values&)) {
    t[name] = Builtin{name, std::move(params), call};
  };
  add("strip", {"self", "chars"}, strip_method<Sides::kBoth>);
  add("lstrip", {"self", "chars"}, strip_method<Sides::kLeft>);
  add("rstrip", {"self", "chars"}, strip_method<Sides::kRight>);
  add("split", {"self", "sep", "maxsplit"}, split_method);
  add("splitlines", {"self"}, split_lines_method);
  add("startswith", {"self", "prefix"}, affix_method<has_prefix>);
  add("endswith", {"self", "suffix"}, affix_method<has_suffix>);
  add("removeprefix", {"self", "prefix"}, remove_prefix);
  add("removesuffix", {"self", "suffix"}, remove_suffix);
  add("upper", {"self"}, map_method<upper>);
  add("lower", {"self"}, map_method<lower>);
  add("title", {"self"}, map_method<title>);
  add("capitalize", {"self"}, map_method<capitalize>);
  add("replace", {"self", "old", "new", "count"}, replace_method);
  add("find", {"self", "sub"}, find_method_of_text);
  add("count", {"self", "sub"}, count_method);
  add("join", {"self", "iterable"}, join_method);
  add("isdigit", {"self"}, all_method<is_digit>);
  add("isalpha", {"self"}, all_method<is_letter>);
  add("isalnum", {"self"}, all_method<is_alnum>);
  add("isspace", {"self"}, all_method<is_space>);
  return t;
}

Result<Value> keys(Runtime& runtime, const Values& v) {
  AKV_ASSIGN_OR_RETURN(List list, iterate(runtime, v[0]));
  return runtime.list(std::move(list));
}

Result<Value> values(Runtime& runtime, const Values& v) {
  List list;
  for (const auto& item : v[0].as_dict().items) list.push_back(item.second);
  return runtime.list(std::move(list));
}

Result<Value> items(Runtime& runtime, const Values& v) {
  List list;
  for (const auto& [key, value] : v[0].as_dict().items) {
    AKV_ASSIGN_OR_RETURN(Value pair, runtime.list({Value::text(key), value}));
    list.push_back(pair.as_tuple());
  }
  return runtime.list(std::move(list));
}

Result<Value> get(Runtime&, const Values& v) {
  const Value* found = v[1].is_text() ? v[0].as_dict().find(v[1].as_text().bytes()) : nullptr;
  if (found != nullptr) return *found;
  return v[2].is_undefined() ? Value::none() : v[2];
}

Table dict_methods() {
  Table t;
  t["keys"] = Builtin{"keys", {"self"}, keys};
  t["values"] = Builtin{"values", {"self"}, values};
  t["items"] = Builtin{"items", {"self"}, items};
  t["get"] = Builtin{"get", {"self", "key", "default"}, get};
  return t;
}

Result<Value> index_of(Runtime& runtime, const Values& v) {
  const List& list = v[0].as_list();
  AKV_RETURN_IF_ERROR(runtime.charge(list.size()));
  const auto at = std::find(list.begin(), list.end(), v[1]);
  if (at == list.end()) return type_error("index() of what is not in the list");
  return Value::integer(at - list.begin());
}

Result<Value> count_in_list(Runtime& runtime, const Values& v) {
  const List& list = v[0].as_list();
  AKV_RETURN_IF_ERROR(runtime.charge(list.size()));
  return Value::integer(std::count(list.begin(), list.end(), v[1]));
}

Table list_methods() {
  Table t;
  t["index"] = Builtin{"index", {"self", "value"}, index_of};
  t["count"] = Builtin{"count", {"self", "value"}, count_in_list};
  return t;
}

}  // namespace

const Builtin* find_method(const Value& object, std::string_view name) {
  static const Table of_text = text_methods(), of_dict = dict_methods(), of_list = list_methods();
  const Table* table = object.is_text()                             ? &of_text
                       : object.is_list()                           ? &of_list
                       : object.is_dict() && !object.is_namespace() ? &of_dict
                                                                    : nullptr;
  if (table == nullptr) return nullptr;
  const auto at = table->find(name);
  return at == table->end() ? nullptr : &at->second;
}

}  // namespace akv::model::jinja
