#include "common/net/http_connection.h"

#include <poll.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include "common/base/clock.h"
#include "common/net/http_format.h"

namespace akv::net {

namespace asio = boost::asio;
using asio::experimental::awaitable_operators::operator||;
using boost::system::error_code;

namespace {

constexpr auto kNoThrow = asio::as_tuple(asio::use_awaitable);
// Bytes of further requests that are read while an answer is in work.
constexpr size_t kMaxPipelinedBytes = 64 << 10;
constexpr int kFirstProbeMs = 20;
constexpr int kMaxProbeMs = 1000;

}  // namespace

HttpConnection::HttpConnection(std::shared_ptr<HttpCore> core, Socket socket, uint64_t id)
    : core_(std::move(core)),
      socket_(std::move(socket)),
      deadline_(socket_.get_executor()),
      wake_(socket_.get_executor()),
      id_(id) {
  error_code ec;
  const auto remote = socket_.remote_endpoint(ec);
  if (!ec) client_ = HostPort{remote.address().to_string(), remote.port()}.str();
  socket_.set_option(asio::ip::tcp::no_delay(true), ec);
}

HttpConnection::~HttpConnection() { core_->remove(id_); }

HttpConnection::Task<void> HttpConnection::run() {
  bool first = true;
  while (keep_ && !closing_ && !core_->stopping) {
    const bool begun = co_await wait_first_byte(std::exchange(first, false));
    if (!begun) break;
    std::optional<Incoming> incoming = co_await read_request();
    if (!incoming) break;
    const bool again = co_await serve(std::move(*incoming));
    if (!again) break;
  }
  co_await close_gently();
}

HttpConnection::Task<void> HttpConnection::refuse() {
  co_await respond_error(503, "too many connections");
  co_await close_gently();
}

void HttpConnection::begin_stop() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    self->keep_ = false;
    if (self->idle_) self->socket_.cancel();
  });
}

void HttpConnection::cut() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    error_code ec;
    self->closing_ = true;
    self->socket_.cancel(ec);
    self->wake_.cancel();
  });
}

// Cancels what the socket waits for once the time is up.
void HttpConnection::arm(int timeout_ms) {
  timed_out_ = false;
  deadline_.expires_after(std::chrono::milliseconds(timeout_ms));
  deadline_.async_wait([self = shared_from_this(), count = ++arm_count_](error_code ec) {
    if (ec || count != self->arm_count_) return;
    self->timed_out_ = true;
    error_code ignored;
    self->socket_.cancel(ignored);
  });
}

void HttpConnection::disarm() {
  ++arm_count_;
  deadline_.cancel();
}

HttpConnection::Task<bool> HttpConnection::wait_first_byte(bool first_request) {
  if (buffer_.size() > 0) co_return true;
  const HttpServerOptions& options = core_->options;
  arm(first_request ? options.header_timeout_ms : options.keep_alive_timeout_ms);
  idle_ = true;
  const auto [ec] = co_await socket_.async_wait(Socket::wait_read, kNoThrow);
  idle_ = false;
  disarm();
  co_return !ec && !closing_;
}

HttpConnection::Task<bool> HttpConnection::serve(Incoming incoming) {
  half_closed_ = probing_ = false;
  probe_ms_ = kFirstProbeMs;
  const std::weak_ptr<HttpConnection> weak = weak_from_this();
  // The answer may outlive the connection: it holds the core, for its io_context, and no more.
  const auto answer = std::make_shared<HttpAnswer>(
      core_->options.max_queued_bytes,
      [weak, core = core_, executor = socket_.get_executor()] {
        asio::post(executor, [weak] {
          if (const auto self = weak.lock()) self->wake_.cancel();
        });
      },
      [core = core_, executor = socket_.get_executor()](std::function<void()> fn) {
        asio::post(executor, std::move(fn));
      });
  HttpRequest request = std::move(incoming.request);
  try {
    core_->handler(std::move(request), make_exchange(answer));
  } catch (const std::exception&) {
    // The exchange was dropped with the stack: a 500 goes out.
  }
  auto result = co_await (write_answer(*answer, incoming) || watch());
  if (result.index() == 0 && std::get<0>(result) == Wrote::kDone) {
    answer->finish();
    // The end of an HTTP/1.0 stream is the end of its connection.
    const bool ends = half_closed_ || (incoming.http10 && answer->streaming());
    const bool keep = incoming.keep_alive && keep_ && !ends;
    co_return keep;
  }
  answer->set_gone();
  co_return false;
}

HttpConnection::Task<HttpConnection::Wrote> HttpConnection::write_answer(HttpAnswer& answer,
                                                                         const Incoming& incoming) {
  while (true) {
    if (closing_) co_return Wrote::kGone;
    HttpAnswer::Step step = answer.next();
    const auto kind = step.kind;
    if (kind == HttpAnswer::Step::Kind::kCut) co_return Wrote::kGone;
    Wrote wrote = Wrote::kDone;
    if (kind == HttpAnswer::Step::Kind::kWait)
      wrote = co_await idle(answer, incoming);
    else
      wrote = co_await write_step(std::move(step), incoming);
    if (wrote == Wrote::kGone) co_return Wrote::kGone;
    if (kind == HttpAnswer::Step::Kind::kResponse || kind == HttpAnswer::Step::Kind::kEnd)
      co_return Wrote::kDone;
  }
}

std::string HttpConnection::chunk(const std::string& bytes, const Incoming& incoming) const {
  return incoming.http10 ? bytes : http_chunk(bytes);
}

