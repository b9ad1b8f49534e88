// Chat templates that come with the program, for models whose file has none.
#pragma once

#include <span>
#include <string_view>

namespace akv::model {

struct BuiltinTemplate {
  std::string_view name;
  std::string_view source;
};

std::span<const BuiltinTemplate> builtin_templates();

}  // namespace akv::model
