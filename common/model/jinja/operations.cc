// What operators, loops and subscripts do to values.
#include <algorithm>

#include "common/model/jinja/runtime.h"
#include "common/model/jinja/text_ops.h"

namespace akv::model::jinja {
namespace {

Error cannot(std::string_view what, const Value& a, const Value& b) {
  return type_error("cannot " + std::string(what) + " " + std::string(a.kind()) + " and " +
                    std::string(b.kind()));
}

Result<Value> bind_method(const Value& object, const Builtin& method) {
  auto function = std::make_shared<Function>();
  function->name = method.name;
  function->call = [object, &method](Runtime& runtime, const Args& args) {
    Args with_object = args;
    with_object.positional.insert(with_object.positional.begin(), object);
    return call_builtin(runtime, method, with_object);
  };
  return Value::function(std::move(function));
}

}  // namespace

Result<Value> add(Runtime& runtime, const Value& a, const Value& b) {
  if (a.is_text() && b.is_text()) {
    Text joined = a.as_text();
    joined.append(b.as_text());
    return runtime.text(std::move(joined));
  }
  if (a.is_list() && b.is_list()) {
    AKV_RETURN_IF_ERROR(runtime.charge(a.as_list().size()));
    List joined = a.as_list();
    joined.insert(joined.end(), b.as_list().begin(), b.as_list().end());
    return runtime.list(std::move(joined));
  }
  if (!a.is_number() || !b.is_number()) return cannot("add", a, b);
  if (a.is_real() || b.is_real()) return Value::real(a.as_real() + b.as_real());
  int64_t sum = 0;
  if (__builtin_add_overflow(a.as_int(), b.as_int(), &sum)) return type_error("integer overflow");
  return Value::integer(sum);
}

Result<bool> less(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_real() || b.is_real()) return a.as_real() < b.as_real();
    return a.as_int() < b.as_int();
  }
  if (a.is_text() && b.is_text()) return a.as_text().bytes() < b.as_text().bytes();
  if (a.is_list() && b.is_list()) {
    const List &x = a.as_list(), &y = b.as_list();
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!(x[i] == y[i])) return less(x[i], y[i]);
    }
    return x.size() < y.size();
  }
  return cannot("compare", a, b);
}

Result<bool> contains(const Value& container, const Value& item) {
  if (container.is_list()) {
    const List& list = container.as_list();
    return std::find(list.begin(), list.end(), item) != list.end();
  }
  if (container.is_text() && item.is_text()) {
    return container.as_text().bytes().find(item.as_text().bytes()) != std::string::npos;
  }
  if (container.is_dict() && !container.is_namespace()) {
    return item.is_text() && container.as_dict().find(item.as_text().bytes()) != nullptr;
  }
  if (container.is_undefined()) return false;
  return type_error("cannot look for " + std::string(item.kind()) + " in " +
                    std::string(container.kind()));
}

Result<List> iterate(Runtime& runtime, const Value& value) {
  List items;
  if (value.is_list()) {
    AKV_RETURN_IF_ERROR(runtime.charge(value.as_list().size()));
    return value.as_list();
  }
  if (value.is_dict() && !value.is_namespace()) {
    AKV_RETURN_IF_ERROR(runtime.charge(value.as_dict().items.size()));
    for (const auto& item : value.as_dict().items) items.push_back(Value::text(item.first));
    return items;
  }
  if (value.is_text()) {
    const CharIndex chars(value.as_text().bytes());
    AKV_RETURN_IF_ERROR(runtime.charge(chars.count()));
    for (size_t i = 0; i < chars.count(); ++i) {
      items.push_back(Value::text(value.as_text().slice(chars.offset(i), chars.offset(i + 1))));
    }
    return items;
  }
  if (value.is_undefined()) return items;
  return type_error(std::string(value.kind()) + " cannot be iterated over");
}

Result<Value> get_attribute(const Value& value, std::string_view name) {
  if (value.is_undefined()) {
    return type_error("\"" + value.undefined_name() + "\" is undefined, so it has no \"" +
                      std::string(name) + "\"");
  }
  const Builtin* method = find_method(value, name);
  if (method != nullptr) return bind_method(value, *method);
  const Value* member = value.is_dict() ? value.as_dict().find(name) : nullptr;
  return member != nullptr ? *member : Value::undefined(std::string(name));
}

Result<Value> get_item(const Value& value, const Value& key) {
  if (value.is_dict() && key.is_text()) {
    const Value* member = value.as_dict().find(key.as_text().bytes());
    if (member != nullptr) return *member;
  }
  if (key.is_text()) return get_attribute(value, key.as_text().bytes());
  if (value.is_undefined()) return get_attribute(value, "item");
  if (!key.is_int() && !key.is_bool()) return Value::undefined("item");
  int64_t i = key.as_int();
  if (value.is_list()) {
    const auto n = static_cast<int64_t>(value.as_list().size());
    if (i < 0) i += n;
    if (i >= 0 && i < n) return value.as_list()[static_cast<size_t>(i)];
  } else if (value.is_text()) {
    const CharIndex chars(value.as_text().bytes());
    const auto n = static_cast<int64_t>(chars.count());
    if (i < 0) i += n;
    if (i >= 0 && i < n) {
      return Value::text(value.as_text().slice(chars.offset(i), chars.offset(i + 1)));
    }
  }
  return Value::undefined("item " + std::to_string(key.as_int()));
}

}  // namespace akv::model::jinja
