// Internal to proto: one list of fields per message serves both ways. A message's
//   template <class A> void fields(A& a, Ref<A, Message> m)
// is called with a FieldWriter (m const) or a FieldReader, which checks presence, type and range.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "proto/json_text.h"

namespace akv::proto {

template <class A, class M>
using Ref = typename A::template RefTo<M>;

class FieldWriter {
 public:
  template <class M>
  using RefTo = const M&;

  // A reason or a name that is longer than its reader takes is cut: the message must arrive.
  void text(const char* key, const std::string& value, size_t max_bytes) {
    json_[key] = fitted_text(value, max_bytes);
  }
  // Left out where empty, so that peers without the field read the rest.
  void optional_text(const char* key, const std::string& value, size_t max_bytes) {
    if (!value.empty()) json_[key] = fitted_text(value, max_bytes);
  }
  template <std::integral T>
  void integer(const char* key, T value, T /*min*/, T /*max*/) {
    json_[key] = value;
  }
  void flag(const char* key, bool value) { json_[key] = value; }
  // JSON has no infinity: logprobs of impossible tokens are cut to the range.
  template <std::floating_point T>
  void real(const char* key, T value, double min, double max) {
    json_[key] = std::isnan(value) ? min : std::fmin(std::fmax(value, min), max);
  }
  template <class M>
  void object(const char* key, const M& value) {
    FieldWriter inner;
    fields(inner, value);
    json_[key] = std::move(inner.json_);
  }
  template <class M>
  void optional(const char* key, const std::optional<M>& value) {
    if (value) object(key, *value);
  }
  template <class M>
  void list(const char* key, const std::vector<M>& values, size_t /*max_items*/) {
    Json array = Json::array();
    for (const M& value : values) {
      FieldWriter inner;
      fields(inner, value);
      array.push_back(std::move(inner.json_));
    }
    json_[key] = std::move(array);
  }
  void texts(const char* key, const std::vector<std::string>& values, size_t, size_t) {
    json_[key] = values;
  }
  void text_pairs(const char* key, const std::vector<std::pair<std::string, std::string>>& values,
                  size_t, size_t) {
    json_[key] = values;
  }
  void ids(const char* key, const std::vector<int32_t>& values, size_t) { json_[key] = values; }
  void token_values(const char* key, const std::vector<std::pair<int32_t, float>>& values, size_t) {
    Json array = Json::array();
    for (const auto& [token, value] : values)
      array.push_back({token, std::isfinite(value) ? value : -9999.0f});
    json_[key] = std::move(array);
  }
  void blob_ids(const std::vector<int32_t>& values, size_t) {
    blob_.resize(values.size() * sizeof(int32_t));
    for (size_t i = 0; i < values.size(); ++i) {
      const auto v = static_cast<uint32_t>(values[i]);
      for (int b = 0; b < 4; ++b) blob_[4 * i + b] = static_cast<char>(v >> (8 * b));
    }
  }

  const Json& json() const { return json_; }
  std::string take_blob() { return std::move(blob_); }

 private:
  Json json_ = Json::object();
  std::string blob_;
};

class FieldReader {
 public:
  template <class M>
  using RefTo = M&;

  FieldReader(const Json& json, std::string_view blob) : json_(&json), blob_(blob) {
    if (!json.is_object()) fail("body", "is not an object");
  }

