#include "decode_node/api/errors.h"

#include <algorithm>
#include <utility>

namespace akv::decode::api {
namespace {

struct Shape {
  int status;
  const char* type;
  const char* code;
};

Shape shape_of(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
      return {400, "invalid_request_error", "invalid_value"};
    case Code::kContextLength:
      return {400, "exceed_context_size_error", "context_length_exceeded"};
    case Code::kNotFound:
      return {404, "not_found_error", "not_found"};
    case Code::kResourceExhausted:
      return {429, "rate_limit_error", "overloaded"};
    case Code::kUnsupported:
      return {501, "not_supported_error", "unsupported"};
    case Code::kUnavailable:
    case Code::kCancelled:
      return {503, "unavailable_error", "unavailable"};
    case Code::kDeadlineExceeded:
      return {504, "timeout_error", "deadline_exceeded"};
    default:
      return {500, "server_error", nullptr};
  }
}

// Trying the same again cannot help, or would cost as much for as little.
bool hopeless(Code code) {
  return code == Code::kUnsupported || code == Code::kDeadlineExceeded || code == Code::kMismatch;
}

}  // namespace

proto::ApiError api_error(const Error& error) {
  const Shape shape = shape_of(error.code);
  const std::string code = shape.code != nullptr ? shape.code : std::string(code_name(error.code));
  return {shape.status, error.message, shape.type, code, error.param};
}

net::HttpHeaders retry_headers(const Error& error, int64_t retry_after_ms) {
  if (hopeless(error.code)) return {{"x-should-retry", "false"}};
  const int status = shape_of(error.code).status;
  if (status != 429 && status != 503) return {};
  const int64_t ms = std::max<int64_t>(retry_after_ms, 1000);
  return {{"Retry-After", std::to_string((ms + 999) / 1000)}};
}

net::HttpResponse error_response(const proto::ApiError& error, net::HttpHeaders headers) {
  return {error.status, std::move(headers), "application/json", proto::error_json(error)};
}

std::string outcome_of(int status) {
  if (status < 400) return "ok";
  switch (status) {
    case 401:
      return "unauthorized";
    case 429:
      return "overloaded";
    case 503:
      return "unavailable";
    case 504:
      return "timeout";
    default:
      return status < 500 || status == 501 ? "invalid" : "error";
  }
}

}  // namespace akv::decode::api
