// The filter table is built from two halves; find_filter in runtime.h is the way in.
#pragma once

#include <string_view>
#include <unordered_map>

#include "common/model/jinja/runtime.h"

namespace akv::model::jinja {

using FilterTable = std::unordered_map<std::string_view, Builtin>;

void add_value_filters(FilterTable& table);     // of one value: trim, tojson, default, int, ...
void add_sequence_filters(FilterTable& table);  // of several: join, map, selectattr, sort, ...

}  // namespace akv::model::jinja