  void text(const char* key, std::string& value, size_t max_bytes) {
    const Json* field = find(key);
    if (field == nullptr) return;
    if (!field->is_string()) return fail(key, "is not a string");
    value = field->get<std::string>();
    if (value.size() > max_bytes)
      fail(key, "is longer than " + std::to_string(max_bytes) + " bytes");
  }
  void optional_text(const char* key, std::string& value, size_t max_bytes) {
    if (error_.empty() && json_->contains(key)) text(key, value, max_bytes);
  }
  template <std::integral T>
  void integer(const char* key, T& value, T min, T max) {
    const Json* field = find(key);
    if (field != nullptr && !to_integer(*field, value, min, max))
      fail(key, "is not an integer of " + std::to_string(min) + " to " + std::to_string(max));
  }
  void flag(const char* key, bool& value) {
    const Json* field = find(key);
    if (field == nullptr) return;
    if (!field->is_boolean()) return fail(key, "is not a boolean");
    value = field->get<bool>();
  }
  template <std::floating_point T>
  void real(const char* key, T& value, double min, double max) {
    const Json* field = find(key);
    if (field == nullptr) return;
    if (!field->is_number()) return fail(key, "is not a number");
    const double number = field->get<double>();
    if (!(number >= min && number <= max)) return fail(key, "is out of range");
    value = static_cast<T>(number);
  }
  template <class M>
  void object(const char* key, M& value) {
    if (const Json* field = find(key)) read_object(key, *field, value);
  }
  template <class M>
  void optional(const char* key, std::optional<M>& value) {
    if (!error_.empty() || !json_->contains(key)) return;
    read_object(key, (*json_)[key], value.emplace());
  }
  template <class M>
  void list(const char* key, std::vector<M>& values, size_t max_items) {
    const Json* array = find_array(key, max_items);
    if (array == nullptr) return;
    values.resize(array->size());
    for (size_t i = 0; i < values.size() && error_.empty(); ++i)
      read_object(key, (*array)[i], values[i]);
  }
  void texts(const char* key, std::vector<std::string>& values, size_t max_items,
             size_t max_bytes) {
    const Json* array = find_array(key, max_items);
    if (array == nullptr) return;
    for (const Json& item : *array) {
      if (!is_text(item, max_bytes)) return fail(key, "holds something else than short strings");
      values.push_back(item.get<std::string>());
    }
  }
  void text_pairs(const char* key, std::vector<std::pair<std::string, std::string>>& values,
                  size_t max_items, size_t max_bytes) {
    const Json* array = find_array(key, max_items);
    if (array == nullptr) return;
    for (const Json& item : *array) {
      if (!item.is_array() || item.size() != 2 || !is_text(item[0], max_bytes) ||
          !is_text(item[1], max_bytes))
        return fail(key, "holds something else than pairs of short strings");
      values.emplace_back(item[0].get<std::string>(), item[1].get<std::string>());
    }
  }
  void ids(const char* key, std::vector<int32_t>& values, size_t max_items) {
    const Json* array = find_array(key, max_items);
    if (array == nullptr) return;
    for (const Json& item : *array) {
      int32_t id = 0;
      if (!to_integer(item, id, 0, std::numeric_limits<int32_t>::max()))
        return fail(key, "holds something else than token ids");
      values.push_back(id);
    }
  }
  void token_values(const char* key, std::vector<std::pair<int32_t, float>>& values,
                    size_t max_items) {
    const Json* array = find_array(key, max_items);
    if (array == nullptr) return;
    for (const Json& item : *array) {
      int32_t id = 0;
      if (!item.is_array() || item.size() != 2 || !item[1].is_number() ||
          !to_integer(item[0], id, 0, std::numeric_limits<int32_t>::max()))
        return fail(key, "holds something else than pairs of token and number");
      const double number = item[1].get<double>();
      if (std::abs(number) > 1e30) return fail(key, "holds a number out of range");
      values.emplace_back(id, static_cast<float>(number));
    }
  }
  void blob_ids(std::vector<int32_t>& values, size_t max_items) {
    if (blob_.size() % 4 != 0 || blob_.size() / 4 > max_items)
      return fail("blob", "is not a list of at most " + std::to_string(max_items) + " token ids");
    values.resize(blob_.size() / 4);
    for (size_t i = 0; i < values.size(); ++i) {
      uint32_t v = 0;
      for (int b = 0; b < 4; ++b)
        v |= static_cast<uint32_t>(static_cast<unsigned char>(blob_[4 * i + b])) << (8 * b);
      values[i] = static_cast<int32_t>(v);
      if (values[i] < 0) return fail("blob", "holds a negative token id");
    }
  }

  void fail(const char* key, const std::string& what) {
    if (error_.empty()) error_ = "'" + std::string(key) + "' " + what;
  }
  const std::string& error() const { return error_; }

 private:
  // Exact, also for 64 bits unsigned; numbers with a fraction are none.
  template <std::integral T>
  static bool to_integer(const Json& field, T& value, T min, T max) {
    if (field.is_number_unsigned()) {
      const auto number = field.get<uint64_t>();
      if (!std::in_range<T>(number)) return false;
      value = static_cast<T>(number);
    } else if (field.is_number_integer()) {
      const auto number = field.get<int64_t>();
      if (!std::in_range<T>(number)) return false;
      value = static_cast<T>(number);
    } else {
      return false;
    }
    return value >= min && value <= max;
  }
  static bool is_text(const Json& item, size_t max_bytes) {
    return item.is_string() && item.get_ref<const std::string&>().size() <= max_bytes;
  }
  const Json* find(const char* key) {
    if (!error_.empty()) return nullptr;
    const auto it = json_->find(key);
    if (it != json_->end()) return &*it;
    fail(key, "is missing");
    return nullptr;
  }
  const Json* find_array(const char* key, size_t max_items) {
    const Json* field = find(key);
    if (field == nullptr) return nullptr;
    if (field->is_array() && field->size() <= max_items) return field;
    fail(key, "is not a list of at most " + std::to_string(max_items) + " items");
    return nullptr;
  }
  template <class M>
  void read_object(const char* key, const Json& json, M& value) {
    FieldReader inner(json, {});
    if (inner.error_.empty()) fields(inner, value);
    if (!inner.error_.empty()) fail(key, "is wrong: " + inner.error_);
  }

  const Json* json_;
  std::string_view blob_;
  std::string error_;
};

}  // namespace akv::proto
