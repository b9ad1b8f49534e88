// Typed access to a GGUF's metadata.
#include <fmt/format.h>

#include "common/model/gguf.h"

namespace akv::model {
namespace {

const char* value_kind(const GgufValue& value) {
  static constexpr const char* kNames[] = {"unsigned integer", "integer", "float", "bool",
                                           "string",           "array"};
  return kNames[value.index()];
}

Error wrong_type(const std::string& file, std::string_view key, const GgufValue& value,
                 const char* wanted) {
  return make_error(
      Code::kInvalidArgument,
      fmt::format("GGUF {}: key '{}': {} expected, got {}", file, key, wanted, value_kind(value)),
      std::string(key));
}

Error missing(const std::string& file, std::string_view key) {
  return make_error(Code::kInvalidArgument, fmt::format("GGUF {}: key '{}' is missing", file, key),
                    std::string(key));
}

// The value of `key` as the variant's member T.
template <class T>
Result<std::optional<T>> find_as(const GgufFile& file, std::string_view key, const char* wanted) {
  const GgufValue* value = file.find(key);
  if (value == nullptr) return std::optional<T>();
  if (const T* member = std::get_if<T>(value)) return std::optional<T>(*member);
  return wrong_type(file.name(), key, *value, wanted);
}

template <class T>
Result<T> required(const GgufFile& file, std::string_view key, Result<std::optional<T>> found) {
  if (!found.ok()) return found.error();
  if (!found->has_value()) return missing(file.name(), key);
  return **found;
}

}  // namespace

Result<std::optional<uint64_t>> GgufFile::find_uint(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::optional<uint64_t>();
  if (const auto* u = std::get_if<uint64_t>(value)) return std::optional<uint64_t>(*u);
  if (const auto* i = std::get_if<int64_t>(value); i != nullptr && *i >= 0) {
    return std::optional<uint64_t>(static_cast<uint64_t>(*i));
  }
  return wrong_type(name_, key, *value, "integer >= 0");
}

Result<std::optional<double>> GgufFile::find_float(std::string_view key) const {
  return find_as<double>(*this, key, "float");
}

Result<std::optional<bool>> GgufFile::find_bool(std::string_view key) const {
  return find_as<bool>(*this, key, "bool");
}

Result<std::optional<std::string_view>> GgufFile::find_string(std::string_view key) const {
  return find_as<std::string_view>(*this, key, "string");
}

Result<std::optional<GgufArray>> GgufFile::find_array(std::string_view key) const {
  return find_as<GgufArray>(*this, key, "array");
}

Result<uint64_t> GgufFile::get_uint(std::string_view key) const {
  return required(*this, key, find_uint(key));
}

Result<double> GgufFile::get_float(std::string_view key) const {
  return required(*this, key, find_float(key));
}

Result<std::string_view> GgufFile::get_string(std::string_view key) const {
  return required(*this, key, find_string(key));
}

Result<GgufArray> GgufFile::get_array(std::string_view key) const {
  return required(*this, key, find_array(key));
}

}  // namespace akv::model
