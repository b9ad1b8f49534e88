// Internal to net: the state of one answer, between whoever makes it (any thread) and the
// connection that writes it (its strand).
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "common/net/http_server.h"

namespace akv::net {

// [thread-safe]
class HttpAnswer {
 public:
  // wake: makes the connection look at next(); runs run_later's functions on its strand.
  HttpAnswer(size_t max_queued_bytes, std::function<void()> wake,
             std::function<void(std::function<void()>)> run_later);

  // ---- the maker's side; see HttpExchange -------------------------------------------------------
  bool respond(HttpResponse response);
  bool begin_stream(HttpHeaders headers);
  void begin_stream_when_idle(HttpHeaders headers);
  bool write_event(std::string_view data);
  void end_stream();
  void on_disconnect(std::function<void()> fn);
  bool disconnected() const;
  // The maker is gone without having finished.
  void abandon();

  // ---- the connection's side --------------------------------------------------------------------
  struct Step {
    enum class Kind {
      kWait,      // nothing to do: wake() comes, the next call of next() tells
      kResponse,  // write response; the answer is complete
      kHead,      // write the head of a stream with these headers
      kEvents,    // write these bytes of the stream's body
      kEnd,       // write the end of the stream; the answer is complete
      kCut        // close the connection: abandoned or overflowed
    };
    Kind kind = Kind::kWait;
    HttpResponse response;
    HttpHeaders headers;
    std::string events;
  };
  Step next();
  bool streaming() const;
  bool may_begin_stream() const;
  // The answer is on the wire whole: no disconnect is reported any more.
  void finish();
  // The client is gone: everything queued is dropped, on_disconnect runs.
  void set_gone();

 private:
  void wake_if_waiting(std::unique_lock<std::mutex>& lock);

  const size_t max_queued_bytes_;
  const std::function<void()> wake_;
  const std::function<void(std::function<void()>)> run_later_;
  mutable std::mutex mutex_;
  // All guarded by mutex_.
  std::optional<HttpResponse> response_;
  std::optional<HttpHeaders> idle_headers_;  // of begin_stream_when_idle
  HttpHeaders headers_;
  std::string events_;  // framed, not yet taken
  bool streaming_ = false;
  bool head_taken_ = false;
  bool ended_ = false;
  bool cut_ = false;
  bool gone_ = false;
  bool finished_ = false;
  bool waiting_ = false;  // next() said kWait
  std::function<void()> on_gone_;
};

// What the handler gets: abandons the answer when dropped.
std::shared_ptr<HttpExchange> make_exchange(std::shared_ptr<HttpAnswer> answer);

}  // namespace akv::net
