// How the dispatcher reaches a peer: a function call in this process, a control message elsewhere.
#pragma once

#include <utility>

#include "decode_node/dispatch/dispatcher.h"

namespace akv::decode {

template <class M>
bool Dispatcher::tell_prefill(net::PeerId peer, M&& message) {
  if (peer != kLocalPeer) return control_.send(peer, to_message(proto::encode(message))).ok();
  if (!local_.prefill) return false;
  local_.prefill(PrefillCommand(std::forward<M>(message)));
  return true;
}

template <class M>
bool Dispatcher::tell_engine(net::PeerId peer, M&& message) {
  if (peer != kLocalPeer) return control_.send(peer, to_message(proto::encode(message))).ok();
  if (!local_.engine) return false;
  local_.engine(EngineCommand(std::forward<M>(message)));
  return true;
}

}  // namespace akv::decode
