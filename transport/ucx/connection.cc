#include "transport/ucx/connection.h"

#include <ucp/api/ucp.h>

#include "common/base/check.h"

namespace akv::transport {
namespace {

// Small records are copied by UCX at once; a rendezvous costs a round trip.
constexpr size_t kEagerBytesMax = 32 << 10;
// Unsent small messages on one connection. A peer that provokes more (by refusals) is dropped.
constexpr uint32_t kControlsMax = 1024;

// Said rather than left to UCX's detection, which asks the driver for each buffer.
void set_memory_type(ucp_request_param_t& param, const UcxWorker& worker) {
  param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.memory_type =
      worker.device_memory() == DeviceMemory::kCuda ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
}

}  // namespace

enum class Kind { kControl, kPing, kRecord, kReceive, kFlush, kClose };

struct Connection::Operation {
  ConnectionPtr connection;
  Kind kind = Kind::kControl;
  std::string bytes;  // the message, or the record's header: valid until the callback
  Payload payload;
  std::span<std::byte> to;
  DoneFn done;
};

// UCX's callbacks, in one place with access to the connection.
struct Callbacks {
  using Operation = Connection::Operation;

  static void on_send(void* request, ucs_status_t status, void* arg) {
    auto* operation = static_cast<Operation*>(arg);
    ucp_request_free(request);
    operation->connection->finish(operation, status);
  }

  static void on_receive(void* request, ucs_status_t status, size_t length, void* arg) {
    auto* operation = static_cast<Operation*>(arg);
    ucp_request_free(request);
    if (status == UCS_OK && length != operation->to.size()) status = UCS_ERR_MESSAGE_TRUNCATED;
    operation->connection->finish(operation, status);
  }

  static void on_error(void* arg, ucp_ep_h, ucs_status_t status) {
    auto* connection = static_cast<Connection*>(arg);
    connection->break_off(ucx_error(status, "connection to " + connection->peer_));
  }

  static Result<ConnectionPtr> connect(UcxWorker& worker, ucp_ep_params_t& params, std::string peer,
                                       Connection::AttentionFn attend) {
    ConnectionPtr self(new Connection);
    self->worker_ = &worker;
    self->peer_ = std::move(peer);
    self->attend_ = std::move(attend);
    params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler.cb = on_error;
    params.err_handler.arg = self.get();
    const ucs_status_t status = ucp_ep_create(worker.handle(), &params, &self->endpoint_);
    if (status != UCS_OK) {
      self->endpoint_ = nullptr;
      return ucx_error(status, "cannot connect to " + self->peer_);
    }
    return self;
  }
};

Result<ConnectionPtr> Connection::dial(UcxWorker& worker, const SocketAddress& to,
                                       const SocketAddress* local, AttentionFn attend) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&to.storage);
  params.sockaddr.addrlen = to.size;
  if (local != nullptr) {
    params.field_mask |= UCP_EP_PARAM_FIELD_LOCAL_SOCK_ADDR;
    params.local_sockaddr.addr = reinterpret_cast<const sockaddr*>(&local->storage);
    params.local_sockaddr.addrlen = local->size;
  }
  return Callbacks::connect(worker, params, to_host_port(to.storage).str(), std::move(attend));
}

Result<ConnectionPtr> Connection::accept(UcxWorker& worker, ucp_conn_request* request,
                                         AttentionFn attend) {
  ucp_conn_request_attr_t attr{};
  attr.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR;
  std::string peer = "an unknown peer";
  if (ucp_conn_request_query(request, &attr) == UCS_OK) {
    peer = to_host_port(attr.client_address).str();
  }
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  return Callbacks::connect(worker, params, std::move(peer), std::move(attend));
}

Connection::~Connection() {
  // A connection whose worker was abandoned keeps its operations, which refer to it, and so never
  // comes here.
  AKV_CHECK(endpoint_ == nullptr || gone());
}

void Connection::start(Operation* operation, void* request) {
  if (UCS_PTR_IS_PTR(request)) return;  // the callback will come
  finish(operation, UCS_PTR_STATUS(request));
}

void Connection::finish(Operation* raw, int status) {
  std::unique_ptr<Operation> operation(raw);
  --operations_;
  if (operation->kind == Kind::kControl || operation->kind == Kind::kPing) --controls_;
  if (operation->kind == Kind::kFlush) --flushes_;
  if (operation->kind == Kind::kPing) ping_unsent = false;
  const bool moved = operation->kind == Kind::kRecord || operation->kind == Kind::kReceive;
  if (status == UCS_OK && moved) last_heard = SteadyClock::now();
  if (status != UCS_OK && operation->kind != Kind::kClose && operation->kind != Kind::kFlush) {
    break_off(ucx_error(status, "connection to " + peer_));
  }
  if (operation->done) operation->done(status == UCS_OK);
  attend_();
}

