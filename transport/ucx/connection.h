// One UCX endpoint with everything that is outstanding on it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "transport/transport.h"
#include "transport/ucx/wire.h"
#include "transport/ucx/worker.h"

struct ucp_ep;

namespace akv::transport {

// Belongs to the progress thread. The rule that keeps memory safe: every operation is counted in
// operations() from before UCX sees it until its callback ran, each operation holds a reference to
// its connection, and the owner lets a connection go only when gone().
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  enum class State {
    kHello,  // the other end has not introduced itself yet
    kOpen,
    kLeaving,  // BYE was sent, being flushed
    kClosing,  // FORCE closed, operations drain
  };
  using DoneFn = std::function<void(bool ok)>;
  // Called on the progress thread when the owner should look at the connection.
  using AttentionFn = std::function<void()>;

  // Errors: kUnavailable and others of ucx_error.
  static Result<std::shared_ptr<Connection>> dial(UcxWorker& worker, const SocketAddress& to,
                                                  const SocketAddress* local, AttentionFn attend);
  static Result<std::shared_ptr<Connection>> accept(UcxWorker& worker, ucp_conn_request* request,
                                                    AttentionFn attend);
  ~Connection();

  // Sends a small message; dropped on a connection that is broken or closing. Too many unsent ones
  // break the connection.
  void send(const wire::Message& message);
  // Whether a record of this size goes by rendezvous; a smaller one is copied.
  static bool by_rendezvous(size_t bytes);
  // Sends a record, copied when small, by rendezvous otherwise; from payload.device where the
  // header says on_device. done(ok) runs exactly once, when the payload is not read any more.
  void send_record(const wire::RecordHeader& header, Payload payload, DoneFn done);
  // Lets the rendezvous that `descriptor` announces write into `to`. done(ok) runs exactly once,
  // when nothing writes there any more; ok only if exactly to.size() bytes came. `on_device`: `to`
  // is device memory.
  void receive(void* descriptor, std::span<std::byte> to, bool on_device, DoneFn done);

  // First cause wins. The owner sees it at its next look, tells its transfers and calls abort().
  void break_off(Error error);
  const std::optional<Error>& broken() const { return broken_; }

  // Sends BYE and flushes; the owner calls abort() when left() or at leave_until().
  void leave(TimePoint until);
  bool left() const { return state_ == State::kLeaving && flushes_ == 0 && controls_ == 0; }
  TimePoint leave_until() const { return leave_until_; }

  // FORCE close: the only thing in UCX that ends a rendezvous. Outstanding operations end, failed,
  // within the next progress calls.
  void abort();
  bool gone() const { return state_ == State::kClosing && operations_ == 0; }

  State state() const { return state_; }
  void set_open() { state_ = State::kOpen; }
  uint32_t operations() const { return operations_; }
  ucp_ep* endpoint() const { return endpoint_; }
  // "127.0.0.1:4711".
  const std::string& peer() const { return peer_; }
  // The transports that UCX chose, e.g. "tcp/lo posix/memory"; empty before the hello.
  std::string transports() const;

  TimePoint created = SteadyClock::now();
  TimePoint last_heard = created;  // any sign of life
  TimePoint last_ping = created;   // sent
  bool ping_unsent = false;        // one ping at a time waits behind bulk data
  bool said_bye = false;           // the peer closes on purpose

 private:
  struct Operation;
  Connection() = default;
  void start(Operation* operation, void* request);
  void finish(Operation* operation, int status);
  friend struct Callbacks;

  UcxWorker* worker_ = nullptr;
  ucp_ep* endpoint_ = nullptr;
  AttentionFn attend_;
  std::string peer_;
  State state_ = State::kHello;
  std::optional<Error> broken_;
  TimePoint leave_until_{};
  uint32_t operations_ = 0;  // everything that UCX owes us a callback for, the close included
  uint32_t controls_ = 0;    // of them: small messages
  uint32_t flushes_ = 0;     // of them: flushes
};
using ConnectionPtr = std::shared_ptr<Connection>;

}  // namespace akv::transport
