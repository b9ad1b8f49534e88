// A client that sends exactly the bytes it is told to: for what no HTTP library would do.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/units.h"

namespace akv::test {

class RawClient {
 public:
  explicit RawClient(const HostPort& address, int receive_buffer_bytes = 0) {
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_buffer_bytes > 0)
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(address.port);
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  ~RawClient() { close(); }
  RawClient(RawClient&& other) noexcept : fd_(other.fd_), got_(std::move(other.got_)) {
    other.fd_ = -1;
  }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  // False once the other side has reset the connection.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  void get(const std::string& path, const std::string& headers = "") {
    send("GET " + path + " HTTP/1.1\r\nHost: t\r\n" + headers + "\r\n");
  }
  void post(const std::string& path, const std::string& body, const std::string& headers = "") {
    send("POST " + path + " HTTP/1.1\r\nHost: t\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n" + headers + "\r\n" + body);
  }

  // Everything received so far, once it contains text; what came at the time-out otherwise.
  std::string wait_for(std::string_view text, int timeout_ms = 5000) {
    const TimePoint until = after_ms(timeout_ms);
    while (got_.find(text) == std::string::npos && receive(until)) {
    }
    return got_;
  }
  // A whole response with Content-Length, taken off what was received.
  std::string response(int timeout_ms = 5000) {
    const size_t end = wait_for("\r\n\r\n", timeout_ms).find("\r\n\r\n");
    if (end == std::string::npos) return std::exchange(got_, {});
    size_t total = end + 4;
    const size_t length = got_.find("Content-Length: ");
    if (length < end) total += std::stoul(got_.substr(length + 16));
    const TimePoint until = after_ms(timeout_ms);
    while (got_.size() < total && receive(until)) {
    }
    std::string taken = got_.substr(0, total);
    got_.erase(0, total);
    return taken;
  }
  // All bytes until the other side closes; "" + "(open)" when it does not in time.
  std::string until_closed(int timeout_ms = 5000) {
    const TimePoint until = after_ms(timeout_ms);
    while (receive(until)) {
    }
    return closed_ ? got_ : got_ + "(open)";
  }
  bool closed_by_peer() const { return closed_; }
  void clear() { got_.clear(); }

  void end_sending() { shutdown(fd_, SHUT_WR); }
  // Close with a reset instead of FIN.
  void reset() {
    const linger hard{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close();
  }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  bool receive(TimePoint until) {
    const double left_ms = ms_between(SteadyClock::now(), until);
    pollfd item{fd_, POLLIN, 0};
    if (left_ms <= 0 || poll(&item, 1, static_cast<int>(left_ms) + 1) <= 0) return false;
    char buffer[65536];
    const ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
    if (n <= 0) closed_ = true;
    if (n > 0) got_.append(buffer, static_cast<size_t>(n));
    return n > 0;
  }

  int fd_ = -1;
  bool closed_ = false;
  std::string got_;
};

// The bytes of a chunked body, without what is behind its end.
inline std::string dechunk(std::string_view body) {
  std::string out;
  while (!body.empty()) {
    const size_t line = body.find("\r\n");
    if (line == body.npos) break;
    const size_t size = std::stoul(std::string(body.substr(0, line)), nullptr, 16);
    if (size == 0 || body.size() < line + 2 + size) break;
    out += body.substr(line + 2, size);
    body.remove_prefix(line + 2 + size + 2);
  }
  return out;
}

inline std::string body_of(const std::string& response) {
  const size_t end = response.find("\r\n\r\n");
  return end == std::string::npos ? "" : response.substr(end + 4);
}

}  // namespace akv::test
