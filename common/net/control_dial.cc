// The control loop's sockets: binding, dialling, reconnecting, and what a dialled peer says.
#include <zmq.h>

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/net/control_impl.h"

namespace akv::net {
namespace {

constexpr int kReadBatch = 256;

Error bind_error(int error, const HostPort& address) {
  const std::string what = "cannot bind the control address " + address.str() + ": ";
  const Code code = error == EADDRINUSE ? Code::kAddressInUse : Code::kInvalidArgument;
  return make_error(code, what + errno_text(error));
}

HostPort address_of(const std::string& endpoint, const HostPort& asked) {
  const size_t colon = endpoint.rfind(':');
  HostPort address = asked;
  address.port = static_cast<uint16_t>(std::stoi(endpoint.substr(colon + 1)));
  return address;
}

}  // namespace

void ControlLoop::Impl::set_common(ZmqSocket& socket) const {
  socket.set(ZMQ_SNDHWM, options_.send_queue_messages);
  socket.set(ZMQ_RCVHWM, options_.receive_queue_messages);
  socket.set(ZMQ_HANDSHAKE_IVL, std::max(1000, options_.lost_after * options_.heartbeat_ms));
  const int64_t max_bytes =
      static_cast<int64_t>(std::max(options_.max_body_bytes, options_.max_blob_bytes));
  AKV_CHECK(zmq_setsockopt(socket.handle(), ZMQ_MAXMSGSIZE, &max_bytes, sizeof max_bytes) == 0);
}

Status ControlLoop::Impl::open() {
  if (options_.heartbeat_ms < 10 || options_.heartbeat_ms > 60000)
    return make_error(Code::kInvalidArgument, "heartbeat_ms takes 10 to 60000");
  if (options_.curve) {
    AKV_RETURN_IF_ERROR(check_curve(*options_.curve));
    curve_ = *options_.curve;
    gate_.set(curve_);
  }
  if (!options_.bind) return {};
  if (options_.curve) {
    // In place before the first handshake can ask.
    zap_ = ZmqSocket(context_, ZMQ_REP);
    AKV_CHECK(zap_.bind("inproc://zeromq.zap.01") == 0);
  }
  router_ = ZmqSocket(context_, ZMQ_ROUTER);
  set_common(router_);
  router_.set(ZMQ_ROUTER_MANDATORY, 1);
  router_.set(ZMQ_ROUTER_HANDOVER, 1);
  // Ends connections of machines that vanished; the loop's own beats decide about peers.
  router_.set(ZMQ_HEARTBEAT_IVL, 10000);
  router_.set(ZMQ_HEARTBEAT_TIMEOUT, 30000);
  if (options_.bind->host.find(':') != std::string::npos) router_.set(ZMQ_IPV6, 1);
  if (options_.curve) {
    router_.set(ZMQ_CURVE_SERVER, 1);
    router_.set(ZMQ_CURVE_SECRETKEY, curve_.keys.secret_key);
    router_.set(ZMQ_ZAP_DOMAIN, std::string_view("akv"));
  }
  if (const int error = router_.bind(zmq_endpoint(*options_.bind)))
    return bind_error(error, *options_.bind);
  bound_ = address_of(router_.last_endpoint(), *options_.bind);
  return {};
}

PeerId ControlLoop::Impl::dial(const HostPort& address) {
  const PeerId id = ++last_peer_;
  post(
      [this, id, address] {
        Peer& peer = peers_[id];
        peer.id = id;
        peer.dial = std::make_unique<Dial>();
        peer.dial->address = address;
        peer.dial->text = address.str();
        open_dial(peer);
      },
      true);
  return id;
}

void ControlLoop::Impl::open_dial(Peer& peer) {
  Dial& dial = *peer.dial;
  dial.reopen_at.reset();
  dial.last_pong = {};
  // A fresh identity for each socket: what the other side still holds for the old one is never
  // mistaken for ours.
  dial.socket = ZmqSocket(context_, ZMQ_DEALER);
  set_common(dial.socket);
  dial.socket.set(ZMQ_ROUTING_ID, Id128::random().hex());
  // Nothing queues for a peer that is not there.
  dial.socket.set(ZMQ_IMMEDIATE, 1);
  dial.socket.set(ZMQ_RECONNECT_IVL, options_.reconnect_min_ms);
  dial.socket.set(ZMQ_RECONNECT_IVL_MAX, options_.reconnect_max_ms);
  dial.socket.set(ZMQ_CONNECT_TIMEOUT, std::max(1000, options_.reconnect_max_ms));
  if (dial.address.host.find(':') != std::string::npos) dial.socket.set(ZMQ_IPV6, 1);
  if (options_.curve) {
    dial.socket.set(ZMQ_CURVE_SERVERKEY, gate_.server_key(dial.text));
    dial.socket.set(ZMQ_CURVE_PUBLICKEY, curve_.keys.public_key);
    dial.socket.set(ZMQ_CURVE_SECRETKEY, curve_.keys.secret_key);
  }
  const std::string name = "monitor-" + std::to_string(++last_monitor_);
  dial.monitor = dial.socket.monitor(
      context_, name,
      ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
          ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL);
  // A name that does not resolve now is tried again like a peer that is down.
  if (dial.socket.connect(zmq_endpoint(dial.address)) != 0)
    reopen_later(peer, options_.reconnect_max_ms);
}

void ControlLoop::Impl::close_dial(Peer& peer) {
  Dial& dial = *peer.dial;
  if (dial.socket.is_open()) zmq_socket_monitor(dial.socket.handle(), nullptr, 0);
  dial.monitor.close();
  dial.socket.close();
}

void ControlLoop::Impl::reopen_later(Peer& peer, int delay_ms) {
  close_dial(peer);
  peer.dial->reopen_at = after_ms(delay_ms);
}

void ControlLoop::Impl::read_dial(Peer& peer) {
  std::vector<std::string> parts;
  for (int i = 0; i < kReadBatch && peer.dial->socket.receive(parts, 3) == 0; ++i) {
    std::optional<WireMessage> wire = decode_frames(std::move(parts), options_);
    if (wire) on_dial_message(peer, std::move(*wire));
  }
}

void ControlLoop::Impl::on_dial_message(Peer& peer, WireMessage&& wire) {
  if (wire.kind == WireMessage::Kind::kMessage) {
    if (!peer.up) return;
    peer.heard = SteadyClock::now();
    if (handlers_.on_message) handlers_.on_message(peer.id, std::move(wire.message));
    return;
  }
  if (wire.kind != WireMessage::Kind::kPong) return;
  peer.heard = SteadyClock::now();
  Pong& last = peer.dial->last_pong;
  const bool restarted = wire.pong.incarnation != last.incarnation;
  if (peer.up && (restarted || wire.pong.session != last.session))
    go_down(peer, restarted ? "restarted" : "given up by the peer");
  last = wire.pong;
  if (!peer.up) go_up(peer);
  if (handlers_.on_heartbeat) handlers_.on_heartbeat(peer.id, wire.message.body);
}

void ControlLoop::Impl::read_monitor(Peer& peer) {
  std::vector<std::string> parts;
  while (peer.dial->monitor.is_open() && peer.dial->monitor.receive(parts, 2) == 0) {
    if (parts.empty() || parts[0].size() < sizeof(uint16_t)) continue;
    uint16_t event = 0;
    std::memcpy(&event, parts[0].data(), sizeof event);
    if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
      // Connected: ask at once instead of at the next beat.
      send_ping(*peer.dial);
    } else if (event == ZMQ_EVENT_DISCONNECTED) {
      if (!peer.up) continue;  // libzmq's own back-off goes on
      reopen_later(peer, options_.reconnect_min_ms);
      go_down(peer, "connection lost");
    } else if (!peer.up) {
      // libzmq gives up after a refusal; the keys may be put right meanwhile.
      reopen_later(peer, options_.reconnect_max_ms);
      report_down(peer, "handshake refused: keys or protocol do not fit");
    }
  }
}

void ControlLoop::Impl::set_curve_peers(std::vector<CurvePeer> peers) {
  if (!options_.curve) return;
  curve_.peers = std::move(peers);
  gate_.set(curve_);
  for (auto& [id, peer] : peers_)
    if (peer.dial && !peer.up) reopen_later(peer, options_.reconnect_min_ms);
}

}  // namespace akv::net
