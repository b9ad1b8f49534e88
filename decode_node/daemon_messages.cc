// What arrives over the control plane, and what the parts of this process say.
#include "decode_node/daemon.h"

namespace akv::decode {
namespace {

template <class Variant, class M>
bool try_decode(const net::ControlMessage& message, std::optional<Variant>& out,
                std::string& error) {
  if (message.type != proto::type_of<M>()) return false;
  auto decoded = proto::decode<M>(message.type, message.body, message.blob);
  if (decoded) {
    out = std::move(*decoded.value);
  } else {
    error = decoded.error;
  }
  return true;
}

// Decodes a message into whichever alternative of the variant has its type.
template <class Variant, class... M>
std::optional<Variant> decode_any(const net::ControlMessage& message, std::string& error) {
  std::optional<Variant> out;
  (void)(try_decode<Variant, M>(message, out, error) || ...);
  return out;
}

}  // namespace

void Daemon::on_message(net::PeerId peer, net::ControlMessage&& message) {
  if (parts_.peers->is_dialed(peer)) {
    on_dialed_message(peer, message);
  } else {
    on_client_message(peer, message);
  }
}

// From a prefill or decode peer of ours.
void Daemon::on_dialed_message(net::PeerId peer, const net::ControlMessage& message) {
  if (message.type == proto::type_of<proto::Welcome>()) {
    const auto welcome = proto::decode<proto::Welcome>(message.type, message.body, message.blob);
    if (welcome) return parts_.peers->on_welcome(peer, welcome.value->hello);
    return parts_.peers->on_refused(peer, "its WELCOME is malformed: " + welcome.error);
  }
  if (message.type == proto::type_of<proto::Refused>()) {
    const auto refused = proto::decode<proto::Refused>(message.type, message.body, message.blob);
    return parts_.peers->on_refused(peer, refused ? refused.value->reason : refused.error);
  }
  std::string error = "not a message of a prefill or decode node";
  auto event = decode_any<PeerEvent, proto::Queued, proto::Started, proto::FirstToken, proto::Sent,
                          proto::Failed, proto::Opened, proto::Landed, proto::Tokens, proto::Done>(
      message, error);
  if (event) return parts_.dispatcher->on_event(peer, std::move(*event));
  context_.log.warn("control message refused",
                    {{"peer", peer}, {"type", message.type}, {"error", error}});
}

// From a front door elsewhere that uses this node's engine.
void Daemon::on_client_message(net::PeerId peer, const net::ControlMessage& message) {
  if (message.type == proto::type_of<proto::Hello>()) {
    const auto hello = proto::decode<proto::Hello>(message.type, message.body, message.blob);
    if (hello) return on_hello(peer, *hello.value);
  }
  std::string error = "not a message of a decode node";
  auto command = decode_any<EngineCommand, proto::Open, proto::Start, proto::Close>(message, error);
  if (!greeted_.contains(peer)) error = "no HELLO came before it";
  if (!parts_.engine) error = "this node has no engine";
  if (command && greeted_.contains(peer) && parts_.engine) {
    return parts_.engine->handle(peer, std::move(*command));
  }
  context_.log.warn("control message refused",
                    {{"peer", peer}, {"type", message.type}, {"error", error}});
  const proto::Refused refused{.reason = message.type + ": " + error};
  (void)parts_.control->send(peer, to_message(proto::encode(refused))).ok();
}

void Daemon::on_hello(net::PeerId peer, const proto::Hello& hello) {
  std::string difference = proto::incompatibility(hello_, hello);
  if (difference.empty() && !parts_.engine) difference = "this node decodes nothing";
  if (difference.empty() && config_.local) difference = "this node serves only itself (--local)";
  if (!difference.empty()) {
    context_.log.warn("peer refused", {{"peer_node", hello.node}, {"reason", difference}});
    (void)parts_.control
        ->send(peer, to_message(proto::encode(proto::Refused{.reason = difference})))
        .ok();
    return;
  }
  greeted_[peer] = hello.node;
  context_.log.info("peer greeted", {{"peer_node", hello.node}, {"role", hello.role}});
  (void)parts_.control->send(peer, to_message(proto::encode(proto::Welcome{.hello = hello_}))).ok();
}

void Daemon::on_peer(const net::PeerEvent& event) {
  if (event.dialed) return parts_.peers->on_peer(event);
  if (event.up || greeted_.erase(event.peer) == 0) return;
  context_.log.info("peer lost", {{"peer", event.peer}, {"reason", event.reason}});
  if (parts_.engine) parts_.engine->owner_lost(event.peer);
}

void Daemon::emit(uint64_t owner, EngineEvent&& event) {
  if (owner == 0) {
    std::visit([&](auto&& m) { emit_local(PeerEvent(std::forward<decltype(m)>(m))); },
               std::move(event));
    return;
  }
  auto message = to_message(std::visit([](const auto& m) { return proto::encode(m); }, event));
  parts_.control->post([this, owner, message = std::move(message)] {
    (void)parts_.control->send_or_lose_peer(owner, message).ok();
  });
}

void Daemon::emit_local(PeerEvent&& event) {
  parts_.control->post([this, event = std::move(event)]() mutable {
    parts_.dispatcher->on_event(kLocalPeer, std::move(event));
  });
}

proto::Load Daemon::heartbeat_load() const {
  proto::Load load;
  if (parts_.engine) load = parts_.engine->load();
  load.draining = parts_.dispatcher->readiness().draining;
  load.ready = parts_.engine != nullptr && !load.draining;
  return load;
}

void Daemon::on_first_token(double seconds) { parts_.probe->first_token(seconds); }
void Daemon::on_inter_token(double seconds) { parts_.probe->inter_token(seconds); }
void Daemon::on_finished(const api::RequestRecord& record) {
  parts_.probe->request_ended(record.outcome);
  parts_.probe->request_seconds(record.e2e_ms / 1000);
  parts_.probe->tokens(record.prompt_tokens, record.completion_tokens);
}

}  // namespace akv::decode
