#include "common/model/jinja/lexer.h"

#include <algorithm>
#include <charconv>

#include "common/base/utf8.h"

namespace akv::model::jinja {
namespace {

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name(char c) { return is_name_start(c) || is_digit(c); }

// \r\n and \r become \n, and one newline at the very end is dropped.
std::string normalize(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
      continue;
    }
    out.push_back('\n');
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}
  Result<std::vector<Token>> run();

 private:
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool looking_at(std::string_view s) const { return rest().starts_with(s); }
  void advance(size_t bytes);
  void emit(TokenKind kind, std::string text = {});
  Error fail(std::string_view message) const {
    return template_error(Code::kInvalidArgument, line_, message);
  }

  size_t next_tag() const;
  void take_data(size_t tag);
  void skip_space();
  void end_tag(size_t bytes, bool strips, bool trims_newline);
  Status take_comment();
  bool at_raw() const;
  Status take_raw();
  Status take_expression(bool is_block);
  bool take_tag_end(bool is_block);
  Status take_token();
  Status take_number();
  Status take_string();
  Status take_escape(std::string& value);
  Status take_code_point(int digits, std::string& value);
  Status take_operator();

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  // The next text begins a line: the tag before it took a newline with it.
  bool line_starting_ = true;
  std::string brackets_;  // the closing ones that are awaited
  std::vector<Token> tokens_;
};

void Lexer::advance(size_t bytes) {
  line_ += static_cast<int>(std::count(source_.begin() + at_, source_.begin() + at_ + bytes, '\n'));
  at_ += bytes;
}

void Lexer::emit(TokenKind kind, std::string text) {
  Token token;
  token.kind = kind;
  token.text = std::move(text);
  token.line = line_;
  tokens_.push_back(std::move(token));
}

size_t Lexer::next_tag() const {
  for (size_t at = source_.find('{', at_); at != std::string::npos;
       at = source_.find('{', at + 1)) {
    const char c = at + 1 < source_.size() ? source_[at + 1] : '\0';
    if (c == '{' || c == '%' || c == '#') return at;
  }
  return source_.size();
}

// Emits the text up to `tag`, less what the tag's sign or lstrip_blocks takes from its end.
void Lexer::take_data(size_t tag) {
  std::string text = source_.substr(at_, tag - at_);
  const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
  const bool is_variable = tag + 1 < source_.size() && source_[tag + 1] == '{';
  if (tag < source_.size() && sign == '-') {
    while (!text.empty() && is_space(text.back())) text.pop_back();
  } else if (tag < source_.size() && sign != '+' && !is_variable) {
    const size_t line_begin = text.rfind('\n') + 1;  // npos + 1 is 0
    if ((line_begin > 0 || line_starting_) &&
        std::all_of(text.begin() + line_begin, text.end(), is_space)) {
      text.resize(line_begin);
    }
  }
  if (!text.empty()) emit(TokenKind::kData, std::move(text));
  advance(tag - at_);
}

void Lexer::skip_space() {
  size_t n = 0;
  while (n < rest().size() && is_space(rest()[n])) ++n;
  advance(n);
}

// Leaves a tag whose end is `bytes` long: the following whitespace or newline goes with it.
void Lexer::end_tag(size_t bytes, bool strips, bool trims_newline) {
  advance(bytes);
  if (strips) {
    skip_space();
  } else if (trims_newline && looking_at("\n")) {
    advance(1);
  }
  line_starting_ = source_[at_ - 1] == '\n';
}

Status Lexer::take_comment() {
  advance(2);
  if (looking_at("-") || looking_at("+")) advance(1);
  const size_t end = source_.find("#}", at_);
  if (end == std::string::npos) return fail("a comment is not closed");
  const char sign = end > at_ ? source_[end - 1] : '\0';
  advance(end - at_);
  end_tag(2, sign == '-', sign != '+');
  return {};
}

