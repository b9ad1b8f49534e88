// Internal to net: the frames of the control plane.
//
//   ping:    "AKV" 1 'P'  interval_ms:u32                   | heartbeat body
//   pong:    "AKV" 1 'Q'  incarnation:u64 session:u64       | heartbeat body
//   message: "AKV" 1 'M'  type                              | body | blob (left out when empty)
//
// Little-endian. Frame 0 never changes its first four bytes: a peer of any version can tell.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/net/control_loop.h"

namespace akv::net {

struct Ping {
  uint32_t interval_ms = 0;  // how often the dialler pings
};
struct Pong {
  uint64_t incarnation = 0;  // of the answering loop: changes when its process restarts
  uint64_t session = 0;      // of this dialler at that loop: changes when it was given up meanwhile
};

struct WireMessage {
  enum class Kind : char { kPing = 'P', kPong = 'Q', kMessage = 'M' };
  Kind kind = Kind::kMessage;
  Ping ping;
  Pong pong;
  ControlMessage message;  // of a ping or pong only the body
};

std::string encode_header(const Ping& ping);
std::string encode_header(const Pong& pong);
std::string encode_header(std::string_view type);
bool valid_type(std::string_view type);

// nullopt for anything that is not exactly one of the above within the size bounds.
std::optional<WireMessage> decode_frames(std::vector<std::string>&& frames,
                                         const ControlLoopOptions& options);

}  // namespace akv::net
