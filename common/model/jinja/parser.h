// Template source to syntax tree.
#pragma once

#include <string_view>

#include "common/base/result.h"
#include "common/model/jinja/ast.h"

namespace akv::model::jinja {

// Errors: kUnsupported for statements, filters and tests of Jinja that this subset lacks,
// kInvalidArgument for what is no Jinja at all; messages begin with "line N: ". Nesting deeper than
// `max_depth` is refused, so that recursion over the tree is bounded.
Result<Block> parse_template(std::string_view source, int max_depth);

}  // namespace akv::model::jinja
