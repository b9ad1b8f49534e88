// Internal to proto: JSON text from outside, parsed strictly.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace akv::proto {

using Json = nlohmann::json;

// nullopt with a reason in *error for: bad syntax, trailing text, invalid UTF-8, NaN and numbers
// beyond double, the same key twice in an object, arrays and objects nested deeper than max_depth.
std::optional<Json> parse_json(std::string_view text, int max_depth, std::string* error);

// The text as a reader that takes at most max_bytes gets it: bytes that are not UTF-8 become
// U+FFFD, and whole characters are left out at its end.
std::string fitted_text(const std::string& text, size_t max_bytes);

// Text of a value; bytes of strings that are not UTF-8 become U+FFFD.
std::string dump_json(const Json& value);

}  // namespace akv::proto