void Connection::send(const wire::Message& message) {
  if (broken_ || state_ == State::kClosing || state_ == State::kLeaving) return;
  if (controls_ >= kControlsMax) {
    break_off(make_error(Code::kResourceExhausted, peer_ + " does not take our messages"));
    return;
  }
  const bool ping = message.type == wire::Type::kPing;
  auto* operation = new Operation{
      shared_from_this(), ping ? Kind::kPing : Kind::kControl, encode(message), {}, {}, {}};
  ++operations_;
  ++controls_;
  if (ping) ping_unsent = true;
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = Callbacks::on_send;
  param.user_data = operation;
  start(operation, ucp_am_send_nbx(endpoint_, wire::kControlAm, nullptr, 0, operation->bytes.data(),
                                   operation->bytes.size(), &param));
}

bool Connection::by_rendezvous(size_t bytes) { return bytes > kEagerBytesMax; }

void Connection::send_record(const wire::RecordHeader& header, Payload payload, DoneFn done) {
  auto* operation = new Operation{
      shared_from_this(), Kind::kRecord, encode(header), std::move(payload), {}, std::move(done)};
  ++operations_;
  if (broken_ || state_ != State::kOpen) {
    finish(operation, UCS_ERR_NOT_CONNECTED);
    return;
  }
  const std::span<const std::byte> bytes = operation->payload.bytes;
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_REPLY |
                (by_rendezvous(bytes.size()) ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER);
  param.cb.send = Callbacks::on_send;
  param.user_data = operation;
  const std::byte* from = bytes.data();
  if (header.on_device) {
    from = operation->payload.device;
    set_memory_type(param, *worker_);
  }
  start(operation, ucp_am_send_nbx(endpoint_, wire::kRecordAm, operation->bytes.data(),
                                   operation->bytes.size(), from, bytes.size(), &param));
}

void Connection::receive(void* descriptor, std::span<std::byte> to, bool on_device, DoneFn done) {
  auto* operation = new Operation{shared_from_this(), Kind::kReceive, {}, {}, to, std::move(done)};
  ++operations_;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.recv_am = Callbacks::on_receive;
  param.user_data = operation;
  if (on_device) set_memory_type(param, *worker_);
  void* request = ucp_am_recv_data_nbx(worker_->handle(), descriptor, to.data(), to.size(), &param);
  start(operation, request);
}

void Connection::break_off(Error error) {
  if (broken_ || state_ == State::kClosing) return;
  broken_ = std::move(error);
  attend_();
}

void Connection::leave(TimePoint until) {
  if (broken_ || state_ == State::kLeaving || state_ == State::kClosing) return;
  wire::Message bye;
  bye.type = wire::Type::kBye;
  send(bye);
  leave_until_ = until;
  state_ = State::kLeaving;
  auto* operation = new Operation{shared_from_this(), Kind::kFlush, {}, {}, {}, {}};
  ++operations_;
  ++flushes_;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = Callbacks::on_send;
  param.user_data = operation;
  start(operation, ucp_ep_flush_nbx(endpoint_, &param));
}

void Connection::abort() {
  if (state_ == State::kClosing) return;
  state_ = State::kClosing;
  auto* operation = new Operation{shared_from_this(), Kind::kClose, {}, {}, {}, {}};
  ++operations_;
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  param.cb.send = Callbacks::on_send;
  param.user_data = operation;
  start(operation, ucp_ep_close_nbx(endpoint_, &param));
}

std::string Connection::transports() const {
  ucp_transport_entry_t entries[16];
  ucp_ep_attr_t attr{};
  attr.field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS;
  attr.transports.entries = entries;
  attr.transports.num_entries = 16;
  attr.transports.entry_size = sizeof(ucp_transport_entry_t);
  if (ucp_ep_query(endpoint_, &attr) != UCS_OK) return {};
  std::string out;
  for (unsigned i = 0; i < attr.transports.num_entries; ++i) {
    if (!out.empty()) out += ' ';
    out.append(entries[i].transport_name).append("/").append(entries[i].device_name);
  }
  return out;
}

}  // namespace akv::transport
