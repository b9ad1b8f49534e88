// The sender's book of open channels, and the checks of open() and post() that need no peer.
// Shared by the implementations; what moves the bytes is theirs.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "transport/counters.h"
#include "transport/transport.h"

namespace akv::transport {

// One transfer seen from its sender. `id`, `to`, `deadline`, `on_event` are constant, `accepting`
// and `posted` are guarded by the table, the rest belongs to the progress thread.
struct Channel {
  ChannelId id;
  LandingAddress to;
  TimePoint deadline;
  SendEventFn on_event;

  bool accepting = true;  // post() and finish() are allowed
  uint32_t posted = 0;

  uint32_t queued = 0;     // records posted and not yet given to the wire
  uint32_t reading = 0;    // records on the wire: their payloads are being read
  uint32_t records = 0;    // given to the wire since open
  uint64_t bytes = 0;      // of those
  bool opened = false;     // the receiver was told about this transfer
  bool finishing = false;  // finish() was called
  bool finish_sent = false;
  bool acknowledged = false;  // the receiver has every record
  std::optional<Error> ending;
  bool cancelled_here = false;
  TimePoint drain_until;
  void* link = nullptr;  // the implementation's connection, while the channel uses one
};
using ChannelPtr = std::shared_ptr<Channel>;

// Any thread.
class ChannelTable {
 public:
  ChannelTable(const TransportConfig& config, std::string_view transport, std::string_view version);

  // Errors as Sender::open.
  Result<ChannelPtr> open(const LandingAddress& to, TimePoint deadline, SendEventFn on_event);
  // Errors as Sender::post; counts the record.
  Result<ChannelPtr> admit_post(ChannelId id, uint32_t record, uint64_t bytes);
  // Errors as Sender::finish; no post is admitted afterwards.
  Result<ChannelPtr> admit_finish(ChannelId id);

  ChannelPtr find(ChannelId id) const;
  // post() and finish() get kNotFound from now on.
  void stop_accepting(Channel& channel);
  void remove(ChannelId id);
  std::vector<ChannelPtr> all() const;
  size_t size() const;
  // open() fails with kUnavailable from now on.
  void close();

 private:
  Result<ChannelPtr> accepting_locked(ChannelId id) const;

  const uint32_t transfers_max_;
  const uint32_t records_max_;
  const uint64_t record_bytes_max_;
  const std::string transport_;
  const std::string version_;
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, ChannelPtr> channels_;  // guarded by mutex_
  uint64_t next_id_ = 1;                               // guarded by mutex_
  bool closed_ = false;                                // guarded by mutex_
};

}  // namespace akv::transport
