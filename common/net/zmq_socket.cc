#include "common/net/zmq_socket.h"

#include <zmq.h>

#include <utility>

#include "common/base/check.h"

namespace akv::net {

ZmqContext::ZmqContext() : handle_(zmq_ctx_new()) {
  AKV_CHECK(handle_ != nullptr);
  zmq_ctx_set(handle_, ZMQ_IO_THREADS, 1);
}

ZmqContext::~ZmqContext() { zmq_ctx_term(handle_); }

ZmqSocket::ZmqSocket(const ZmqContext& context, int type)
    : handle_(zmq_socket(context.handle(), type)) {
  AKV_CHECK(handle_ != nullptr);
  set(ZMQ_LINGER, 0);
}

ZmqSocket::ZmqSocket(ZmqSocket&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}

ZmqSocket& ZmqSocket::operator=(ZmqSocket&& other) noexcept {
  if (this != &other) {
    close();
    handle_ = std::exchange(other.handle_, nullptr);
  }
  return *this;
}

void ZmqSocket::close() {
  if (handle_ != nullptr) zmq_close(handle_);
  handle_ = nullptr;
}

void ZmqSocket::set(int option, int value) {
  AKV_CHECK(zmq_setsockopt(handle_, option, &value, sizeof value) == 0);
}

void ZmqSocket::set(int option, std::string_view value) {
  AKV_CHECK(zmq_setsockopt(handle_, option, value.data(), value.size()) == 0);
}

int ZmqSocket::bind(const std::string& endpoint) {
  return zmq_bind(handle_, endpoint.c_str()) == 0 ? 0 : zmq_errno();
}

int ZmqSocket::connect(const std::string& endpoint) {
  return zmq_connect(handle_, endpoint.c_str()) == 0 ? 0 : zmq_errno();
}

std::string ZmqSocket::last_endpoint() const {
  char text[256] = {};
  size_t size = sizeof text;
  AKV_CHECK(zmq_getsockopt(handle_, ZMQ_LAST_ENDPOINT, text, &size) == 0);
  return text;
}

int ZmqSocket::send(const std::vector<std::string_view>& parts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const int flags = ZMQ_DONTWAIT | (i + 1 < parts.size() ? ZMQ_SNDMORE : 0);
    int rc = -1;
    do rc = zmq_send(handle_, parts[i].data(), parts[i].size(), flags);
    while (rc < 0 && zmq_errno() == EINTR);
    if (rc < 0) return zmq_errno();  // only the first part can fail
  }
  return 0;
}

int ZmqSocket::receive(std::vector<std::string>& parts, size_t max_parts) {
  parts.clear();
  zmq_msg_t message;
  bool more = true;
  while (more) {
    zmq_msg_init(&message);
    const int rc = zmq_msg_recv(&message, handle_, ZMQ_DONTWAIT);
    if (rc < 0) {
      const int error = zmq_errno();
      zmq_msg_close(&message);
      if (error == EINTR) continue;
      return error;
    }
    more = zmq_msg_more(&message) != 0;
    if (parts.size() <= max_parts)
      parts.emplace_back(static_cast<const char*>(zmq_msg_data(&message)),
                         parts.size() < max_parts ? zmq_msg_size(&message) : 0);
    zmq_msg_close(&message);
  }
  return 0;
}

ZmqSocket ZmqSocket::monitor(const ZmqContext& context, const std::string& name, int events) {
  const std::string endpoint = "inproc://" + name;
  AKV_CHECK(zmq_socket_monitor(handle_, endpoint.c_str(), events) == 0);
  ZmqSocket reader(context, ZMQ_PAIR);
  AKV_CHECK(reader.connect(endpoint) == 0);
  return reader;
}

std::string zmq_endpoint(const HostPort& address) {
  HostPort literal = address;
  if (literal.host == "localhost") literal.host = "127.0.0.1";
  return "tcp://" + literal.str();
}

std::string errno_text(int error) { return zmq_strerror(error); }

}  // namespace akv::net
