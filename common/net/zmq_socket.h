// Internal to net: ZeroMQ's context and socket as owners, without its header.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/units.h"

namespace akv::net {

class ZmqContext {
 public:
  ZmqContext();
  ~ZmqContext();  // waits for its sockets to be closed
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;
  void* handle() const { return handle_; }

 private:
  void* handle_;
};

// One thread at a time. Functions that can fail return 0 or an errno value.
class ZmqSocket {
 public:
  ZmqSocket() = default;
  ZmqSocket(const ZmqContext& context, int type);
  ~ZmqSocket() { close(); }
  ZmqSocket(ZmqSocket&& other) noexcept;
  ZmqSocket& operator=(ZmqSocket&& other) noexcept;

  void* handle() const { return handle_; }
  bool is_open() const { return handle_ != nullptr; }
  void close();
  // Options that exist in every libzmq 4.3: failure is our bug.
  void set(int option, int value);
  void set(int option, std::string_view value);
  int bind(const std::string& endpoint);
  int connect(const std::string& endpoint);
  std::string last_endpoint() const;
  // Never blocks: EAGAIN when a queue is full or empty. All parts of a message or none.
  int send(const std::vector<std::string_view>& parts);
  // Parts beyond max_parts are read and dropped, but one more than max_parts is reported.
  int receive(std::vector<std::string>& parts, size_t max_parts);
  // A PAIR socket that receives these events of this socket.
  ZmqSocket monitor(const ZmqContext& context, const std::string& name, int events);

 private:
  void* handle_ = nullptr;
};

// "tcp://HOST:PORT" as libzmq takes it.
std::string zmq_endpoint(const HostPort& address);
std::string errno_text(int error);

}  // namespace akv::net
