// An HTTP/1.1 server for JSON and server-sent events: coroutines on one or two io threads, limits
// on everything a client can send or withhold, and notice of a client that goes away.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/base/units.h"

namespace akv::net {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;
  std::string path;     // percent-decoding is not applied
  std::string query;    // behind '?', may be empty
  HttpHeaders headers;  // names in lower case, in order of arrival
  std::string body;
  std::string client;  // ADDRESS:PORT of the peer
  uint64_t connection = 0;

  // First value of a header given in lower case; nullptr when absent.
  const std::string* header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  HttpHeaders headers;  // beside Content-Type, Content-Length, Connection, Date
  std::string content_type = "application/json";
  std::string body;
};

// The answer side of one request; [thread-safe]. Exactly one of respond() or begin_stream() counts.
// Whoever drops the last reference without an answer sends a 500 (or, in a stream, cuts the
// connection so that the client does not take a part for the whole).
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  // Sends a whole response. False, and nothing is sent, when the client is gone or an answer was
  // already begun.
  virtual bool respond(HttpResponse response) = 0;
  // Starts a text/event-stream answer (no-cache, no proxy buffering). False when the client is gone
  // or a whole response was given; true when a stream runs already. From here the server writes
  // ": ping" comments while idle.
  virtual bool begin_stream(HttpHeaders headers = {}) = 0;
  // Lets the server begin the stream by itself once ping_interval_ms passed without an answer, so
  // that comments flow while the client waits. Before that respond() works as ever, so early errors
  // are plain answers; afterwards respond() is false and the error has to be an event.
  virtual void begin_stream_when_idle(HttpHeaders headers = {}) = 0;
  // Queues one event: "data: " + data + "\n\n"; data holds no line break. False when the client is
  // gone, or when it read so slowly that its queue overflowed (it is then disconnected).
  virtual bool write_event(std::string_view data) = 0;
  // Ends the stream after what is queued.
  virtual void end_stream() = 0;
  // fn runs once, on an io thread, as soon as the client is seen gone before the answer was
  // complete; soon when it already is. Replaces the one set before; end of answer drops it.
  virtual void on_disconnect(std::function<void()> fn) = 0;
  virtual bool disconnected() const = 0;
};

// Called on an io thread; must not block. The exchange may be answered there or later from any
// thread.
using HttpHandler = std::function<void(HttpRequest&&, std::shared_ptr<HttpExchange>)>;
// Body (JSON) of errors that the server itself answers: 400, 408, 413, 431, 503, 500, 404, 405.
using HttpErrorBody = std::function<std::string(int status, std::string_view message)>;

struct HttpServerOptions {
  HostPort bind;                               // port 0 picks a free one; names are resolved
  int threads = 1;                             // io threads
  size_t max_connections = 4096;               // one more is answered 503 and closed
  size_t max_header_bytes = 16 << 10;          // 431
  size_t max_body_bytes = 32 << 20;            // 413
  size_t max_buffered_body_bytes = 512 << 20;  // of all requests being read; 503
  size_t max_queued_bytes = 4 << 20;           // of a stream that its client does not read
  int header_timeout_ms = 10000;       // for a whole header; of a new connection from its start
  int body_timeout_ms = 60000;         // for a whole body
  int write_timeout_ms = 60000;        // a write without progress
  int keep_alive_timeout_ms = 120000;  // idle between requests; above a proxy's 90 s
  int ping_interval_ms = 10000;        // comment in an idle stream
  // A client that ended its sending side and awaits a plain HTTP/1.0 answer is taken for gone after
  // this; otherwise a harmless write finds out.
  int half_close_grace_ms = 1000;
  HttpErrorBody error_body;  // default: {"error":{...}} in the OpenAI shape
  std::string thread_name = "http";
};

class HttpServer {
 public:
  // Binds, listens and starts the io threads. kAddressInUse when the port is taken,
  // kInvalidArgument for a bad address.
  static Result<std::unique_ptr<HttpServer>> start(HttpServerOptions options, HttpHandler handler);
  virtual ~HttpServer() = default;  // stop(0)

  // [thread-safe] The bound address with its real port.
  virtual HostPort address() const = 0;
  // [thread-safe]
  virtual size_t connections() const = 0;
  // Stops accepting, closes idle connections, lets answers in progress end for grace_ms, cuts the
  // rest (their on_disconnect runs) and joins the threads. Idempotent; not from an io thread.
  virtual void stop(int grace_ms) = 0;
};

}  // namespace akv::net
