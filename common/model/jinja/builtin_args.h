// Reading bound arguments in filters, methods and functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/jinja/runtime.h"

namespace akv::model::jinja {

using Values = std::vector<Value>;

// The argument as the type that is needed, or an error that names both.
inline Result<int64_t> integer_arg(const Value& v, int64_t fallback, std::string_view name) {
  if (v.is_undefined()) return fallback;
  if (v.is_int() || v.is_bool()) return v.as_int();
  return type_error("\"" + std::string(name) + "\" must be an integer, not " +
                    std::string(v.kind()));
}

inline Result<bool> flag_arg(const Value& v, bool fallback) {
  return v.is_undefined() ? fallback : v.truthy();
}

// Null if left out or none.
inline Result<const Text*> text_arg(const Value& v, std::string_view name) {
  if (v.is_undefined() || v.is_none()) return nullptr;
  if (v.is_text()) return &v.as_text();
  return type_error("\"" + std::string(name) + "\" must be a string, not " + std::string(v.kind()));
}

inline Result<const Text*> required_text(const Value& v, std::string_view name) {
  AKV_ASSIGN_OR_RETURN(const Text* text, text_arg(v, name));
  if (text == nullptr) return type_error("\"" + std::string(name) + "\" is missing");
  return text;
}

}  // namespace akv::model::jinja
