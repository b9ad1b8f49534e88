#include "decode_node/dispatch/peer_watch.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <fstream>

#include <fmt/format.h>

namespace akv::decode {

Result<std::vector<HostPort>> read_peer_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return make_error(Code::kIo, fmt::format("cannot read {}", path));
  std::vector<HostPort> peers;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    line = line.substr(0, line.find('#'));
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string::npos) continue;
    const size_t last = line.find_last_not_of(" \t\r");
    const auto peer = parse_host_port(line.substr(first, last - first + 1));
    if (!peer.ok()) {
      return make_error(Code::kInvalidArgument,
                        fmt::format("{}:{}: {}", path, number, peer.error().message));
    }
    if (std::find(peers.begin(), peers.end(), *peer) == peers.end()) peers.push_back(*peer);
  }
  return peers;
}

Result<std::vector<HostPort>> resolve_peers(const HostPort& name) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(name.host.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    return make_error(Code::kUnavailable, fmt::format("{}: {}", name.host, gai_strerror(error)));
  }
  std::vector<std::string> hosts;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    char text[NI_MAXHOST];
    if (getnameinfo(at->ai_addr, at->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) ==
        0) {
      hosts.emplace_back(text);
    }
  }
  freeaddrinfo(found);
  std::sort(hosts.begin(), hosts.end());
  hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
  std::vector<HostPort> peers;
  for (std::string& host : hosts) peers.push_back(HostPort{std::move(host), name.port});
  return peers;
}

PeerWatch::PeerWatch(PeerSource source, Logger log, OnPeers on_peers)
    : source_(std::move(source)), log_(std::move(log)), on_peers_(std::move(on_peers)) {
  if (source_.file.empty() && !source_.dns) return;
  thread_ = std::thread([this] { loop(); });
  pthread_setname_np(thread_.native_handle(), "peer-watch");
}

PeerWatch::~PeerWatch() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void PeerWatch::loop() {
  std::vector<HostPort> last;
  std::string last_error;
  bool reported = false;
  for (;;) {
    auto peers = source_.dns ? resolve_peers(*source_.dns) : read_peer_file(source_.file);
    const std::string error = peers.ok() ? "" : peers.error().message;
    if (!error.empty() && error != last_error) log_.warn("peers not read", {{"error", error}});
    last_error = error;
    if (peers.ok() && (!reported || *peers != last)) {
      last = *peers;
      reported = true;
      on_peers_(std::move(*peers));
    }
    std::unique_lock lock(mutex_);
    const auto period = std::chrono::milliseconds(source_.dns ? kDnsPeriodMs : kFilePeriodMs);
    if (wake_.wait_for(lock, period, [&] { return stop_; })) return;
  }
}

}  // namespace akv::decode
