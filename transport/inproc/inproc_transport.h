// The transport inside one process: for --local and for tests. Same contract, bytes by memcpy.
#pragma once

#include <memory>

#include "common/base/result.h"
#include "transport/transport.h"

namespace akv::transport {

// The "wire" that joins senders and receivers of one process. It is passed to both factories and
// shared by what they make; several may exist side by side. Thread-safe.
class InprocNetwork;
std::shared_ptr<InprocNetwork> make_inproc_network();

// kInvalidArgument: config.
Result<std::unique_ptr<Sender>> make_inproc_sender(std::shared_ptr<InprocNetwork> network,
                                                   const TransportConfig& config);

// Its address is {"inproc", N} with N unique in the network. kInvalidArgument: config;
// kResourceExhausted: no free N.
Result<std::unique_ptr<Receiver>> make_inproc_receiver(std::shared_ptr<InprocNetwork> network,
                                                       const TransportConfig& config);

}  // namespace akv::transport
