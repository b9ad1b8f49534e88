#include "decode_node/api/call.h"

#include <algorithm>
#include <utility>

#include "common/base/ids.h"

namespace akv::decode::api {
namespace {

constexpr size_t kMaxIdBytes = 128;

// The caller's id goes into headers, logs and messages to peers: only a harmless one is taken.
std::string request_id_of(const net::HttpRequest& request) {
  const std::string* id = request.header("x-request-id");
  const bool harmless =
      id != nullptr && !id->empty() && id->size() <= kMaxIdBytes &&
      std::all_of(id->begin(), id->end(), [](char c) { return c > 0x20 && c < 0x7f; });
  return harmless ? *id : Id128::random().hex();
}

}  // namespace

Call::Call(const net::HttpRequest& request, std::shared_ptr<net::HttpExchange> exchange,
           ApiObserver* observer)
    : exchange_(std::move(exchange)), observer_(observer), begun_(SteadyClock::now()) {
  record_.request_id = request_id_of(request);
  record_.route = request.path;
}

net::HttpHeaders Call::headers() const { return {{"x-request-id", record_.request_id}}; }

bool Call::respond(std::string json) {
  return exchange_->respond({200, headers(), "application/json", std::move(json)});
}

bool Call::fail(const proto::ApiError& error, net::HttpHeaders more) {
  more.emplace_back("x-request-id", record_.request_id);
  return exchange_->respond(error_response(error, std::move(more)));
}

void Call::report(const std::string& outcome, int status) {
  if (reported_.exchange(true)) return;
  record_.outcome = outcome;
  record_.status = status;
  record_.e2e_ms = ms();
  if (observer_ != nullptr) observer_->on_finished(record_);
}

}  // namespace akv::decode::api
