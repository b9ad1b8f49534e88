// Filters of one value.
#include "common/model/jinja/filters.h"

#include <charconv>
#include <cmath>

#include "common/model/jinja/builtin_args.h"
#include "common/model/jinja/text_ops.h"

namespace akv::model::jinja {
namespace {

// The value as text, as filters of strings take it (Jinja's soft_str).
Result<Text> soft_text(const Value& v) { return to_text(v); }

Result<Value> trim(Runtime& runtime, const Values& v) {
  AKV_ASSIGN_OR_RETURN(const Text text, soft_text(v[0]));
  AKV_ASSIGN_OR_RETURN(const Text* chars, text_arg(v[1], "chars"));
  std::string_view set;
  if (chars != nullptr) set = chars->bytes();
  return runtime.text(strip(text, Sides::kBoth, chars != nullptr ? &set : nullptr));
}

template <Text (*Map)(const Text&)>
Result<Value> map_text(Runtime& runtime, const Values& v) {
  AKV_ASSIGN_OR_RETURN(const Text text, soft_text(v[0]));
  return runtime.text(Map(text));
}

Text same(const Text& text) { return text; }

Result<Value> replace_filter(Runtime& runtime, const Values& v) {
  AKV_ASSIGN_OR_RETURN(Text text, soft_text(v[0]));
  AKV_ASSIGN_OR_RETURN(Text old, soft_text(v[1]));
  AKV_ASSIGN_OR_RETURN(Text fresh, soft_text(v[2]));
  Args args;
  args.positional = {Value::text(std::move(text)), Value::text(std::move(old)),
                     Value::text(std::move(fresh))};
  if (!v[3].is_undefined() && !v[3].is_none()) args.positional.push_back(v[3]);
  return call_builtin(runtime, *find_method(args.positional[0], "replace"), args);
}

Result<Value> default_filter(Runtime&, const Values& v) {
  AKV_ASSIGN_OR_RETURN(const bool replaces_falsy, flag_arg(v[2], false));
  if (!v[0].is_undefined() && (!replaces_falsy || v[0].truthy())) return v[0];
  return v[1].is_undefined() ? Value::literal("") : v[1];
}

Result<Value> length(Runtime&, const Values& v) {
  if (v[0].is_text()) {
    return Value::integer(static_cast<int64_t>(CharIndex(v[0].as_text().bytes()).count()));
  }
  if (v[0].is_list()) return Value::integer(static_cast<int64_t>(v[0].as_list().size()));
  if (v[0].is_dict()) return Value::integer(static_cast<int64_t>(v[0].as_dict().items.size()));
  if (v[0].is_undefined()) return Value::integer(0);
  return type_error(std::string(v[0].kind()) + " has no length");
}

Result<JsonStyle> json_style(const Values& v) {
  JsonStyle style;
  AKV_ASSIGN_OR_RETURN(const int64_t indent,
                       integer_arg(v[1].is_none() ? Value() : v[1], -1, "indent"));
  if (indent > 16) return type_error("\"indent\" is 16 at most");
  style.indent = static_cast<int>(std::max<int64_t>(indent, -1));
  AKV_ASSIGN_OR_RETURN(style.ensure_ascii, flag_arg(v[2], false));
  AKV_ASSIGN_OR_RETURN(style.sort_keys, flag_arg(v[3], false));
  if (v[4].is_undefined() || v[4].is_none()) return style;
  if (!v[4].is_list() || v[4].as_list().size() != 2) {
    return type_error("\"separators\" must be two strings");
  }
  AKV_ASSIGN_OR_RETURN(const Text* item, required_text(v[4].as_list()[0], "separators"));
  AKV_ASSIGN_OR_RETURN(const Text* key, required_text(v[4].as_list()[1], "separators"));
  style.item_separator = item->bytes();
  style.key_separator = key->bytes();
  return style;
}

Result<Value> tojson(Runtime& runtime, const Values& v) {
  AKV_ASSIGN_OR_RETURN(const JsonStyle style, json_style(v));
  AKV_ASSIGN_OR_RETURN(Text json, to_json(v[0], style));
  return runtime.text(std::move(json));
}

Result<Value> indent(Runtime& runtime, const Values& v) {
  AKV_ASSIGN_OR_RETURN(Text text, soft_text(v[0]));
  Text width = Text::literal("    ");
  if (v[1].is_text()) {
    width = v[1].as_text();
  } else if (!v[1].is_undefined()) {
    AKV_ASSIGN_OR_RETURN(const int64_t n, integer_arg(v[1], 4, "width"));
    if (n < 0 || n > 256) return type_error("\"width\" must be in [0, 256]");
    width = Text::literal(std::string(static_cast<size_t>(n), ' '));
  }
  text.append("\n", true);  // as Jinja does, so that a last empty line counts
  const std::vector<Text> lines = split_lines(text);
  AKV_RETURN_IF_ERROR(runtime.reserve_text(lines.size(), width.size()));
  Text out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append("\n", true);
    const bool indents = i == 0 ? v[2].truthy() : v[3].truthy() || !lines[i].empty();
    if (indents) out.append(width);
    out.append(lines[i]);
  }
  return runtime.text(std::move(out));
}

// The number that all of the text spells, less whitespace around it.
template <class T>
bool parse_number(const Text& text, T& out) {
  const Text stripped = strip(text, Sides::kBoth, nullptr);
  std::string_view s = stripped.bytes();
  if (s.starts_with("+")) s.remove_prefix(1);
  const auto result = std::from_chars(s.data(), s.data() + s.size(), out);
  return result.ec == std::errc() && result.ptr == s.data() + s.size();
}

Result<Value> int_filter(Runtime&, const Values& v) {
  const Value fallback = v[1].is_undefined() ? Value::integer(0) : v[1];
  double real = 0;
  int64_t integer = 0;
  if (v[0].is_int() || v[0].is_bool()) return Value::integer(v[0].as_int());
  if (v[0].is_text() && parse_number(v[0].as_text(), integer)) return Value::integer(integer);
  if (v[0].is_real()) {
    real = v[0].as_real();
  } else if (!v[0].is_text() || !parse_number(v[0].as_text(), real)) {
    return fallback;
  }
  if (!(std::fabs(real) < 9e18)) return fallback;
  return Value::integer(static_cast<int64_t>(real));
}

Result<Value> float_filter(Runtime&, const Values& v) {
  double real = 0;
  if (v[0].is_number()) return Value::real(v[0].as_real());
  if (v[0].is_text() && parse_number(v[0].as_text(), real)) return Value::real(real);
  return v[1].is_undefined() ? Value::real(0) : v[1];
}

Result<Value> abs_filter(Runtime&, const Values& v) {
  if (v[0].is_real()) return Value::real(std::fabs(v[0].as_real()));
  if (!v[0].is_number()) return type_error("abs of " + std::string(v[0].kind()));
  if (v[0].as_int() == INT64_MIN) return type_error("integer overflow");
  return Value::integer(std::abs(v[0].as_int()));
}

Result<Value> round_filter(Runtime&, const Values& v) {
  if (!v[0].is_number()) return type_error("round of " + std::string(v[0].kind()));
  AKV_ASSIGN_OR_RETURN(const int64_t precision, integer_arg(v[1], 0, "precision"));
  AKV_ASSIGN_OR_RETURN(const Text* method, text_arg(v[2], "method"));
  if (precision < -15 || precision > 15) return type_error("\"precision\" must be in [-15, 15]");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = v[0].as_real() * scale;
  const std::string name = method != nullptr ? method->bytes() : "common";
  if (name == "ceil") return Value::real(std::ceil(scaled) / scale);
  if (name == "floor") return Value::real(std::floor(scaled) / scale);
  if (name != "common") return type_error("\"method\" must be common, ceil or floor");
  return Value::real(std::nearbyint(scaled) / scale);
}

Result<Value> string_filter(Runtime& runtime, const Values& v) {
  AKV_ASSIGN_OR_RETURN(Text text, soft_text(v[0]));
  return runtime.text(std::move(text));
}

Result<Value> attr(Runtime&, const Values& v) {
  AKV_ASSIGN_OR_RETURN(const Text* name, required_text(v[1], "name"));
  return get_attribute(v[0], name->bytes());
}

FilterTable make_table() {
  FilterTable table;
  add_value_filters(table);
  add_sequence_filters(table);
  return table;
}

}  // namespace

