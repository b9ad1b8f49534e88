#include "transport/nccl/nccl_transport.h"

namespace akv::transport {
namespace {

// Null, with a line for the log, where NCCL cannot be used.
std::shared_ptr<Nccl> try_nccl(int ordinal, const TransportConfig& config) {
  auto nccl = load_nccl(ordinal);
  if (config.on_notice) {
    config.on_notice(nccl.ok() ? "records go by NCCL " + std::to_string((*nccl)->version()) +
                                     " where the peer has it too"
                               : "records do not go by NCCL: " + nccl.error().message);
  }
  return nccl.ok() ? std::move(*nccl) : nullptr;
}

}  // namespace

std::unique_ptr<Sender> over_nccl(std::unique_ptr<Sender> inner, int ordinal,
                                  const TransportConfig& config) {
  auto nccl = try_nccl(ordinal, config);
  if (!nccl) return inner;
  return make_nccl_sender(std::move(inner), std::move(nccl), config);
}

std::unique_ptr<Receiver> over_nccl(std::unique_ptr<Receiver> inner, int ordinal,
                                    const TransportConfig& config) {
  auto nccl = try_nccl(ordinal, config);
  if (!nccl) return inner;
  return make_nccl_receiver(std::move(inner), std::move(nccl), config);
}

}  // namespace akv::transport
