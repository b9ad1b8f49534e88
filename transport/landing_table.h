// The receiver's book of expected transfers: which message may write where. Invariant 1 of
// transport.h is decided here and nowhere else, for every implementation.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "transport/counters.h"
#include "transport/transport.h"

namespace akv::transport {

// One expected transfer. `spec` is constant; the rest belongs to the progress thread.
struct Landing {
  explicit Landing(LandingSpec s) : spec(std::move(s)), claimed(spec.destinations.size(), false) {}

  const LandingSpec spec;
  const void* peer = nullptr;   // the connection that the first valid message came by
  std::vector<bool> claimed;    // per record: a message took the right to write its span
  uint32_t claimed_count = 0;   // of them
  uint32_t landed = 0;          // records whose bytes are all there
  uint32_t writing = 0;         // records being written now: the spans are not the owner's yet
  std::optional<Error> ending;  // set: no record is admitted any more
  bool cancelled_here = false;  // by Receiver::cancel, for the counters
  TimePoint drain_until;        // with ending: when the connection is cut to stop the writing
  bool complete() const { return landed == spec.destinations.size(); }
};
using LandingPtr = std::shared_ptr<Landing>;

// What a message says about itself.
struct TransferKey {
  Id128 transfer;
  Id128 token;
  uint32_t attempt = 0;
};

// add() and find() from any thread; the static functions on the progress thread.
class LandingTable {
 public:
  explicit LandingTable(const TransportConfig& config);

  // Errors as Receiver::expect.
  Status add(LandingSpec spec);
  // Null when unknown.
  LandingPtr find(const Id128& transfer) const;
  void remove(const Id128& transfer);
  std::vector<LandingPtr> all() const;
  size_t size() const;
  // add() fails with kUnavailable from now on.
  void close();

  // The landing that this message may speak to, or why not: kNotFound, or kMismatch for a wrong
  // token (compared in constant time), attempt or connection. Binds the landing to `peer`.
  // Refusals leave the landing as it is: a stranger cannot end it.
  Result<LandingPtr> match(const TransferKey& key, const void* peer) const;

  // Gives a record's span out, once. kDataLoss for an index out of bounds, another length or
  // a repetition. REQUIRES: !landing.ending.
  static Result<std::span<std::byte>> claim(Landing& landing, uint32_t record, uint64_t bytes);

 private:
  const uint32_t transfers_max_;
  const uint32_t records_max_;
  const uint64_t record_bytes_max_;
  mutable std::mutex mutex_;
  std::unordered_map<Id128, LandingPtr> landings_;  // guarded by mutex_
  bool closed_ = false;                             // guarded by mutex_
};

}  // namespace akv::transport
