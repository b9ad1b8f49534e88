// Values as text: Python's str() and repr(), and JSON.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "common/base/utf8.h"
#include "common/model/jinja/runtime.h"

namespace akv::model::jinja {
namespace {

// Python's repr of a float: shortest digits that read back, exponent below 1e-4 and from 1e16 on.
std::string real_repr(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
  char buffer[64];
  const double size = std::fabs(x);
  const bool plain = x == 0 || (size >= 1e-4 && size < 1e16);
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), x,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string out(buffer, end.ptr);
  if (plain && out.find('.') == std::string::npos) out += ".0";
  return out;
}

std::string number_text(const Value& v) {
  if (v.is_bool()) return v.as_bool() ? "True" : "False";
  return v.is_int() ? std::to_string(v.as_int()) : real_repr(v.as_real());
}

bool holds_foreign(const Value& v) {
  if (v.is_text()) return !v.as_text().all_literal();
  if (v.is_list()) return std::any_of(v.as_list().begin(), v.as_list().end(), holds_foreign);
  if (!v.is_dict()) return false;
  return std::any_of(v.as_dict().items.begin(), v.as_dict().items.end(), [](const auto& item) {
    return !item.first.all_literal() || holds_foreign(item.second);
  });
}

void append_hex(std::string& out, std::string_view prefix, uint32_t value, int digits) {
  out += prefix;
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) {
    out.push_back("0123456789abcdef"[value >> shift & 0xF]);
  }
}

void append_repr(std::string& out, const std::string& s) {
  const bool has_single = s.find('\'') != std::string::npos;
  const char quote = has_single && s.find('"') == std::string::npos ? '"' : '\'';
  out.push_back(quote);
  for (const char c : s) {
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\\' || c == quote) {
      out.push_back('\\');
      out.push_back(c);
    } else if ((c >= 0 && c < 0x20) || c == 0x7F) {
      append_hex(out, "\\x", static_cast<uint8_t>(c), 2);
    } else {
      out.push_back(c);
    }
  }
  out.push_back(quote);
}

Status append_repr(std::string& out, const Value& v) {
  if (v.is_text()) {
    append_repr(out, v.as_text().bytes());
  } else if (v.is_none()) {
    out += "None";
  } else if (v.is_number()) {
    out += number_text(v);
  } else if (v.is_list()) {
    out.push_back(v.is_tuple() ? '(' : '[');
    for (size_t i = 0; i < v.as_list().size(); ++i) {
      if (i > 0) out += ", ";
      AKV_RETURN_IF_ERROR(append_repr(out, v.as_list()[i]));
    }
    if (v.is_tuple() && v.as_list().size() == 1) out.push_back(',');
    out.push_back(v.is_tuple() ? ')' : ']');
  } else if (v.is_dict() && !v.is_namespace()) {
    out.push_back('{');
    for (const auto& [key, item] : v.as_dict().items) {
      if (out.back() != '{' || &key != &v.as_dict().items.front().first) out += ", ";
      append_repr(out, key.bytes());
      out += ": ";
      AKV_RETURN_IF_ERROR(append_repr(out, item));
    }
    out.push_back('}');
  } else {
    return type_error(std::string(v.kind()) + " cannot be printed");
  }
  return {};
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}
  Status write(const Value& v);
  std::string take() { return std::move(out_); }

 private:
  void write_string(const std::string& s);
  void write_character(std::string_view c);
  Status write_list(const List& list);
  Status write_dict(const Dict& dict);
  void separate(bool first) {
    if (!first) out_ += style_.item_separator;
    break_line();
  }
  void break_line() {
    if (style_.indent < 0) return;
    // json.dumps drops the space after the comma when it indents.
    if (!out_.empty() && out_.back() == ' ' && style_.item_separator == ", ") out_.pop_back();
    out_.push_back('\n');
    out_.append(static_cast<size_t>(style_.indent * level_), ' ');
  }

  const JsonStyle& style_;
  std::string out_;
  int level_ = 0;
};

