// The live form of TransportStats, shared by the implementations.
#pragma once

#include <atomic>

#include "transport/transport.h"

namespace akv::transport {

// Written by the progress thread (and open/expect), read by any.
struct Counters {
  std::atomic<uint64_t> started{0}, completed{0}, failed{0}, cancelled{0};
  std::atomic<uint64_t> records{0}, bytes{0}, device_records{0}, refused{0};
  std::atomic<uint64_t> connections_opened{0}, connections_lost{0}, connections_open{0};
  std::atomic<uint64_t> transfers_open{0}, records_inflight{0};

  // Counts the end of a transfer that was counted by started and transfers_open.
  void count_end(const Error* error, bool cancelled_here) {
    --transfers_open;
    ++(error == nullptr ? completed : cancelled_here ? cancelled : failed);
  }

  TransportStats snapshot() const {
    TransportStats s;
    s.transfers_started = started;
    s.transfers_completed = completed;
    s.transfers_failed = failed;
    s.transfers_cancelled = cancelled;
    s.records = records;
    s.bytes = bytes;
    s.device_records = device_records;
    s.messages_refused = refused;
    s.connections_opened = connections_opened;
    s.connections_lost = connections_lost;
    s.connections_open = connections_open;
    s.transfers_open = transfers_open;
    s.records_inflight = records_inflight;
    return s;
  }
};

}  // namespace akv::transport
