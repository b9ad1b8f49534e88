// Runs a parsed template.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/model/jinja/ast.h"
#include "common/model/jinja/runtime.h"

namespace akv::model::jinja {

using Variables = std::vector<std::pair<std::string, Value>>;

// Renders `block` with the variables given. Scopes are Jinja's: a loop's body and a macro have
// their own, an `if` has none; what is set inside is gone outside. Errors name the line, but for
// those of raise_exception, which are the template's own words.
Result<Text> render(const Block& block, const Variables& variables, Runtime& runtime);

}  // namespace akv::model::jinja
