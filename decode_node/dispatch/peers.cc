#include "decode_node/dispatch/peers.h"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

namespace akv::decode {
namespace {

const char* state_name(const Peer& peer) {
  switch (peer.state) {
    case Peer::State::kConnecting:
      return "connecting";
    case Peer::State::kUp:
      return peer.load.draining ? "draining" : "up";
    case Peer::State::kRefused:
      return "refused";
    case Peer::State::kDown:
      return "down";
  }
  return "unknown";
}

// Work that waits at a peer: for prefill the tokens before us, for decode the bytes it holds.
uint64_t burden(const Peer& peer) {
  if (peer.role == Role::kPrefill) return std::max(peer.outstanding_tokens, peer.load.queue_tokens);
  return peer.outstanding_tokens + peer.load.queue_tokens;
}

}  // namespace

const char* role_name(Role role) { return role == Role::kPrefill ? "prefill" : "decode"; }

net::ControlMessage to_message(proto::Frames&& frames) {
  return {std::move(frames.type), std::move(frames.body), std::move(frames.blob)};
}

void Peers::add_local(Role role, std::string node, std::function<proto::Load()> load) {
  Local& local = local_[role];
  local.peer.id = kLocalPeer;
  local.peer.role = role;
  local.peer.state = Peer::State::kUp;
  local.peer.node = std::move(node);
  local.load = std::move(load);
}

void Peers::set_remote(Role role, const std::vector<HostPort>& addresses) {
  std::vector<net::PeerId> gone;
  for (auto& [id, peer] : remote_) {
    if (peer.role == role &&
        std::find(addresses.begin(), addresses.end(), peer.address) == addresses.end()) {
      gone.push_back(id);
    }
  }
  for (const net::PeerId id : gone) {
    lose(remote_.at(id), Peer::State::kDown, "no longer listed");
    control_.hang_up(id);
    remote_.erase(id);
  }
  for (const HostPort& address : addresses) {
    const bool known = std::any_of(remote_.begin(), remote_.end(), [&](const auto& entry) {
      return entry.second.role == role && entry.second.address == address;
    });
    if (known) continue;
    const net::PeerId id = control_.dial(address);
    Peer& peer = remote_[id];
    peer.id = id;
    peer.role = role;
    peer.address = address;
    log_.info("peer listed", {{"role", role_name(role)}, {"peer", address.str()}});
  }
  refresh();
}

Peer* Peers::pick(Role role, net::PeerId avoid) {
  Peer* best = nullptr;
  const auto key = [avoid](const Peer& peer) {
    return std::make_tuple(peer.id == avoid, burden(peer), peer.id != kLocalPeer, peer.last_pick);
  };
  const auto consider = [&](Peer& peer) {
    if (peer.usable() && (best == nullptr || key(peer) < key(*best))) best = &peer;
  };
  const auto local = local_.find(role);
  if (local != local_.end()) {
    local->second.peer.load = local->second.load();
    consider(local->second.peer);
  }
  for (auto& [id, peer] : remote_) {
    if (peer.role == role) consider(peer);
  }
  if (best != nullptr) best->last_pick = ++picks_;
  return best;
}

Peer* Peers::find(Role role, net::PeerId id) {
  if (id == kLocalPeer) {
    const auto local = local_.find(role);
    return local == local_.end() ? nullptr : &local->second.peer;
  }
  const auto remote = remote_.find(id);
  return remote == remote_.end() || remote->second.role != role ? nullptr : &remote->second;
}

void Peers::lose(Peer& peer, Peer::State state, const std::string& reason) {
  const bool was_up = peer.state == Peer::State::kUp;
  peer.state = state;
  peer.reason = reason;
  peer.outstanding_tokens = 0;
  if (was_up) {
    log_.warn("peer lost",
              {{"role", role_name(peer.role)}, {"peer", peer.address.str()}, {"reason", reason}});
    if (on_lost) on_lost(peer);
  }
}

void Peers::on_peer(const net::PeerEvent& event) {
  const auto at = remote_.find(event.peer);
  if (at == remote_.end()) return;
  Peer& peer = at->second;
  if (event.up) {
    peer.state = Peer::State::kConnecting;
    (void)control_.send(peer.id, to_message(proto::encode(hello_))).ok();
  } else {
    lose(peer, Peer::State::kDown, event.reason);
  }
  refresh();
}

void Peers::on_heartbeat(net::PeerId id, std::string_view body) {
  const auto at = remote_.find(id);
  if (at == remote_.end()) return;
  if (const auto load = proto::decode_load(body)) at->second.load = *load.value;
}

void Peers::on_welcome(net::PeerId id, const proto::Hello& hello) {
  const auto at = remote_.find(id);
  if (at == remote_.end()) return;
  Peer& peer = at->second;
  std::string difference = proto::incompatibility(hello_, hello);
  if (hello.role != role_name(peer.role)) {
    difference = fmt::format("it is a {} node, listed as {}", hello.role, role_name(peer.role));
  }
  if (!difference.empty()) return on_refused(id, difference);
  peer.node = hello.node;
  peer.state = Peer::State::kUp;
  peer.reason.clear();
  log_.info(
      "peer up",
      {{"role", role_name(peer.role)}, {"peer", peer.address.str()}, {"peer_node", peer.node}});
  refresh();
}

void Peers::on_refused(net::PeerId id, const std::string& reason) {
  const auto at = remote_.find(id);
  if (at == remote_.end()) return;
  lose(at->second, Peer::State::kRefused, reason);
  log_.warn("peer does not fit", {{"role", role_name(at->second.role)},
                                  {"peer", at->second.address.str()},
                                  {"reason", reason}});
  refresh();
}

// A part of this process whose device is lost: others may serve, but this node needs a restart.
std::string Peers::lost_part() const {
  for (const auto& [role, local] : local_) {
    const proto::Load& load = local.peer.load;
    if (!load.ready && !load.draining) {
      return fmt::format("the {} engine of this node computes no more", role_name(role));
    }
  }
  return {};
}

std::string Peers::reason_for(Role role) const {
  std::string reason = fmt::format("no {} peer", role_name(role));
  const auto local = local_.find(role);
  if (local != local_.end() && local->second.peer.usable()) return {};
  for (const auto& [id, peer] : remote_) {
    if (peer.role != role) continue;
    if (peer.usable()) return {};
    reason += fmt::format("; {} {}{}{}", peer.address.str(), state_name(peer),
                          peer.reason.empty() ? "" : ": ", peer.reason);
  }
  return reason;
}

void Peers::refresh() {
  std::map<std::pair<Role, std::string>, int> counts;
  std::vector<GaugeSample> ages;
  for (auto& [role, local] : local_) {
    local.peer.load = local.load();
    ++counts[{role, state_name(local.peer)}];
  }
  for (const auto& [id, peer] : remote_) {
    ++counts[{peer.role, state_name(peer)}];
    const double silence_ms = control_.silence_ms(id);
    if (silence_ms >= 0) ages.push_back({{{"peer", peer.address.str()}}, silence_ms / 1000});
  }
  std::string unready = lost_part();
  if (unready.empty()) unready = reason_for(Role::kPrefill);
  if (unready.empty()) unready = reason_for(Role::kDecode);
  std::lock_guard lock(snapshot_mutex_);
  counts_.clear();
  for (const auto& [key, count] : counts) {
    counts_.push_back(
        {{{"role", role_name(key.first)}, {"state", key.second}}, static_cast<double>(count)});
  }
  ages_ = std::move(ages);
  unready_ = std::move(unready);
}

std::string Peers::unready_reason() const {
  std::lock_guard lock(snapshot_mutex_);
  return unready_;
}
std::vector<GaugeSample> Peers::count_samples() const {
  std::lock_guard lock(snapshot_mutex_);
  return counts_;
}
std::vector<GaugeSample> Peers::age_samples() const {
  std::lock_guard lock(snapshot_mutex_);
  return ages_;
}

}  // namespace akv::decode