HttpConnection::Task<HttpConnection::Wrote> HttpConnection::write_step(HttpAnswer::Step step,
                                                                       const Incoming& incoming) {
  using Kind = HttpAnswer::Step::Kind;
  const bool keep = incoming.keep_alive && keep_ && !core_->stopping;
  std::string bytes;
  switch (step.kind) {
    case Kind::kResponse:
      bytes = http_response(step.response, {incoming.http10, keep, incoming.head});
      break;
    case Kind::kHead:
      bytes = http_stream_head(step.headers, {incoming.http10, keep, incoming.head});
      break;
    case Kind::kEvents:
      bytes = chunk(step.events, incoming);
      break;
    case Kind::kEnd:
      if (!incoming.http10) bytes = "0\r\n\r\n";
      break;
    default:
      break;
  }
  if (bytes.empty()) co_return Wrote::kDone;
  const bool written = co_await write(std::move(bytes));
  co_return written ? Wrote::kDone : Wrote::kGone;
}

HttpConnection::Task<HttpConnection::Wrote> HttpConnection::idle(HttpAnswer& answer,
                                                                 const Incoming& incoming) {
  const HttpServerOptions& options = core_->options;
  const bool streaming = answer.streaming();
  const bool ticks = streaming || answer.may_begin_stream();
  int wait_ms = ticks ? options.ping_interval_ms : -1;
  const bool plain10 = incoming.http10 && !streaming;
  if (plain10 && half_closed_)
    wait_ms = options.half_close_grace_ms;
  else if (!plain10 && probing_)
    wait_ms = probe_ms_;
  if (wait_ms < 0)
    wake_.expires_at(TimePoint::max());
  else
    wake_.expires_after(std::chrono::milliseconds(wait_ms));
  const bool probe_now = plain10 ? half_closed_ : probing_;
  const auto [ec] = co_await wake_.async_wait(kNoThrow);
  if (closing_) co_return Wrote::kGone;
  if (ec) co_return Wrote::kDone;  // woken: look again
  if (!probe_now) {
    // Begun under the client's eyes: what comes from now on are events.
    bool written = true;
    if (!streaming)
      answer.begin_stream({});
    else
      written = co_await write(chunk(": ping\n\n", incoming));
    co_return written ? Wrote::kDone : Wrote::kGone;
  }
  if (plain10) co_return Wrote::kGone;
  // A client that closed wholly answers any bytes by a reset, one that only ended its sending side
  // takes a comment, or an interim response, without harm.
  probe_ms_ = std::min(2 * probe_ms_, kMaxProbeMs);
  const std::string probe =
      streaming ? chunk(": ping\n\n", incoming) : std::string("HTTP/1.1 102 Processing\r\n\r\n");
  const bool written = co_await write(probe);
  co_return written ? Wrote::kDone : Wrote::kGone;
}

HttpConnection::Task<void> HttpConnection::watch() {
  asio::steady_timer pause(socket_.get_executor());
  while (true) {
    if (probing_) {
      // Nothing more can be learnt by reading: writes and the socket's state tell.
      pause.expires_after(std::chrono::milliseconds(kMaxProbeMs / 2));
      const auto [ec] = co_await pause.async_wait(kNoThrow);
      pollfd state{socket_.native_handle(), POLLRDHUP, 0};
      ::poll(&state, 1, 0);
      if (ec || (state.revents & (POLLERR | POLLHUP)) != 0) co_return;
      half_closed_ = half_closed_ || (state.revents & POLLRDHUP) != 0;
      continue;
    }
    const auto [ec] = co_await socket_.async_wait(Socket::wait_read, kNoThrow);
    if (ec) co_return;
    const size_t room = kMaxPipelinedBytes - std::min(buffer_.size(), kMaxPipelinedBytes);
    if (room == 0) {
      probing_ = true;
      wake_.cancel();
      continue;
    }
    error_code read_error;
    socket_.non_blocking(true, read_error);
    const size_t got = socket_.read_some(buffer_.prepare(std::min<size_t>(room, 4096)), read_error);
    buffer_.commit(got);
    if (!read_error || read_error == asio::error::would_block) continue;
    if (read_error != asio::error::eof) co_return;
    half_closed_ = probing_ = true;
    wake_.cancel();
  }
}

HttpConnection::Task<bool> HttpConnection::write(std::string bytes) {
  arm(core_->options.write_timeout_ms);
  const auto [ec, size] = co_await asio::async_write(socket_, asio::buffer(bytes), kNoThrow);
  disarm();
  co_return !ec;
}

HttpConnection::Task<void> HttpConnection::respond_error(int status, std::string message) {
  HttpResponse response;
  response.status = status;
  response.body = core_->options.error_body(status, message);
  if (status == 503) response.headers = {{"Retry-After", "1"}};
  co_await write(http_response(response, {false, false, false}));
}

// Half-closes and reads on for a while: unread bytes at close would make the kernel reset the
// connection, and the client might lose the answer.
HttpConnection::Task<void> HttpConnection::close_gently() {
  error_code ec;
  socket_.shutdown(Socket::shutdown_send, ec);
  buffer_.clear();
  size_t left = core_->options.max_body_bytes;
  if (!ec && !closing_) arm(core_->stopping ? 200 : 2000);
  while (!ec && !closing_ && left > 0) {
    const auto [error, got] = co_await socket_.async_read_some(buffer_.prepare(4096), kNoThrow);
    ec = error;
    left -= std::min(left, got);
  }
  disarm();
  socket_.close(ec);
}

}  // namespace akv::net
