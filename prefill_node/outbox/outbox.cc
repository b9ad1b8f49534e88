#include "prefill_node/outbox/outbox.h"

#include <vector>

#include <fmt/format.h>

#include "common/base/units.h"

namespace akv::prefill {

bool Outbox::make_room(uint64_t bytes) {
  auto candidate = uses_.begin();
  while (bytes_.load() + bytes > capacity_bytes_ && candidate != uses_.end()) {
    const auto entry = entries_.find(*candidate);
    const OutgoingState& state = *entry->second.state;
    ++candidate;
    if (!state.complete() || state.shipping()) continue;
    bytes_ -= state.bytes();
    ++evictions_;
    uses_.erase(entry->second.use);
    entries_.erase(entry);
  }
  return bytes_.load() + bytes <= capacity_bytes_;
}

Result<std::shared_ptr<OutgoingState>> Outbox::create(const RequestKey& key, kv::StatePlan plan,
                                                      const kv::StateIdentity& identity) {
  const uint64_t bytes = plan.total_bytes;
  if (bytes > capacity_bytes_) {
    return make_error(Code::kResourceExhausted,
                      fmt::format("the state takes {}, the outbox holds {}", format_bytes(bytes),
                                  format_bytes(capacity_bytes_)),
                      "outbox-bytes");
  }
  std::lock_guard lock(mutex_);
  if (entries_.contains(key)) {
    return make_error(Code::kInvalidArgument, "a state of this request is already held", "id");
  }
  if (!make_room(bytes)) {
    return make_error(Code::kResourceExhausted, "the outbox is full of states in work");
  }
  AKV_ASSIGN_OR_RETURN(auto state, OutgoingState::create(std::move(plan), identity));
  bytes_ += state->bytes();
  uses_.push_back(key);
  entries_.emplace(key, Entry{state, std::prev(uses_.end())});
  return state;
}

std::shared_ptr<OutgoingState> Outbox::find(const RequestKey& key) {
  std::lock_guard lock(mutex_);
  const auto entry = entries_.find(key);
  if (entry == entries_.end()) return nullptr;
  uses_.splice(uses_.end(), uses_, entry->second.use);
  return entry->second.state;
}

bool Outbox::release(const RequestKey& key, const OutgoingState* only) {
  std::shared_ptr<OutgoingState> state;
  {
    std::lock_guard lock(mutex_);
    const auto entry = entries_.find(key);
    if (entry == entries_.end()) return false;
    state = entry->second.state;
    if (only != nullptr && state.get() != only) return false;
    bytes_ -= state->bytes();
    uses_.erase(entry->second.use);
    entries_.erase(entry);
  }
  state->cancel();
  return true;
}

void Outbox::release_owner(uint64_t owner) {
  std::vector<RequestKey> keys;
  {
    std::lock_guard lock(mutex_);
    for (auto at = entries_.lower_bound(RequestKey{owner, ""});
         at != entries_.end() && at->first.owner == owner; ++at) {
      keys.push_back(at->first);
    }
  }
  for (const RequestKey& key : keys) release(key);
}

size_t Outbox::size() const {
  std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace akv::prefill