bool Lexer::at_raw() const {
  std::string_view s = rest().substr(2);
  if (!s.empty() && (s[0] == '-' || s[0] == '+')) s.remove_prefix(1);
  while (!s.empty() && is_space(s[0])) s.remove_prefix(1);
  if (!s.starts_with("raw")) return false;
  s.remove_prefix(3);
  while (!s.empty() && is_space(s[0])) s.remove_prefix(1);
  return s.starts_with("%}") || s.starts_with("-%}");
}

Status Lexer::take_raw() {
  const size_t begin_end = source_.find("%}", at_);
  const bool strips = source_[begin_end - 1] == '-';
  advance(begin_end - at_);
  end_tag(2, strips, false);
  for (size_t tag = source_.find("{%", at_); tag != std::string::npos;
       tag = source_.find("{%", tag + 1)) {
    size_t p = tag + 2;
    if (p < source_.size() && (source_[p] == '-' || source_[p] == '+')) ++p;
    while (p < source_.size() && is_space(source_[p])) ++p;
    if (source_.compare(p, 6, "endraw") != 0) continue;
    p += 6;
    while (p < source_.size() && is_space(source_[p])) ++p;
    const char sign = p < source_.size() && source_[p] != '%' ? source_[p] : '\0';
    if (sign != '\0') ++p;
    if (source_.compare(p, 2, "%}") != 0) continue;
    take_data(tag);
    advance(p - at_);
    end_tag(2, sign == '-', sign != '+');
    return {};
  }
  return fail("{% raw %} is not closed");
}

bool Lexer::take_tag_end(bool is_block) {
  if (!brackets_.empty()) return false;
  const std::string_view end = is_block ? "%}" : "}}";
  const bool signed_end =
      (looking_at("-") || (is_block && looking_at("+"))) && rest().substr(1).starts_with(end);
  if (!signed_end && !looking_at(end)) return false;
  const bool strips = looking_at("-");
  const bool plus = looking_at("+");
  emit(is_block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd);
  end_tag(end.size() + (signed_end ? 1 : 0), strips, is_block && !plus);
  return true;
}

Status Lexer::take_expression(bool is_block) {
  emit(is_block ? TokenKind::kBlockBegin : TokenKind::kVariableBegin);
  advance(2);
  if (looking_at("-") || looking_at("+")) advance(1);
  while (true) {
    skip_space();
    if (rest().empty()) return fail(is_block ? "\"{%\" is not closed" : "\"{{\" is not closed");
    if (take_tag_end(is_block)) return {};
    AKV_RETURN_IF_ERROR(take_token());
  }
}

Status Lexer::take_token() {
  const char c = rest()[0];
  if (c == '"' || c == '\'') return take_string();
  if (is_digit(c)) return take_number();
  if (!is_name_start(c)) return take_operator();
  size_t n = 1;
  while (n < rest().size() && is_name(rest()[n])) ++n;
  emit(TokenKind::kName, std::string(rest().substr(0, n)));
  advance(n);
  return {};
}

Status Lexer::take_number() {
  const std::string_view s = rest();
  std::string digits;
  size_t n = 0;
  bool is_real = false;
  const auto take_digits = [&] {
    for (; n < s.size() && (is_digit(s[n]) || s[n] == '_'); ++n) {
      if (s[n] != '_') digits.push_back(s[n]);
    }
  };
  const auto digit_at = [&](size_t i) { return i < s.size() && is_digit(s[i]); };
  take_digits();
  if (n < s.size() && s[n] == '.' && digit_at(n + 1)) {
    is_real = true;
    digits.push_back(s[n++]);
    take_digits();
  }
  if (n < s.size() && (s[n] == 'e' || s[n] == 'E')) {
    const size_t sign = n + 1 < s.size() && (s[n + 1] == '+' || s[n + 1] == '-') ? 1 : 0;
    if (digit_at(n + 1 + sign)) {
      is_real = true;
      digits.append(s.substr(n, 1 + sign));
      n += 1 + sign;
      take_digits();
    }
  }
  if (n < s.size() && is_name(s[n])) return fail("a number runs into a name");
  emit(is_real ? TokenKind::kReal : TokenKind::kInteger, digits);
  const char* end = digits.data() + digits.size();
  const auto error = is_real ? std::from_chars(digits.data(), end, tokens_.back().real).ec
                             : std::from_chars(digits.data(), end, tokens_.back().integer).ec;
  if (error != std::errc()) return fail("the number " + digits + " is out of range");
  advance(n);
  return {};
}

