// The front door: routes of the OpenAI-shaped API over an HttpServer and a GenerationService.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/base/result.h"
#include "common/base/units.h"
#include "common/net/http_server.h"
#include "decode_node/api/service.h"
#include "proto/api_request.h"

namespace akv::decode::api {

// One per finished request for a completion, for metrics and logs.
struct RequestRecord {
  std::string request_id;
  std::string route;    // "/v1/chat/completions", ...
  std::string outcome;  // "ok", "client_gone", "timeout", "overloaded", "unavailable",
                        // "invalid", "unauthorized", "error"
  int status = 0;
  bool stream = false;
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  double ttft_ms = -1;  // < 0: no token
  double e2e_ms = 0;
};

// Called from io and service threads; must not block. [thread-safe]
class ApiObserver {
 public:
  virtual ~ApiObserver() = default;
  virtual void on_first_token(double seconds) { (void)seconds; }
  virtual void on_inter_token(double seconds) { (void)seconds; }
  virtual void on_finished(const RequestRecord& record) { (void)record; }
};

struct ApiOptions {
  net::HttpServerOptions http;
  proto::ApiLimits limits;
  int request_timeout_ms = 600000;
  std::string api_key_file;  // one key a line, "#" comments; empty: no keys are asked for
  std::string version;       // of the software, /version
  std::function<std::string()> metrics_text;  // body of /metrics; empty: 404
};

// Owns the HTTP server. Lifetimes: service and observer (may be null) outlive it.
class ApiServer {
 public:
  // kAddressInUse, kInvalidArgument (address, unreadable key file).
  static Result<std::unique_ptr<ApiServer>> start(ApiOptions options, GenerationService& service,
                                                  ApiObserver* observer);
  virtual ~ApiServer() = default;

  virtual HostPort address() const = 0;
  virtual size_t connections() const = 0;
  // [thread-safe] Reads the key file again (SIGHUP); the old keys stay when it is unreadable.
  virtual Status reload_keys() = 0;
  // See HttpServer::stop. Requests cut here are cancelled in the service.
  virtual void stop(int grace_ms) = 0;
};

}  // namespace akv::decode::api
