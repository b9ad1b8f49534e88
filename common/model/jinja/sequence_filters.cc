// Filters of lists, mappings and other things with elements.
#include <algorithm>

#include "common/model/jinja/builtin_args.h"
#include "common/model/jinja/filters.h"
#include "common/model/jinja/text_ops.h"

namespace akv::model::jinja {
namespace {

// "a.b.0" applied to the value, as map(attribute=...) and the like take it.
Result<Value> attribute_path(const Value& value, const Value& path) {
  if (path.is_int()) return get_item(value, path);
  AKV_ASSIGN_OR_RETURN(const Text* text, required_text(path, "attribute"));
  Value at = value;
  const std::string_view dot = ".";
  for (const Text& part : split(*text, &dot, -1)) {
    const std::string& name = part.bytes();
    const bool is_index = !name.empty() && name.size() < 10 &&
                          name.find_first_not_of("0123456789") == std::string::npos;
    const Value key = is_index ? Value::integer(std::stoll(name)) : Value::text(part);
    AKV_ASSIGN_OR_RETURN(at, get_item(at, key));
  }
  return at;
}

Result<Value> keyed(const Value& item, const Value& attribute) {
  if (attribute.is_undefined() || attribute.is_none()) return item;
  return attribute_path(item, attribute);
}

Result<Value> first(Runtime& runtime, const Values& v) {
  AKV_ASSIGN_OR_RETURN(const List items, iterate(runtime, v[0]));
  return items.empty() ? Value::undefined("first item") : items.front();
}

Result<Value> last(Runtime& runtime, const Values& v) {
  AKV_ASSIGN_OR_RETURN(const List items, iterate(runtime, v[0]));
  return items.empty() ? Value::undefined("last item") : items.back();
}

Result<Value> list_filter(Runtime& runtime, const Values& v) {
  AKV_ASSIGN_OR_RETURN(List items, iterate(runtime, v[0]));
  return runtime.list(std::move(items));
}

Result<Value> reverse(Runtime& runtime, const Values& v) {
  AKV_ASSIGN_OR_RETURN(List items, iterate(runtime, v[0]));
  std::reverse(items.begin(), items.end());
  if (!v[0].is_text()) return runtime.list(std::move(items));
  Text out;
  for (const Value& c : items) out.append(c.as_text());
  return runtime.text(std::move(out));
}

Result<Value> join(Runtime& runtime, const Values& v) {
  AKV_ASSIGN_OR_RETURN(const List items, iterate(runtime, v[0]));
  AKV_ASSIGN_OR_RETURN(const Text separator, to_text(v[1]));
  Text out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(separator);
    AKV_ASSIGN_OR_RETURN(const Value item, keyed(items[i], v[2]));
    AKV_ASSIGN_OR_RETURN(const Text text, to_text(item));
    out.append(text);
    AKV_RETURN_IF_ERROR(runtime.reserve_text(1, out.size()));
  }
  return runtime.text(std::move(out));
}

Result<Value> items_filter(Runtime& runtime, const Values& v) {
  if (v[0].is_undefined()) return runtime.list({});
  if (!v[0].is_dict()) return type_error("items of " + std::string(v[0].kind()));
  return call_builtin(runtime, *find_method(v[0], "items"), Args{{v[0]}, {}});
}

// Sorts by key with the language's order; an order that does not exist is an error, which
// std::sort cannot pass on, so it is kept.
Result<List> sort_by(Runtime& runtime, std::vector<std::pair<Value, Value>> keyed_items,
                     bool folds_case, bool reverses) {
  for (auto& [key, item] : keyed_items) {
    if (folds_case && key.is_text()) key = Value::text(lower(key.as_text()));
  }
  AKV_RETURN_IF_ERROR(runtime.charge(keyed_items.size() * 8));
  Status failed;
  std::stable_sort(keyed_items.begin(), keyed_items.end(), [&](const auto& a, const auto& b) {
    const auto smaller = reverses ? less(b.first, a.first) : less(a.first, b.first);
    if (!smaller.ok() && failed.ok()) failed = smaller.error();
    return smaller.ok() && smaller.value();
  });
  AKV_RETURN_IF_ERROR(failed);
  List out;
  for (auto& [key, item] : keyed_items) out.push_back(std::move(item));
  return out;
}

Result<Value> sort_filter(Runtime& runtime, const Values& v) {
  AKV_ASSIGN_OR_RETURN(const List items, iterate(runtime, v[0]));
  std::vector<std::pair<Value, Value>> pairs;
  for (const Value& item : items) {
    AKV_ASSIGN_OR_RETURN(Value key, keyed(item, v[3]));
    pairs.emplace_back(std::move(key), item);
  }
  AKV_ASSIGN_OR_RETURN(List sorted,
                       sort_by(runtime, std::move(pairs), !v[2].truthy(), v[1].truthy()));
  return runtime.list(std::move(sorted));
}

Result<Value> dictsort(Runtime& runtime, const Values& v) {
  if (!v[0].is_dict() || v[0].is_namespace()) {
    return type_error("dictsort of " + std::string(v[0].kind()));
  }
  AKV_ASSIGN_OR_RETURN(const Text* by, text_arg(v[2], "by"));
  const bool by_value = by != nullptr && by->bytes() == "value";
  if (by != nullptr && !by_value && by->bytes() != "key") {
    return type_error("\"by\" must be key or value");
  }
  std::vector<std::pair<Value, Value>> pairs;
  for (const auto& [key, value] : v[0].as_dict().items) {
    AKV_ASSIGN_OR_RETURN(Value pair, runtime.list({Value::text(key), value}));
    pairs.emplace_back(by_value ? value : Value::text(key), pair.as_tuple());
  }
  AKV_ASSIGN_OR_RETURN(List sorted,
                       sort_by(runtime, std::move(pairs), !v[1].truthy(), v[3].truthy()));
  return runtime.list(std::move(sorted));
}

Result<Value> unique(Runtime& runtime, const Values& v) {
  AKV_ASSIGN_OR_RETURN(const List items, iterate(runtime, v[0]));
  List out, seen;
  for (const Value& item : items) {
    AKV_ASSIGN_OR_RETURN(Value key, keyed(item, v[2]));
    if (!v[1].truthy() && key.is_text()) key = Value::text(lower(key.as_text()));
    AKV_RETURN_IF_ERROR(runtime.charge(seen.size()));
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) continue;
    seen.push_back(std::move(key));
    out.push_back(item);
  }
  return runtime.list(std::move(out));
}

