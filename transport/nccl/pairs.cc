#include "transport/nccl/pairs.h"

#include <iterator>

namespace akv::transport {
namespace {

// A peer whose communicator broke is most likely gone or going; its next transfers take the other
// way until then.
constexpr int64_t kRetryMs = 10000;

}  // namespace

Result<std::shared_ptr<Pair>> Pairs::join(const NcclUniqueId& id, int rank) {
  AKV_ASSIGN_OR_RETURN(auto link, nccl_->join(id, rank));
  return std::make_shared<Pair>(std::move(link),
                                PairLimits{.join_timeout_ms = config_.connect_timeout_ms,
                                           .stall_ms = config_.heartbeat_lost_ms});
}

Result<KnownPair> Pairs::to_receiver(const Id128& receiver, const Id128& self) {
  if (!entries_.contains(receiver) && full()) {
    return make_error(Code::kResourceExhausted, "too many NCCL pairs are open");
  }
  Entry& entry = entries_[receiver];
  const TimePoint now = SteadyClock::now();
  entry.used = now;
  if (entry.known.pair && entry.known.pair->broken()) {
    entry.known.pair.reset();
    entry.retry_at = now + std::chrono::milliseconds(kRetryMs);
  }
  if (entry.known.pair) return entry.known;
  if (now < entry.retry_at) {
    return make_error(Code::kUnavailable, "the NCCL pair broke a moment ago");
  }
  entry.retry_at = now + std::chrono::milliseconds(kRetryMs);  // should the next lines fail
  AKV_ASSIGN_OR_RETURN(const NcclUniqueId id, nccl_->unique_id());
  AKV_ASSIGN_OR_RETURN(entry.known.pair, join(id, 0));
  entry.known.hello = nccl::Hello{
      .nccl_version = nccl_->version(), .sender = self, .generation = ++entry.generation, .id = id};
  return entry.known;
}

Result<std::shared_ptr<Pair>> Pairs::from_sender(const nccl::Hello& hello) {
  if (hello.nccl_version != nccl_->version()) {
    return make_error(Code::kMismatch, "NCCL " + std::to_string(hello.nccl_version) +
                                           ", this node has " + std::to_string(nccl_->version()));
  }
  if (!entries_.contains(hello.sender) && full()) {
    return make_error(Code::kResourceExhausted, "too many NCCL pairs are open");
  }
  Entry& entry = entries_[hello.sender];
  entry.used = SteadyClock::now();
  if (entry.known.pair && entry.generation == hello.generation) return entry.known.pair;
  if (hello.generation < entry.generation) {
    return make_error(Code::kNotFound, "this NCCL pair has been replaced");
  }
  entry.known.pair.reset();
  entry.generation = hello.generation;
  AKV_ASSIGN_OR_RETURN(entry.known.pair, join(hello.id, 1));
  entry.known.hello = hello;
  return entry.known.pair;
}

void Pairs::drop_idle(TimePoint now) {
  for (auto it = entries_.begin(); it != entries_.end();) {
    // Others hold the pair while they have operations with it.
    const bool held = it->second.known.pair && it->second.known.pair.use_count() > 1;
    const bool idle = ms_between(it->second.used, now) > static_cast<double>(config_.idle_close_ms);
    it = !held && idle ? entries_.erase(it) : std::next(it);
  }
}

}  // namespace akv::transport
