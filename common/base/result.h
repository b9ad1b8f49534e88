// Result<T>: a value or an Error, by value, at every module border. Exceptions stay in start-up
// code.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace akv {

// Numbered once for the whole project; the number crosses process borders, so it is never reused.
enum class Code : uint16_t {
  kInvalidArgument = 1,  // the caller's input is wrong; a retry cannot help
  kNotFound = 2,
  kUnavailable = 3,        // no peer, not ready, draining; retry later or elsewhere
  kResourceExhausted = 4,  // a bound was hit: queue, bytes, sessions; retry later
  kDeadlineExceeded = 5,
  kCancelled = 6,
  kDataLoss = 7,  // checksum, length or index of received bytes is wrong
  kMismatch = 8,  // another model, format or protocol version
  kUnsupported = 9,
  kIo = 10,
  kAddressInUse = 11,
  kInternal = 12,
  kContextLength = 13,  // the prompt does not fit the model's context
};

// Stable lower-case name of a code, for logs and metrics ("deadline_exceeded").
std::string_view code_name(Code code);

struct Error {
  Code code = Code::kInternal;
  std::string message;
  std::string param;  // the key or field at fault, where one is
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : v_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : v_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return v_.index() == 0; }
  explicit operator bool() const { return ok(); }
  // REQUIRES: ok().
  T& value() & { return std::get<0>(v_); }
  const T& value() const& { return std::get<0>(v_); }
  T&& value() && { return std::get<0>(std::move(v_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  // REQUIRES: !ok().
  Error& error() { return std::get<1>(v_); }
  const Error& error() const { return std::get<1>(v_); }

 private:
  std::variant<T, Error> v_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}
  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  Error& error() { return *error_; }
  const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

inline Error make_error(Code code, std::string message, std::string param = {}) {
  return Error{code, std::move(message), std::move(param)};
}

}  // namespace akv

#define AKV_CONCAT_INNER(a, b) a##b
#define AKV_CONCAT(a, b) AKV_CONCAT_INNER(a, b)
// Returns the error of a Status or Result from the enclosing function.
#define AKV_RETURN_IF_ERROR(expr)                                 \
  do {                                                            \
    auto akv_status_ = (expr);                                    \
    if (!akv_status_.ok()) return std::move(akv_status_).error(); \
  } while (false)
// AKV_ASSIGN_OR_RETURN(auto x, f()): x = the value, or the error returns from the function.
#define AKV_ASSIGN_OR_RETURN(lhs, expr) \
  AKV_ASSIGN_OR_RETURN_IMPL(AKV_CONCAT(akv_result_, __LINE__), lhs, expr)
#define AKV_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                              \
  if (!tmp.ok()) return std::move(tmp).error();   \
  lhs = std::move(tmp).value()
