#include "proto/api_fields.h"

#include <cmath>
#include <limits>

namespace akv::proto {
namespace {

std::string number_text(double value) {
  Json json = value;
  if (value == std::floor(value) && std::abs(value) < 1e15) json = static_cast<int64_t>(value);
  return json.dump();
}

bool means_nothing(const Json& value) {
  return (value.is_boolean() && !value.get<bool>()) || value == "" ||
         ((value.is_array() || value.is_object()) && value.empty());
}

}  // namespace

std::optional<int64_t> as_integer(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  if (number != std::floor(number) || std::abs(number) > 9.0e15) return std::nullopt;
  return static_cast<int64_t>(number);
}

std::string shown(const Json& value) {
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  // Long strings may be prompts; an error must not carry them around.
  if (value.is_string() && value.get_ref<const std::string&>().size() > 40) return "a long string";
  return dump_json(value);
}

ApiFields::ApiFields(const Json& object, std::string path)
    : object_(object), path_(std::move(path)) {
  if (!object.is_object()) fail(path_, "must be an object, got " + shown(object), "invalid_type");
}

std::string ApiFields::param(const std::string& key) const {
  return path_.empty() ? key : path_ + "." + key;
}

const Json* ApiFields::find(const char* key) const {
  if (!ok()) return nullptr;
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void ApiFields::fail(const std::string& param, const std::string& message, const char* code) {
  if (error_) return;
  const std::string subject = param.empty() ? "the body" : "'" + param + "'";
  error_ = ApiError{400, subject + " " + message, "invalid_request_error", code, param};
}

void ApiFields::refuse_unsupported(const std::string& param, const std::string& what) {
  if (error_) return;
  error_ = ApiError{501, what, "not_supported_error", "unsupported_parameter", param};
}

void ApiFields::adopt(const ApiFields& inner) {
  if (!error_ && !inner.ok()) error_ = inner.error();
}

void ApiFields::boolean(const char* key, bool& value) {
  const Json* field = find(key);
  if (field == nullptr) return;
  if (!field->is_boolean())
    return fail(param(key), "must be true or false, got " + shown(*field), "invalid_type");
  value = field->get<bool>();
}

void ApiFields::text(const char* key, std::string& value, size_t max_bytes) {
  const Json* field = find(key);
  if (field == nullptr) return;
  if (!field->is_string())
    return fail(param(key), "must be a string, got " + shown(*field), "invalid_type");
  value = field->get<std::string>();
  if (value.size() > max_bytes)
    fail(param(key), "must be at most " + std::to_string(max_bytes) + " bytes long");
}

bool ApiFields::read_integer(const char* key, int64_t& value, int64_t min, int64_t max) {
  const Json* field = find(key);
  if (field == nullptr) return false;
  const std::optional<int64_t> got = as_integer(*field);
  if (!got || *got < min || *got > max) {
    fail(param(key), "must be a whole number from " + std::to_string(min) + " to " +
                         std::to_string(max) + ", got " + shown(*field));
    return false;
  }
  value = *got;
  return true;
}

void ApiFields::real(const char* key, double& value, Range range) {
  const Json* field = find(key);
  if (field == nullptr) return;
  const double got =
      field->is_number() ? field->get<double>() : std::numeric_limits<double>::quiet_NaN();
  const bool in_range = got <= range.max && (range.above_min ? got > range.min : got >= range.min);
  if (!in_range)
    return fail(param(key), std::string("must be a number ") +
                                (range.above_min ? "above " : "from ") + number_text(range.min) +
                                (range.above_min ? " and at most " : " to ") +
                                number_text(range.max) + ", got " + shown(*field));
  value = got;
}

bool ApiFields::integers(const char* key, const Json& list, size_t max_items,
                         std::vector<int32_t>& values) {
  if (list.size() > max_items) {
    fail(param(key), "must hold at most " + std::to_string(max_items) + " items");
    return false;
  }
  values.reserve(list.size());
  for (const Json& item : list) {
    const std::optional<int64_t> id = as_integer(item);
    if (!id || *id < 0 || *id > std::numeric_limits<int32_t>::max()) {
      fail(param(key), "must be a list of token ids, but holds " + shown(item));
      return false;
    }
    values.push_back(static_cast<int32_t>(*id));
  }
  return true;
}

void ApiFields::word(const char* key, std::string& value,
                     std::initializer_list<std::string_view> allowed) {
  const Json* field = find(key);
  if (field == nullptr) return;
  std::string takes;
  for (const std::string_view word : allowed) {
    if (*field == word) {
      value = word;
      return;
    }
    if (!takes.empty()) takes += ", ";
    takes.append("\"").append(word).append("\"");
  }
  fail(param(key), "must be one of " + takes + ", got " + shown(*field));
}

void ApiFields::unsupported(std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const Json* field = find(key);
    if (field != nullptr && !means_nothing(*field))
      refuse_unsupported(param(key), "'" + param(key) + "' is not supported by this server");
  }
}

}  // namespace akv::proto