void JsonWriter::write_character(std::string_view c) {
  constexpr std::string_view kEscaped = "\"\\\n\r\t\b\f";
  constexpr std::string_view kNames = "\"\\nrtbf";
  const size_t escape = kEscaped.find(c[0]);
  if (escape != std::string_view::npos) {
    out_.push_back('\\');
    out_.push_back(kNames[escape]);
  } else if (c.size() == 1 && static_cast<uint8_t>(c[0]) < 0x20) {
    append_hex(out_, "\\u", static_cast<uint8_t>(c[0]), 4);
  } else if (!style_.ensure_ascii || c.size() == 1) {
    out_ += c;
  } else {
    const char32_t code = utf8_decode(c);
    if (code < 0x10000) return append_hex(out_, "\\u", code, 4);
    append_hex(out_, "\\u", 0xD800 + ((code - 0x10000) >> 10), 4);
    append_hex(out_, "\\u", 0xDC00 + ((code - 0x10000) & 0x3FF), 4);
  }
}

void JsonWriter::write_string(const std::string& s) {
  out_.push_back('"');
  for (std::string_view rest = s; !rest.empty();) {
    const Utf8Step step = utf8_step(rest);
    const std::string_view c = rest.substr(0, step.length);
    write_character(step.state == Utf8State::kValid ? c : "\xEF\xBF\xBD");
    rest.remove_prefix(step.length);
  }
  out_.push_back('"');
}

Status JsonWriter::write_list(const List& list) {
  out_.push_back('[');
  ++level_;
  for (size_t i = 0; i < list.size(); ++i) {
    separate(i == 0);
    AKV_RETURN_IF_ERROR(write(list[i]));
  }
  --level_;
  if (!list.empty()) break_line();
  out_.push_back(']');
  return {};
}

Status JsonWriter::write_dict(const Dict& dict) {
  std::vector<const std::pair<Text, Value>*> items;
  for (const auto& item : dict.items) items.push_back(&item);
  if (style_.sort_keys) {
    std::stable_sort(items.begin(), items.end(), [](const auto* a, const auto* b) {
      return a->first.bytes() < b->first.bytes();
    });
  }
  out_.push_back('{');
  ++level_;
  for (size_t i = 0; i < items.size(); ++i) {
    separate(i == 0);
    write_string(items[i]->first.bytes());
    out_ += style_.key_separator;
    AKV_RETURN_IF_ERROR(write(items[i]->second));
  }
  --level_;
  if (!items.empty()) break_line();
  out_.push_back('}');
  return {};
}

Status JsonWriter::write(const Value& v) {
  if (v.is_text()) {
    write_string(v.as_text().bytes());
  } else if (v.is_none()) {
    out_ += "null";
  } else if (v.is_bool()) {
    out_ += v.as_bool() ? "true" : "false";
  } else if (v.is_number()) {
    if (!std::isfinite(v.as_real())) return type_error("JSON has no infinite numbers");
    out_ += number_text(v);
  } else if (v.is_list()) {
    return write_list(v.as_list());
  } else if (v.is_dict() && !v.is_namespace()) {
    return write_dict(v.as_dict());
  } else {
    return type_error(std::string(v.kind()) + " cannot be written as JSON");
  }
  return {};
}

}  // namespace

Result<Text> to_text(const Value& v) {
  if (v.is_text()) return v.as_text();
  if (v.is_undefined()) return Text();
  std::string out;
  AKV_RETURN_IF_ERROR(append_repr(out, v));
  return Text(out, !holds_foreign(v));
}

Result<Text> to_json(const Value& v, const JsonStyle& style) {
  JsonWriter writer(style);
  AKV_RETURN_IF_ERROR(writer.write(v));
  return Text(writer.take(), !holds_foreign(v));
}

}  // namespace akv::model::jinja
