// The states of requests that have not ended, in bounded host memory: what makes decode failover
// possible without a second prefill.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

#include "common/base/result.h"
#include "prefill_node/outbox/outgoing_state.h"

namespace akv::prefill {

// Who asked: a front door (its peer id), and its id of the request.
struct RequestKey {
  uint64_t owner = 0;
  std::string id;
  bool operator==(const RequestKey&) const = default;
  bool operator<(const RequestKey& other) const {
    return std::tie(owner, id) < std::tie(other.owner, other.id);
  }
};

// Thread-safe. Least recently shipped states go first when room is needed; a state that is being
// built or sent is never evicted.
class Outbox {
 public:
  explicit Outbox(uint64_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  // Makes room and creates the state. kResourceExhausted: the bytes that may not be evicted leave
  // too little room now (param "outbox-bytes" if it could never fit).
  Result<std::shared_ptr<OutgoingState>> create(const RequestKey& key, kv::StatePlan plan,
                                                const kv::StateIdentity& identity);
  // Null if it is not (or no longer) held. Counts as use.
  std::shared_ptr<OutgoingState> find(const RequestKey& key);
  // Forgets the state and ends its shipments. False if it was not held. With `only`, a state that
  // another attempt has put in its place stays.
  bool release(const RequestKey& key, const OutgoingState* only = nullptr);
  // The same for all states of an owner that is gone.
  void release_owner(uint64_t owner);

  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  uint64_t capacity_bytes() const { return capacity_bytes_; }
  size_t size() const;
  uint64_t evictions() const { return evictions_.load(std::memory_order_relaxed); }

 private:
  struct Entry {
    std::shared_ptr<OutgoingState> state;
    std::list<RequestKey>::iterator use;
  };
  bool make_room(uint64_t bytes);  // REQUIRES: mutex_ held

  const uint64_t capacity_bytes_;
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> evictions_{0};
  mutable std::mutex mutex_;
  std::map<RequestKey, Entry> entries_;
  std::list<RequestKey> uses_;  // least recently used first
};

}  // namespace akv::prefill
