// Follows where the peers of a role come from: a list, a file that changes, a DNS name.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/result.h"
#include "common/base/units.h"
#include "common/log/log.h"

namespace akv::decode {

// Where the peers of one role come from; at most one of the three.
struct PeerSource {
  std::vector<HostPort> addresses;
  std::string file;             // one HOST:PORT a line, # comments; re-read on change
  std::optional<HostPort> dns;  // every address that NAME resolves to, with this port
  bool any() const { return !addresses.empty() || !file.empty() || dns.has_value(); }
};

// HOST:PORT a line, "#" starts a comment. kIo, or kInvalidArgument that names the line.
Result<std::vector<HostPort>> read_peer_file(const std::string& path);
// Every address of the name, each once, in a fixed order. kUnavailable when it does not resolve.
Result<std::vector<HostPort>> resolve_peers(const HostPort& name);

// A thread of its own, since a resolver may block for seconds. Reports the first reading and each
// change; a source that cannot be read keeps the peers it gave last.
class PeerWatch {
 public:
  using OnPeers = std::function<void(std::vector<HostPort>)>;
  static constexpr int64_t kFilePeriodMs = 1000;
  static constexpr int64_t kDnsPeriodMs = 5000;

  // on_peers runs on the watch's thread. Without a file or a DNS name no thread is started and
  // nothing is reported.
  PeerWatch(PeerSource source, Logger log, OnPeers on_peers);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

 private:
  void loop();

  const PeerSource source_;
  const Logger log_;
  const OnPeers on_peers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace akv::decode
