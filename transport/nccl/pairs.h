// The communicators of one sender or one receiver, by the instance at the other end.
#pragma once

#include <memory>
#include <unordered_map>
#include <utility>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "transport/nccl/messages.h"
#include "transport/nccl/pair.h"
#include "transport/transport.h"

namespace akv::transport {

// A pair and what its hello says.
struct KnownPair {
  std::shared_ptr<Pair> pair;
  nccl::Hello hello;
};

// Belongs to the loop's thread.
class Pairs {
 public:
  Pairs(std::shared_ptr<Nccl> nccl, const TransportConfig& config)
      : nccl_(std::move(nccl)), config_(config) {}

  // Sender: the pair to a receiver, made anew where there is none. A pair that broke is not
  // replaced before a while has passed: kUnavailable until then.
  Result<KnownPair> to_receiver(const Id128& receiver, const Id128& self);
  // Receiver: the pair that a sender's hello speaks of.
  Result<std::shared_ptr<Pair>> from_sender(const nccl::Hello& hello);
  // Lets go of pairs that nobody has used for idle_close_ms, and of broken ones.
  void drop_idle(TimePoint now);
  // Breaks all pairs off. Their operations' callbacks have run when it returns, unless somebody
  // else still holds the pair.
  void close() { entries_.clear(); }

 private:
  struct Entry {
    KnownPair known;
    uint64_t generation = 0;
    TimePoint used{};
    TimePoint retry_at{};
  };
  Result<std::shared_ptr<Pair>> join(const NcclUniqueId& id, int rank);
  bool full() const { return entries_.size() >= config_.connections_max; }

  const std::shared_ptr<Nccl> nccl_;
  const TransportConfig config_;
  std::unordered_map<Id128, Entry> entries_;
};

}  // namespace akv::transport