Status Lexer::take_string() {
  const char quote = rest()[0];
  emit(TokenKind::kString);
  advance(1);
  std::string value;
  while (!looking_at(std::string_view(&quote, 1))) {
    if (rest().empty()) return fail("a string is not closed");
    if (rest()[0] == '\\') {
      AKV_RETURN_IF_ERROR(take_escape(value));
    } else {
      value.push_back(rest()[0]);
      advance(1);
    }
  }
  advance(1);
  tokens_.back().text = std::move(value);
  return {};
}

Status Lexer::take_code_point(int digits, std::string& value) {
  uint32_t c = 0;
  const std::string_view s = rest().substr(0, digits);
  const auto parsed = std::from_chars(s.data(), s.data() + s.size(), c, 16);
  if (s.size() < static_cast<size_t>(digits) || parsed.ptr != s.data() + s.size() || c > 0x10FFFF ||
      (c >= 0xD800 && c < 0xE000)) {
    return fail("a bad \\x, \\u or \\U escape in a string");
  }
  utf8_append(value, c);
  advance(digits);
  return {};
}

// Python's escapes; unknown ones keep their backslash.
Status Lexer::take_escape(std::string& value) {
  constexpr std::string_view kNames = "nrtabfv\\'\"";
  constexpr std::string_view kValues = "\n\r\t\a\b\f\v\\'\"";
  if (rest().size() < 2) return fail("a string is not closed");
  const char c = rest()[1];
  advance(2);
  if (c == '\n') return {};  // a line continued
  if (c == 'x') return take_code_point(2, value);
  if (c == 'u') return take_code_point(4, value);
  if (c == 'U') return take_code_point(8, value);
  if (c == 'N' || is_digit(c)) return fail("octal and \\N escapes are not implemented");
  const size_t known = kNames.find(c);
  if (known == std::string_view::npos) value.push_back('\\');
  value.push_back(known == std::string_view::npos ? c : kValues[known]);
  return {};
}

Status Lexer::take_operator() {
  constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
  constexpr std::string_view kOne = "+-/*%~[](){}<>=.:|,;";
  for (const std::string_view op : kTwo) {
    if (!looking_at(op)) continue;
    emit(TokenKind::kOperator, std::string(op));
    advance(2);
    return {};
  }
  const char c = rest()[0];
  if (kOne.find(c) == std::string_view::npos) {
    return fail("unexpected character \"" + source_.substr(at_, utf8_step(rest()).length) + "\"");
  }
  if (c == '(') brackets_.push_back(')');
  if (c == '[') brackets_.push_back(']');
  if (c == '{') brackets_.push_back('}');
  if (c == ')' || c == ']' || c == '}') {
    if (brackets_.empty() || brackets_.back() != c) {
      return fail(std::string("unexpected \"") + c + "\"");
    }
    brackets_.pop_back();
  }
  emit(TokenKind::kOperator, std::string(1, c));
  advance(1);
  return {};
}

Result<std::vector<Token>> Lexer::run() {
  while (!rest().empty()) {
    take_data(next_tag());
    if (rest().empty()) break;
    if (looking_at("{#")) {
      AKV_RETURN_IF_ERROR(take_comment());
    } else if (looking_at("{%") && at_raw()) {
      AKV_RETURN_IF_ERROR(take_raw());
    } else {
      AKV_RETURN_IF_ERROR(take_expression(looking_at("{%")));
    }
  }
  emit(TokenKind::kEnd);
  return std::move(tokens_);
}

}  // namespace

Error template_error(Code code, int line, std::string_view message) {
  return make_error(code, "line " + std::to_string(line) + ": " + std::string(message),
                    "chat_template");
}

Result<std::vector<Token>> tokenize(std::string_view source) {
  return Lexer(normalize(source)).run();
}

}  // namespace akv::model::jinja