template <bool kLargest>
Result<Value> extreme(Runtime& runtime, const Values& v) {
  AKV_ASSIGN_OR_RETURN(const List items, iterate(runtime, v[0]));
  if (items.empty()) return Value::undefined("item of an empty list");
  Value best = items[0];
  for (const Value& item : items) {
    AKV_ASSIGN_OR_RETURN(const bool better, kLargest ? less(best, item) : less(item, best));
    if (better) best = item;
  }
  return best;
}

Result<Value> sum(Runtime& runtime, const Values& v) {
  AKV_ASSIGN_OR_RETURN(const List items, iterate(runtime, v[0]));
  Value total = v[2].is_undefined() ? Value::integer(0) : v[2];
  for (const Value& item : items) {
    AKV_ASSIGN_OR_RETURN(const Value key, keyed(item, v[1]));
    AKV_ASSIGN_OR_RETURN(total, add(runtime, total, key));
  }
  return total;
}

const Value* named(const Args& args, std::string_view name) {
  for (const auto& [key, value] : args.named) {
    if (key == name) return &value;
  }
  return nullptr;
}

// map(attribute=..., default=...) or map("filter", arguments...)
Result<Value> map(Runtime& runtime, const Args& args) {
  AKV_ASSIGN_OR_RETURN(const List items, iterate(runtime, args.positional[0]));
  const Value* attribute = named(args, "attribute");
  const Value* fallback = named(args, "default");
  List out;
  if (attribute != nullptr && args.positional.size() == 1) {
    for (const Value& item : items) {
      AKV_ASSIGN_OR_RETURN(Value value, attribute_path(item, *attribute));
      if (value.is_undefined() && fallback != nullptr) value = *fallback;
      out.push_back(std::move(value));
    }
    return runtime.list(std::move(out));
  }
  if (args.positional.size() < 2) return type_error("\"map\" needs a filter or attribute=");
  AKV_ASSIGN_OR_RETURN(const Text* name, required_text(args.positional[1], "filter"));
  const Builtin* filter = find_filter(name->bytes());
  if (filter == nullptr) {
    return make_error(Code::kUnsupported, "the filter \"" + name->bytes() + "\" is not implemented",
                      "chat_template");
  }
  Args inner;
  inner.positional.assign(args.positional.begin() + 1, args.positional.end());
  inner.named = args.named;
  for (const Value& item : items) {
    inner.positional[0] = item;
    AKV_ASSIGN_OR_RETURN(Value value, call_builtin(runtime, *filter, inner));
    out.push_back(std::move(value));
  }
  return runtime.list(std::move(out));
}

