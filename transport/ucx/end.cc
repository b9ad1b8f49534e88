#include "transport/ucx/end.h"

#include <pthread.h>
#include <ucp/api/ucp.h>

#include <algorithm>

#include "common/base/check.h"
#include "transport/ucx/ucx_transport.h"

namespace akv::transport {
namespace {

using std::chrono::milliseconds;
constexpr auto kSpin = std::chrono::microseconds(50);
// Progress calls before commands and timers get their turn under a constant stream.
constexpr int kProgressMax = 64;
constexpr int kDevicePollMs = 1;
// stop() waits this long for UCX to complete what a FORCE close leaves; measured: 2 ms.
constexpr int64_t kStopDrainsMax = 10;

}  // namespace

// UCX's callbacks: find the connection, hand on.
struct EndCallbacks {
  static Connection* connection(UcxEnd* end, const ucp_am_recv_param_t* param) {
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) return nullptr;
    Connection* found = end->find(param->reply_ep);
    if (found == nullptr || found->broken() || found->state() == Connection::State::kClosing) {
      return nullptr;
    }
    found->last_heard = SteadyClock::now();
    return found;
  }

  static ucs_status_t on_control(void* arg, const void*, size_t, void* data, size_t length,
                                 const ucp_am_recv_param_t* param) {
    auto* end = static_cast<UcxEnd*>(arg);
    Connection* from = connection(end, param);
    // Our messages are small: a rendezvous here is not ours.
    if (from == nullptr || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return UCS_OK;
    end->handle_control(*from, {static_cast<const std::byte*>(data), length});
    return UCS_OK;
  }

  static ucs_status_t on_record(void* arg, const void* header, size_t header_length, void* data,
                                size_t length, const ucp_am_recv_param_t* param) {
    auto* end = static_cast<UcxEnd*>(arg);
    Connection* from = connection(end, param);
    if (from == nullptr || from->state() != Connection::State::kOpen) return UCS_OK;
    const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    end->on_record(*from,
                   wire::decode_record({static_cast<const std::byte*>(header), header_length}),
                   data, length, rendezvous);
    // UCS_OK either way: UCX sees whether a receive was started, and drops the data if not.
    return UCS_OK;
  }
};

UcxEnd::UcxEnd(const TransportConfig& config, std::unique_ptr<UcxWorker> worker)
    : config_(config), worker_(std::move(worker)) {}

UcxEnd::~UcxEnd() { AKV_CHECK(!thread_.joinable()); }

Status UcxEnd::start() {
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  handler.arg = this;
  // Whole messages only: without this flag parts of a long eager message would be handed over.
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.id = wire::kControlAm;
  handler.cb = EndCallbacks::on_control;
  ucs_status_t status = ucp_worker_set_am_recv_handler(worker_->handle(), &handler);
  if (status == UCS_OK) {
    handler.id = wire::kRecordAm;
    handler.cb = EndCallbacks::on_record;
    status = ucp_worker_set_am_recv_handler(worker_->handle(), &handler);
  }
  if (status != UCS_OK) return ucx_error(status, "cannot register message handlers");
  thread_ = std::thread([this] { loop(); });
  pthread_setname_np(thread_.native_handle(), "ucx-progress");
  return {};
}

void UcxEnd::stop() {
  if (!thread_.joinable()) return;
  stop_requested_ = true;
  worker_->signal();
  thread_.join();
}

void UcxEnd::submit(std::function<void()> command) {
  mailbox_.push(std::move(command));
  worker_->signal();
}

void UcxEnd::notice(const std::string& line) {
  if (config_.on_notice) defer([this, line] { config_.on_notice(line); });
}

Connection::AttentionFn UcxEnd::attention() {
  return [this] { attention_ = true; };
}

void UcxEnd::add(const ConnectionPtr& connection) {
  connections_.emplace(connection->endpoint(), connection);
  counters_.connections_open = connections_.size();
  attend();
}

Result<ConnectionPtr> UcxEnd::dial(const SocketAddress& to, const SocketAddress* local) {
  AKV_ASSIGN_OR_RETURN(auto connection, Connection::dial(*worker_, to, local, attention()));
  add(connection);
  wire::Message hello;
  hello.type = wire::Type::kHello;
  hello.text = ucx_version();
  connection->send(hello);
  return connection;
}

Result<ConnectionPtr> UcxEnd::accept(ucp_conn_request* request) {
  AKV_ASSIGN_OR_RETURN(auto connection, Connection::accept(*worker_, request, attention()));
  add(connection);
  return connection;
}

void UcxEnd::leave(Connection& connection) {
  connection.leave(SteadyClock::now() + milliseconds(config_.drain_ms));
  attend();
}

Connection* UcxEnd::find(ucp_ep* endpoint) const {
  auto it = connections_.find(endpoint);
  return it == connections_.end() ? nullptr : it->second.get();
}

void UcxEnd::handle_control(Connection& connection, std::span<const std::byte> bytes) {
  auto decoded = wire::decode(bytes);
  if (!decoded.ok()) {
    ++counters_.refused;
    connection.break_off(decoded.error());
    return;
  }
  const wire::Message& message = *decoded;
  switch (message.type) {
    case wire::Type::kPing:
      return;
    case wire::Type::kBye:
      connection.said_bye = true;
      connection.break_off(make_error(Code::kUnavailable, connection.peer() + " has closed"));
      return;
    case wire::Type::kHello:
    case wire::Type::kWelcome:
    case wire::Type::kRefused:
      handle_hello(connection, message);
      return;
    default:
      break;
  }
  if (connection.state() == Connection::State::kOpen) {
    on_message(connection, message);
  } else if (connection.state() == Connection::State::kHello) {
    connection.break_off(make_error(Code::kMismatch, connection.peer() + " did not say hello"));
  }
}

void UcxEnd::handle_hello(Connection& connection, const wire::Message& message) {
  if (connection.state() != Connection::State::kHello) return;
  Status status = on_hello(connection, message);
  if (status.ok()) {
    connection.set_open();
    ++counters_.connections_opened;
    notice("connection with " + connection.peer() + " is open, by " + connection.transports());
    on_open(connection);
    return;
  }
  ++counters_.refused;
  notice("connection with " + connection.peer() + " is refused: " + status.error().message);
  if (message.type == wire::Type::kHello) {
    // Say why, then go: the other end decides by the code whether another try makes sense.
    wire::Message refused;
    refused.type = wire::Type::kRefused;
    refused.code = static_cast<uint16_t>(status.error().code);
    refused.text = status.error().message;
    connection.send(refused);
    leave(connection);
  } else {
    connection.said_bye = true;
    connection.break_off(status.error());
  }
}

bool UcxEnd::progress() {
  bool any = false;
  for (int i = 0; i < kProgressMax && worker_->progress(); ++i) any = true;
  return any;
}

void UcxEnd::run_deferred() {
  // Handlers may cause further events; those run in this loop too.
  for (size_t i = 0; i < deferred_.size(); ++i) {
    auto action = std::move(deferred_[i]);
    action();
  }
  deferred_.clear();
}

void UcxEnd::lose(Connection& connection) {
  const Error error = *connection.broken();
  // A peer that closes after our goodbye, or after its own, is not lost.
  if (!connection.said_bye && connection.state() != Connection::State::kLeaving) {
    ++counters_.connections_lost;
    notice("connection with " + connection.peer() + " is lost: " + error.message);
  }
  on_lost(connection, error);
  connection.abort();
}

TimePoint UcxEnd::look_at_open(Connection& connection, TimePoint now) {
  const TimePoint silent_at = connection.last_heard + milliseconds(config_.heartbeat_lost_ms);
  if (now >= silent_at) {
    connection.break_off(
        make_error(Code::kUnavailable, connection.peer() + " gave no sign of life for " +
                                           std::to_string(config_.heartbeat_lost_ms) + " ms"));
    return now;
  }
  TimePoint ping_at = connection.last_ping + milliseconds(config_.heartbeat_interval_ms);
  if (now >= ping_at) {
    if (!connection.ping_unsent) connection.send(wire::Message{});
    connection.last_ping = now;
    ping_at = now + milliseconds(config_.heartbeat_interval_ms);
  }
  return std::min(silent_at, ping_at);
}

// Moves a connection on by one step; returns when to look again.
TimePoint UcxEnd::look_at(Connection& connection, TimePoint now) {
  if (connection.state() == Connection::State::kClosing) return TimePoint::max();
  TimePoint next = TimePoint::max();
  if (!connection.broken()) {
    switch (connection.state()) {
      case Connection::State::kHello:
        next = connection.created + milliseconds(config_.connect_timeout_ms);
        if (now >= next) {
          connection.break_off(make_error(Code::kUnavailable,
                                          "no hello from " + connection.peer() + " within " +
                                              std::to_string(config_.connect_timeout_ms) + " ms"));
        }
        break;
      case Connection::State::kOpen:
        next = look_at_open(connection, now);
        break;
      case Connection::State::kLeaving:
        next = connection.leave_until();
        if (connection.left() || now >= next) connection.abort();
        break;
      case Connection::State::kClosing:
        break;
    }
  }
  if (connection.broken() && connection.state() != Connection::State::kClosing) lose(connection);
  return next;
}

void UcxEnd::look(TimePoint now) {
  attention_ = false;
  TimePoint next = on_look(now);
  for (auto it = connections_.begin(); it != connections_.end();) {
    const ConnectionPtr connection = it->second;
    next = std::min(next, look_at(*connection, now));
    if (!connection->gone()) {
      ++it;
      continue;
    }
    it = connections_.erase(it);
    counters_.connections_open = connections_.size();
    on_gone(*connection);
    attention_ = true;
  }
  next_look_ = next;
}

// When this process itself was stopped or starved, every peer looks silent: start counting anew.
void UcxEnd::forgive_own_stall(TimePoint now) {
  const TimePoint due = std::max(last_turn_, planned_);
  if (last_turn_ != TimePoint{} && now > due + milliseconds(config_.heartbeat_lost_ms / 2)) {
    for (auto& [endpoint, connection] : connections_) connection->last_heard = now;
  }
  last_turn_ = now;
  planned_ = now;
}

void UcxEnd::sleep(TimePoint now) {
  int timeout_ms = -1;
  if (next_look_ != TimePoint::max()) {
    const auto left = std::chrono::ceil<milliseconds>(next_look_ - now).count();
    timeout_ms = static_cast<int>(std::clamp<int64_t>(left, 0, 60000));
    planned_ = now + milliseconds(timeout_ms);
  } else {
    planned_ = TimePoint::max() - milliseconds(config_.heartbeat_lost_ms);
  }
  // Copies of a device end without a byte on the network: not left to the descriptor alone.
  if (device_moves_ > 0 && (timeout_ms < 0 || timeout_ms > kDevicePollMs)) {
    timeout_ms = kDevicePollMs;
  }
  worker_->wait(
      timeout_ms,
      [](void* arg) {
        auto* self = static_cast<UcxEnd*>(arg);
        return self->mailbox_.pending() || (self->stop_requested_ && !self->stopping_);
      },
      this);
}

bool UcxEnd::stopped(TimePoint now) {
  if (!stop_requested_) return false;
  if (!stopping_) {
    stopping_ = true;
    stop_until_ = now + milliseconds(kStopDrainsMax * config_.drain_ms + 1000);
    on_stop();
    attend();
  }
  if (!has_transfers()) {
    if (connections_.empty()) return true;
    for (auto& [endpoint, connection] : connections_) {
      if (connection->state() == Connection::State::kHello) {
        connection->said_bye = true;
        connection->break_off(make_error(Code::kCancelled, "closing"));
      } else if (connection->state() == Connection::State::kOpen) {
        leave(*connection);
      }
    }
  }
  next_look_ = std::min(next_look_, stop_until_);
  if (now < stop_until_) return false;
  // UCX did not complete what it was given. Without progress it touches nothing any more.
  on_abandon();
  run_deferred();
  worker_->abandon();
  new auto(std::move(connections_));  // their operations refer to them for ever
  return true;
}

void UcxEnd::loop() {
  if (config_.on_thread_start) config_.on_thread_start();
  TimePoint last_work = SteadyClock::now();
  while (true) {
    bool worked = progress();
    if (mailbox_.pending()) {
      mailbox_.run();
      attention_ = worked = true;
    }
    TimePoint now = SteadyClock::now();
    forgive_own_stall(now);
    if (attention_ || now >= next_look_) look(now);
    worked = worked || !deferred_.empty();
    run_deferred();
    if (stopped(now)) break;
    now = SteadyClock::now();
    if (worked || attention_) {
      last_work = now;
    } else if (now - last_work >= kSpin) {
      sleep(now);
    }
  }
  run_deferred();
  connections_.clear();
}

}  // namespace akv::transport