void add_value_filters(FilterTable& t) {
  const auto add = [&](std::initializer_list<std::string_view> names,
                       std::vector<std::string_view> params,
                       Result<Value> (*call)(Runtime&, const Values&)) {
    for (const std::string_view name : names) t[name] = Builtin{name, params, call};
  };
  add({"trim"}, {"value", "chars"}, trim);
  add({"upper"}, {"s"}, map_text<upper>);
  add({"lower"}, {"s"}, map_text<lower>);
  add({"capitalize"}, {"s"}, map_text<capitalize>);
  add({"title"}, {"s"}, map_text<title_words>);
  add({"safe"}, {"value"}, map_text<same>);
  add({"string"}, {"object"}, string_filter);
  add({"replace"}, {"s", "old", "new", "count"}, replace_filter);
  add({"default", "d"}, {"value", "default_value", "boolean"}, default_filter);
  add({"length", "count"}, {"object"}, length);
  add({"tojson"}, {"value", "indent", "ensure_ascii", "sort_keys", "separators"}, tojson);
  add({"indent"}, {"s", "width", "first", "blank"}, indent);
  add({"int"}, {"value", "default"}, int_filter);
  add({"float"}, {"value", "default"}, float_filter);
  add({"abs"}, {"value"}, abs_filter);
  add({"round"}, {"value", "precision", "method"}, round_filter);
  add({"attr"}, {"value", "name"}, attr);
}

const Builtin* find_filter(std::string_view name) {
  static const FilterTable table = make_table();
  const auto at = table.find(name);
  return at == table.end() ? nullptr : &at->second;
}

}  // namespace akv::model::jinja