// select, reject, selectattr, rejectattr: [attribute,] [test, arguments...]; without a test the
// value's truth decides.
template <bool kByAttribute, bool kKeepsPassing>
Result<Value> select(Runtime& runtime, const Args& args) {
  AKV_ASSIGN_OR_RETURN(const List items, iterate(runtime, args.positional[0]));
  constexpr size_t kTestAt = kByAttribute ? 2 : 1;
  if (args.positional.size() < kTestAt) return type_error("an attribute's name is missing");
  const Builtin* test = nullptr;
  if (args.positional.size() > kTestAt) {
    AKV_ASSIGN_OR_RETURN(const Text* name, required_text(args.positional[kTestAt], "test"));
    test = find_test(name->bytes());
    if (test == nullptr) {
      return make_error(Code::kUnsupported, "the test \"" + name->bytes() + "\" is not implemented",
                        "chat_template");
    }
  }
  List out;
  for (const Value& item : items) {
    Value subject = item;
    if (kByAttribute) {
      AKV_ASSIGN_OR_RETURN(subject, attribute_path(item, args.positional[1]));
    }
    bool passes = subject.truthy();
    if (test != nullptr) {
      Args inner;
      inner.positional.assign(args.positional.begin() + kTestAt, args.positional.end());
      inner.positional[0] = std::move(subject);
      inner.named = args.named;
      AKV_ASSIGN_OR_RETURN(const Value verdict, call_builtin(runtime, *test, inner));
      passes = verdict.truthy();
    }
    if (passes == kKeepsPassing) out.push_back(item);
  }
  return runtime.list(std::move(out));
}

}  // namespace

void add_sequence_filters(FilterTable& t) {
  const auto add = [&](std::string_view name, std::vector<std::string_view> params,
                       Result<Value> (*call)(Runtime&, const Values&)) {
    t[name] = Builtin{name, std::move(params), call};
  };
  const auto add_raw = [&](std::string_view name, Result<Value> (*call)(Runtime&, const Args&)) {
    t[name] = Builtin{name, {}, nullptr, call};
  };
  add("first", {"seq"}, first);
  add("last", {"seq"}, last);
  add("list", {"value"}, list_filter);
  add("reverse", {"value"}, reverse);
  add("join", {"value", "d", "attribute"}, join);
  add("items", {"value"}, items_filter);
  add("sort", {"value", "reverse", "case_sensitive", "attribute"}, sort_filter);
  add("dictsort", {"value", "case_sensitive", "by", "reverse"}, dictsort);
  add("unique", {"value", "case_sensitive", "attribute"}, unique);
  add("min", {"value"}, extreme<false>);
  add("max", {"value"}, extreme<true>);
  add("sum", {"iterable", "attribute", "start"}, sum);
  add_raw("map", map);
  add_raw("select", select<false, true>);
  add_raw("reject", select<false, false>);
  add_raw("selectattr", select<true, true>);
  add_raw("rejectattr", select<true, false>);
}

}  // namespace akv::model::jinja
