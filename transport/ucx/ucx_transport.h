// The transport between processes: UCX active messages with rendezvous (README.md in this folder).
// No UCX type appears here.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/log/log.h"
#include "transport/transport.h"

namespace akv::transport {

// The version string of the UCX library that is loaded, e.g. "1.22.0". Peers must agree on it:
// releases do not talk to each other.
std::string ucx_version();

// One UCX context, worker and progress thread. Errors: kInvalidArgument (config),
// kUnsupported (no usable transport or device of those named), kInternal (UCX).
Result<std::unique_ptr<Sender>> make_ucx_sender(const TransportConfig& config);

// As above, and listens on `listen` (literal IP or a name that resolves to one; port 0: any free
// one, see Receiver::address()). kAddressInUse when the port is taken.
Result<std::unique_ptr<Receiver>> make_ucx_receiver(const TransportConfig& config,
                                                    const HostPort& listen);

// One line for the log at start: version, transports and devices that UCX found and may use under
// this config, e.g. "ucx 1.22.0: tcp/lo tcp/eth0 posix/memory sysv/memory". kUnsupported when none.
Result<std::string> describe_ucx(const TransportConfig& config);

// UCX prints its warnings and errors to standard output by itself; from now on `sink` gets them
// instead, on whatever thread they arise. UCX's log belongs to the process, so this does too: the
// first call counts. Call it before the other functions here.
void redirect_ucx_log(std::function<void(bool error, std::string_view line)> sink);

// What a daemon's configuration says about its transport, and where it computes.
struct NodeTransport {
  std::string ucx_transports;
  std::string ucx_devices;
  int64_t heartbeat_ms = 1000;      // a peer is lost after three
  bool gpu = false;                 // records may lie in a GPU's memory
  bool gpu_memory_is_host = false;  // which is the host's: the tests' shim of CUDA
  std::function<void()> on_thread_start;
};
// The configuration of its ends, whose notices go to `log`, and so do UCX's own lines from now on.
TransportConfig node_config(const NodeTransport& node, const Logger& log);

}  // namespace akv::transport
