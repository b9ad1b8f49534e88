#include "common/model/jinja/value.h"

#include <algorithm>

namespace akv::model::jinja {
namespace {

uint8_t one_deeper(int depth) { return static_cast<uint8_t>(std::min(depth + 1, 255)); }

bool dicts_equal(const Dict& a, const Dict& b) {
  if (a.items.size() != b.items.size()) return false;
  return std::all_of(a.items.begin(), a.items.end(), [&](const auto& item) {
    const Value* other = b.find(item.first.bytes());
    return other != nullptr && item.second == *other;
  });
}

}  // namespace

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : items) {
    if (name.bytes() == key) return &value;
  }
  return nullptr;
}

void Dict::set(const Text& key, Value value) {
  for (auto& [name, old] : items) {
    if (name == key) {
      old = std::move(value);
      return;
    }
  }
  items.emplace_back(key, std::move(value));
}

Value Value::list(List l) {
  int deepest = 0;
  for (const Value& v : l) deepest = std::max(deepest, v.depth());
  return Value(std::make_shared<const List>(std::move(l)), one_deeper(deepest));
}

Value Value::dict(Dict d) {
  int deepest = 0;
  for (const auto& [key, v] : d.items) deepest = std::max(deepest, v.depth());
  return Value(std::make_shared<Dict>(std::move(d)), one_deeper(deepest));
}

int64_t Value::as_int() const { return is_bool() ? as_bool() : std::get<int64_t>(v_); }

double Value::as_real() const {
  return is_real() ? std::get<double>(v_) : static_cast<double>(as_int());
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_real()) return as_real() != 0;
  if (is_number()) return as_int() != 0;
  if (is_text()) return !as_text().empty();
  if (is_list()) return !as_list().empty();
  if (is_dict()) return as_dict().is_namespace || !as_dict().items.empty();
  return true;
}

std::string_view Value::kind() const {
  if (is_undefined()) return "an undefined value";
  if (is_none()) return "none";
  if (is_bool()) return "a boolean";
  if (is_int()) return "an integer";
  if (is_real()) return "a float";
  if (is_text()) return "a string";
  if (is_list()) return "a list";
  if (is_dict()) return as_dict().is_namespace ? "a namespace" : "a mapping";
  return "a function";
}

bool operator==(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_real() || b.is_real()) return a.as_real() == b.as_real();
    return a.as_int() == b.as_int();
  }
  if (a.v_.index() != b.v_.index()) return false;
  if (a.is_text()) return a.as_text() == b.as_text();
  if (a.is_list()) return a.as_list() == b.as_list();
  if (a.is_namespace() || b.is_namespace()) return &a.as_dict() == &b.as_dict();
  if (a.is_dict()) return dicts_equal(a.as_dict(), b.as_dict());
  if (a.is_function()) return &a.as_function() == &b.as_function();
  return true;  // both none or both undefined
}

}  // namespace akv::model::jinja
