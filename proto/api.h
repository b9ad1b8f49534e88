// Types of the OpenAI-shaped HTTP API that both its parser (api_request.h) and its writer
// (api_reply.h) use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace akv::proto {

// Body: {"error":{"message","type","param","code"}}.
struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string code;   // e.g. "context_length_exceeded"; "" is null
  std::string param;  // the field at fault; "" is null
};
std::string error_json(const ApiError& error);

// A value, or the error to answer with.
template <class T>
struct Parsed {
  std::optional<T> value;
  ApiError error;
  explicit operator bool() const { return value.has_value(); }
};

// "kv" of a request; what is absent is the server's default.
struct KvOptions {
  std::optional<std::string> codec;    // "anchorkv" or "none"
  std::optional<std::string> profile;  // "pooled" or "paper"
  std::optional<double> theta;         // (0, 1]
  bool operator==(const KvOptions&) const = default;
};

// "kv" of a reply.
struct KvReport {
  std::string codec;
  std::string profile;
  double theta = 0;            // achieved
  double theta_requested = 0;  // after auto
  int64_t prompt_tokens = 0;
  uint64_t dense_bytes = 0;  // 4 S H D over all layers
  uint64_t state_bytes = 0;  // held = sent, headers and checksums included
  double prefill_ms = 0;
  double compress_ms = 0;
  double transfer_ms = 0;
  std::string prefill_node;
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
};

// A token with its text and log-probability; bytes need not be whole characters.
struct LogprobAlternative {
  std::string bytes;
  float logprob = 0;
};
struct LogprobEntry {
  std::string bytes;
  float logprob = 0;
  std::vector<LogprobAlternative> top;
};

}  // namespace akv::proto
