// One HTTP request on its way through the API: its id, its answer, its record.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/net/http_server.h"
#include "decode_node/api/api_server.h"
#include "decode_node/api/errors.h"

namespace akv::decode::api {

// [thread-safe] where not said otherwise. Reports to the observer exactly once.
class Call {
 public:
  Call(const net::HttpRequest& request, std::shared_ptr<net::HttpExchange> exchange,
       ApiObserver* observer);

  const std::string& request_id() const { return record_.request_id; }
  net::HttpExchange& exchange() { return *exchange_; }
  // x-request-id, for every answer.
  net::HttpHeaders headers() const;
  double ms() const { return ms_since(begun_); }
  ApiObserver* observer() const { return observer_; }

  // Whole answers. False when the client is gone or a stream has begun.
  bool respond(std::string json);
  bool fail(const proto::ApiError& error, net::HttpHeaders more = {});

  // Facts for the record; before report(), by one thread at a time.
  RequestRecord& record() { return record_; }
  void report(const std::string& outcome, int status);

 private:
  const std::shared_ptr<net::HttpExchange> exchange_;
  ApiObserver* const observer_;
  const TimePoint begun_;
  RequestRecord record_;
  std::atomic<bool> reported_ = false;
};

}  // namespace akv::decode::api
