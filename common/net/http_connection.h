// Internal to net: one HTTP connection as a coroutine on its strand.
#pragma once

// Asio of 1.81 needs std::exchange to be declared before it.
#include <utility>

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "common/net/http_answer.h"
#include "common/net/http_server.h"

namespace akv::net {

class HttpConnection;

// What all connections share; outlives them. Exchanges that a slow service still holds keep it, and
// with it the io_context, alive after the server's end.
struct HttpCore {
  HttpCore(HttpServerOptions options_in, HttpHandler handler_in);
  const HttpServerOptions options;
  const HttpHandler handler;
  boost::asio::io_context io;
  std::atomic<size_t> buffered_body_bytes = 0;
  std::atomic<bool> stopping = false;

  void add(uint64_t id, std::weak_ptr<HttpConnection> connection);
  void remove(uint64_t id);
  size_t connections() const;
  // True when no connection was left before the time was up.
  bool wait_empty(int timeout_ms);
  std::vector<std::shared_ptr<HttpConnection>> all() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable empty_;
  std::unordered_map<uint64_t, std::weak_ptr<HttpConnection>> connections_;  // guarded by mutex_
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  template <class T>
  using Task = boost::asio::awaitable<T>;

  // The socket's executor is the connection's strand.
  HttpConnection(std::shared_ptr<HttpCore> core, Socket socket, uint64_t id);
  ~HttpConnection();
  // Serves requests until the connection ends.
  Task<void> run();
  // Answers 503 and closes: the server is full.
  Task<void> refuse();
  // [thread-safe] Ends it when idle; else it ends after the answer in work.
  void begin_stop();
  // [thread-safe] Ends it now; on_disconnect of an answer in work runs.
  void cut();

 private:
  struct Incoming {
    HttpRequest request;
    bool keep_alive = false;
    bool http10 = false;
    bool head = false;
  };
  enum class Wrote { kDone, kGone };

  Task<bool> wait_first_byte(bool first_request);
  Task<std::optional<Incoming>> read_request();
  Task<bool> serve(Incoming incoming);
  Task<Wrote> write_answer(HttpAnswer& answer, const Incoming& incoming);
  Task<Wrote> write_step(HttpAnswer::Step step, const Incoming& incoming);
  // Nothing to write: waits for a wake-up, a ping or a probe.
  Task<Wrote> idle(HttpAnswer& answer, const Incoming& incoming);
  // Returns when the client is seen gone; a half-closed one only sets flags.
  Task<void> watch();
  Task<bool> write(std::string bytes);
  Task<void> respond_error(int status, std::string message);
  Task<void> close_gently();

  void arm(int timeout_ms);
  void disarm();
  std::string chunk(const std::string& bytes, const Incoming& incoming) const;

  const std::shared_ptr<HttpCore> core_;
  Socket socket_;
  boost::asio::steady_timer deadline_;
  boost::asio::steady_timer wake_;
  boost::beast::flat_buffer buffer_;
  const uint64_t id_;
  std::string client_;
  uint64_t arm_count_ = 0;
  bool timed_out_ = false;
  bool idle_ = false;
  bool keep_ = true;      // may serve another request
  bool closing_ = false;  // cut() was called
  // The client ended its sending side; and: only writes can tell whether it is still there.
  bool half_closed_ = false;
  bool probing_ = false;
  int probe_ms_ = 0;
};

}  // namespace akv::net
