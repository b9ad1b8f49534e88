// The prefill and decode peers of a front door: whom to dial, who fits, who is loaded least.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/units.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/net/control_loop.h"
#include "proto/control.h"

namespace akv::decode {

enum class Role { kPrefill, kDecode };
const char* role_name(Role role);

// The part of this process that plays a role: its own engine, or --local's prefill.
inline constexpr net::PeerId kLocalPeer = 0;

struct Peer {
  enum class State { kConnecting, kUp, kRefused, kDown };
  net::PeerId id = 0;
  Role role = Role::kPrefill;
  HostPort address;  // of remote ones
  State state = State::kConnecting;
  std::string node;                 // from its WELCOME
  std::string reason;               // of kRefused and kDown
  proto::Load load;                 // of its last heartbeat
  uint64_t outstanding_tokens = 0;  // prompt tokens that we sent there and that are not done
  uint64_t last_pick = 0;           // number of the pick that chose it last; 0: none
  // Work of ours there is over. The last heartbeat counted it too, so it is taken out of both.
  void done(uint64_t tokens) {
    outstanding_tokens -= std::min(outstanding_tokens, tokens);
    load.queue_tokens -= std::min(load.queue_tokens, tokens);
  }
  bool usable() const { return state == State::kUp && !load.draining && load.ready; }
};

// Control thread only, but for the snapshots.
class Peers {
 public:
  Peers(net::ControlLoop& control, Logger log) : control_(control), log_(std::move(log)) {}

  // What we say in HELLO.
  void set_hello(proto::Hello hello) { hello_ = std::move(hello); }
  // A role played in this process; load is asked at each pick.
  void add_local(Role role, std::string node, std::function<proto::Load()> load);
  // The remote peers of a role are exactly these from now on: new ones are dialled, others dropped
  // (on_lost runs for them).
  void set_remote(Role role, const std::vector<HostPort>& addresses);

  // The least loaded usable peer, or null; of equals the part in this process, then the one that
  // was picked longest ago, so that idle peers take turns and a new one gets work. `avoid` is taken
  // only when nobody else is usable.
  Peer* pick(Role role, net::PeerId avoid = ~net::PeerId{0});
  Peer* find(Role role, net::PeerId id);
  bool is_dialed(net::PeerId id) const { return remote_.contains(id); }

  void on_peer(const net::PeerEvent& event);
  void on_heartbeat(net::PeerId id, std::string_view body);
  void on_welcome(net::PeerId id, const proto::Hello& hello);
  void on_refused(net::PeerId id, const std::string& reason);

  // Called when a usable peer is usable no more; what it had in work is lost.
  std::function<void(const Peer&)> on_lost;

  // Refreshes what the snapshots show; called once a heartbeat.
  void refresh();
  // [thread-safe] Why requests cannot be served now; empty when they can.
  std::string unready_reason() const;
  std::vector<GaugeSample> count_samples() const;
  std::vector<GaugeSample> age_samples() const;

 private:
  struct Local {
    Peer peer;
    std::function<proto::Load()> load;
  };
  void lose(Peer& peer, Peer::State state, const std::string& reason);
  std::string lost_part() const;
  std::string reason_for(Role role) const;

  net::ControlLoop& control_;
  const Logger log_;
  proto::Hello hello_;
  std::map<Role, Local> local_;
  std::map<net::PeerId, Peer> remote_;
  uint64_t picks_ = 0;

  mutable std::mutex snapshot_mutex_;
  std::string unready_ = "starting";
  std::vector<GaugeSample> counts_;
  std::vector<GaugeSample> ages_;
};

// The control message of an encoded wire message.
net::ControlMessage to_message(proto::Frames&& frames);

}  // namespace akv::decode
