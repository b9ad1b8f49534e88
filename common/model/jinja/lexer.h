// Cuts template source into text and expression tokens, with Jinja's whitespace control
// (trim_blocks and lstrip_blocks on, as chat templates are rendered everywhere).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace akv::model::jinja {

enum class TokenKind {
  kData,  // text between tags
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,  // `text` is the value, escapes resolved
  kInteger,
  kReal,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  int line = 0;
  int64_t integer = 0;
  double real = 0;
};

// Ends with one kEnd token. Errors: kInvalidArgument, the message begins with "line N: ".
Result<std::vector<Token>> tokenize(std::string_view source);

// An error of the template at a line.
Error template_error(Code code, int line, std::string_view message);

}  // namespace akv::model::jinja
