// Functions that every template can call.
#include <ctime>

#include "common/model/jinja/builtin_args.h"

namespace akv::model::jinja {
namespace {

Result<Value> raise_exception(Runtime&, const Args& args) {
  const bool has_text = !args.positional.empty() && args.positional[0].is_text();
  return make_error(Code::kInvalidArgument,
                    has_text ? args.positional[0].as_text().bytes() : "the template refuses this",
                    std::string(kRaised));
}

Result<Value> strftime_now(Runtime& runtime, const Args& args) {
  if (args.positional.size() != 1 || !args.positional[0].is_text()) {
    return type_error("strftime_now() takes one format string");
  }
  const Text& format = args.positional[0].as_text();
  if (format.size() > 256) return type_error("the format of strftime_now() is too long");
  const auto now = static_cast<time_t>(runtime.now_unix_s());
  tm utc{};
  if (gmtime_r(&now, &utc) == nullptr) return type_error("the clock is out of range");
  char buffer[2048];
  // A space in front tells "nothing to print" from "does not fit", which both return 0.
  const std::string spaced = " " + format.bytes();
  const size_t n = std::strftime(buffer, sizeof(buffer), spaced.c_str(), &utc);
  if (n == 0) return type_error("strftime_now() prints too much");
  return runtime.text(Text(std::string_view(buffer + 1, n - 1), format.all_literal()));
}

// namespace(a=1, ...), dict(a=1, ...)
Result<Dict> named_values(const Args& args, std::string_view name) {
  Dict dict;
  if (args.positional.size() > 1 ||
      (args.positional.size() == 1 && !args.positional[0].is_dict())) {
    return type_error(std::string(name) + "() takes a mapping and named values");
  }
  if (!args.positional.empty()) dict.items = args.positional[0].as_dict().items;
  for (const auto& [key, value] : args.named) dict.set(Text::literal(key), value);
  return dict;
}

Result<Value> make_namespace(Runtime& runtime, const Args& args) {
  AKV_ASSIGN_OR_RETURN(Dict dict, named_values(args, "namespace"));
  dict.is_namespace = true;
  return runtime.dict(std::move(dict));
}

Result<Value> make_dict(Runtime& runtime, const Args& args) {
  AKV_ASSIGN_OR_RETURN(Dict dict, named_values(args, "dict"));
  return runtime.dict(std::move(dict));
}

Result<Value> range(Runtime& runtime, const Args& args) {
  if (args.positional.empty() || args.positional.size() > 3) {
    return type_error("range() takes one to three integers");
  }
  std::vector<int64_t> v;
  for (const Value& arg : args.positional) {
    AKV_ASSIGN_OR_RETURN(const int64_t i, integer_arg(arg, 0, "range"));
    if (i > INT32_MAX || i < INT32_MIN) return type_error("range() of a number too large");
    v.push_back(i);
  }
  const int64_t begin = v.size() > 1 ? v[0] : 0;
  const int64_t end = v.size() > 1 ? v[1] : v[0];
  const int64_t step = v.size() > 2 ? v[2] : 1;
  if (step == 0) return type_error("range() with a step of 0");
  const int64_t span = step > 0 ? end - begin : begin - end;
  const int64_t stride = step > 0 ? step : -step;
  const int64_t count = span > 0 ? (span + stride - 1) / stride : 0;
  AKV_RETURN_IF_ERROR(runtime.charge(static_cast<size_t>(count)));  // before it is made
  List list;
  for (int64_t i = 0; i < count; ++i) list.push_back(Value::integer(begin + i * step));
  return Value::list(std::move(list));
}

}  // namespace

std::vector<std::pair<std::string, Value>> global_functions() {
  const std::pair<const char*, Result<Value> (*)(Runtime&, const Args&)> all[] = {
      {"raise_exception", raise_exception},
      {"strftime_now", strftime_now},
      {"namespace", make_namespace},
      {"dict", make_dict},
      {"range", range}};
  std::vector<std::pair<std::string, Value>> out;
  for (const auto& [name, call] : all) {
    out.emplace_back(name, Value::function(std::make_shared<Function>(Function{name, call})));
  }
  return out;
}

}  // namespace akv::model::jinja
