// Internal to proto: reading the fields of a client's JSON object, with errors in its own terms.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "proto/api.h"
#include "proto/json_text.h"

namespace akv::proto {

// Keeps the first error; getters after it do nothing. null counts as absent, unknown keys are not
// looked at. The object must outlive the reader.
class ApiFields {
 public:
  // path: where the object is in the body, for `param`: "" or "messages[3]".
  explicit ApiFields(const Json& object, std::string path = {});

  const Json* find(const char* key) const;
  bool ok() const { return !error_.has_value(); }
  const ApiError& error() const { return *error_; }
  void fail(const std::string& param, const std::string& message,
            const char* code = "invalid_value");
  // Takes over another reader's error.
  void adopt(const ApiFields& inner);
  std::string param(const std::string& key) const;

  void boolean(const char* key, bool& value);
  void text(const char* key, std::string& value, size_t max_bytes);
  // Whole numbers; 3.0 is one.
  template <class T>
  void integer(const char* key, T& value, int64_t min, int64_t max) {
    int64_t got = 0;
    if (read_integer(key, got, min, max)) value = static_cast<T>(got);
  }
  struct Range {
    double min;
    double max;
    bool above_min = false;  // min itself is not allowed
  };
  void real(const char* key, double& value, Range range);
  // A list of whole numbers, or an error.
  bool integers(const char* key, const Json& list, size_t max_items, std::vector<int32_t>& values);
  // One of a few words.
  void word(const char* key, std::string& value, std::initializer_list<std::string_view> allowed);
  // Features that would change the answer and are not there: any value that means something (not
  // null, false, "", [] or {}) is a 501.
  void unsupported(std::initializer_list<const char*> keys);
  void refuse_unsupported(const std::string& param, const std::string& what);

 private:
  bool read_integer(const char* key, int64_t& value, int64_t min, int64_t max);

  const Json& object_;
  const std::string path_;
  std::optional<ApiError> error_;
};

// The value of a whole number, also of 3.0; nullopt for anything else.
std::optional<int64_t> as_integer(const Json& value);
// A value as it may be shown in an error, cut short.
std::string shown(const Json& value);

}  // namespace akv::proto
