// State records between the memories of two GPUs by NCCL, on top of another transport.
//
// The coats below carry everything that is not bulk over the transport they wrap: it authenticates
// the transfer, finds lost peers and keeps deadlines. Bulk goes by ncclSend and ncclRecv on a
// communicator of two, one for each pair of a sender and a receiver and direction, with its own
// stream. A landing can always also be filled over the wrapped transport: a sender without NCCL, or
// whose pair fails before its first record has passed, uses that instead. See README.md.
#pragma once

#include <memory>

#include "transport/nccl/nccl.h"
#include "transport/transport.h"

namespace akv::transport {

// The coats keep the contracts of Sender and Receiver; name() and version() are those of `inner`.
// `nccl` is shared by both ends of a process. `config` bounds what the coat itself holds.
std::unique_ptr<Sender> make_nccl_sender(std::unique_ptr<Sender> inner, std::shared_ptr<Nccl> nccl,
                                         const TransportConfig& config);
std::unique_ptr<Receiver> make_nccl_receiver(std::unique_ptr<Receiver> inner,
                                             std::shared_ptr<Nccl> nccl,
                                             const TransportConfig& config);

// The same with the library, for device `ordinal`; where load_nccl() fails, `inner` as it is.
// config.on_notice hears which and why.
std::unique_ptr<Sender> over_nccl(std::unique_ptr<Sender> inner, int ordinal,
                                  const TransportConfig& config);
std::unique_ptr<Receiver> over_nccl(std::unique_ptr<Receiver> inner, int ordinal,
                                    const TransportConfig& config);

}  // namespace akv::transport
