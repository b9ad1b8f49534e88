// How the dispatcher reaches a peer: a function call in this process, a control message elsewhere.
#pragma once

#include <type_traits>
#include <utility>

#include "decode_node/dispatch/dispatcher.h"

namespace akv::decode {

// What asks for something is simply asked elsewhere when a peer's queue is full; what starts or
// ends something there must not be missed.
template <class M>
bool Dispatcher::tell_remote(net::PeerId peer, const M& message) {
  constexpr bool asks = std::is_same_v<M, proto::Open> || std::is_same_v<M, proto::Prefill> ||
                        std::is_same_v<M, proto::Resend>;
  const net::ControlMessage wire = to_message(proto::encode(message));
  return (asks ? control_.send(peer, wire) : control_.send_or_lose_peer(peer, wire)).ok();
}

template <class M>
bool Dispatcher::tell_prefill(net::PeerId peer, M&& message) {
  if (peer != kLocalPeer) return tell_remote<std::remove_cvref_t<M>>(peer, message);
  if (!local_.prefill) return false;
  local_.prefill(PrefillCommand(std::forward<M>(message)));
  return true;
}

template <class M>
bool Dispatcher::tell_engine(net::PeerId peer, M&& message) {
  if (peer != kLocalPeer) return tell_remote<std::remove_cvref_t<M>>(peer, message);
  if (!local_.engine) return false;
  local_.engine(EngineCommand(std::forward<M>(message)));
  return true;
}

}  // namespace akv::decode
