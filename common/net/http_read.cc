// Reading one request: Beast's parser under our limits and time-outs.
#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>

#include "common/net/http_connection.h"

namespace akv::net {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr auto kNoThrow = asio::as_tuple(asio::use_awaitable);
using Parser = http::request_parser<http::string_body>;

struct ReadError {
  int status = 0;  // 0: close without an answer
  std::string message;
};

ReadError describe(error_code ec, bool timed_out, bool started) {
  if (timed_out)
    return started ? ReadError{408, "the request did not arrive in time"} : ReadError{};
  if (ec == http::error::header_limit) return {431, "the header is too large"};
  if (ec == http::error::body_limit) return {413, "the body is too large"};
  if (ec == http::error::end_of_stream || ec == http::error::partial_message) return {};
  if (ec.category() == http::make_error_code(http::error::bad_method).category())
    return {400, "not an HTTP request: " + ec.message()};
  return {};  // the connection failed
}

// Bytes of body memory that a request may take, returned when the request is dispatched.
class BodyLease {
 public:
  BodyLease(HttpCore& core, size_t bytes) : core_(core), bytes_(bytes) {
    granted_ = core_.buffered_body_bytes.fetch_add(bytes_) + bytes_ <=
               core_.options.max_buffered_body_bytes;
  }
  ~BodyLease() { core_.buffered_body_bytes -= bytes_; }
  BodyLease(const BodyLease&) = delete;
  BodyLease& operator=(const BodyLease&) = delete;
  bool granted() const { return granted_; }

 private:
  HttpCore& core_;
  const size_t bytes_;
  bool granted_ = false;
};

void split_target(std::string_view target, HttpRequest& request) {
  if (const size_t scheme = target.find("://"); scheme != target.npos && !target.starts_with("/")) {
    const size_t slash = target.find('/', scheme + 3);
    target = slash == target.npos ? "/" : target.substr(slash);
  }
  const size_t mark = target.find('?');
  request.path = target.substr(0, mark);
  if (mark != target.npos) request.query = target.substr(mark + 1);
}

HttpRequest take_request(Parser& parser) {
  auto& message = parser.get();
  HttpRequest request;
  request.method = std::string(message.method_string());
  split_target({message.target().data(), message.target().size()}, request);
  for (const auto& field : message) {
    std::string name(field.name_string());
    std::transform(name.begin(), name.end(), name.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    request.headers.emplace_back(std::move(name), std::string(field.value()));
  }
  request.body = std::move(message.body());
  return request;
}

}  // namespace

const std::string* HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (key == name) return &value;
  return nullptr;
}

HttpConnection::Task<std::optional<HttpConnection::Incoming>> HttpConnection::read_request() {
  const HttpServerOptions& options = core_->options;
  Parser parser;
  parser.header_limit(static_cast<uint32_t>(options.max_header_bytes));
  parser.body_limit(options.max_body_bytes);
  arm(options.header_timeout_ms);
  auto [ec, size] = co_await http::async_read_header(socket_, buffer_, parser, kNoThrow);
  disarm();
  // The parser takes a body of another coding for none: its bytes would be the next request.
  const auto coding = parser.get().find(http::field::transfer_encoding);
  if (!ec && coding != parser.get().end() && !boost::beast::iequals(coding->value(), "chunked")) {
    co_await respond_error(501, "of transfer codings only chunked is taken");
    co_return std::nullopt;
  }
  if (!ec && !parser.is_done()) {
    const BodyLease lease(*core_, parser.content_length().value_or(options.max_body_bytes));
    if (!lease.granted()) {
      co_await respond_error(503, "too many request bodies at once");
      co_return std::nullopt;
    }
    const auto expect = parser.get().find(http::field::expect);
    if (expect != parser.get().end() && boost::beast::iequals(expect->value(), "100-continue")) {
      const bool told = co_await write("HTTP/1.1 100 Continue\r\n\r\n");
      if (!told) co_return std::nullopt;
    }
    arm(options.body_timeout_ms);
    std::tie(ec, size) = co_await http::async_read(socket_, buffer_, parser, kNoThrow);
    disarm();
  }
  if (ec) {
    const ReadError error = describe(ec, timed_out_, parser.got_some());
    if (error.status != 0 && !closing_) co_await respond_error(error.status, error.message);
    co_return std::nullopt;
  }
  Incoming incoming;
  incoming.keep_alive = parser.keep_alive();
  incoming.http10 = parser.get().version() < 11;
  incoming.head = parser.get().method() == http::verb::head;
  incoming.request = take_request(parser);
  incoming.request.client = client_;
  incoming.request.connection = id_;
  co_return incoming;
}

}  // namespace akv::net
