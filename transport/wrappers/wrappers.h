// Coats around a Sender: they limit, delay, corrupt, cut and count. Fault injection for tests, a
// rate limit and a counter for production; they nest in any order and keep the Sender contract.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "transport/transport.h"

namespace akv::transport {

// What passed through a counting coat. Thread-safe to read while in use.
struct SendCount {
  uint64_t opens = 0;
  uint64_t posts = 0;
  uint64_t bytes = 0;
  uint64_t finishes = 0;
  uint64_t cancels = 0;
  uint64_t completes = 0;
  uint64_t failures = 0;
};

class CountingSender : public Sender {
 public:
  virtual SendCount count() const = 0;
};
std::unique_ptr<CountingSender> count_sends(std::unique_ptr<Sender> inner);

// Holds each post back for delay_ms; order is kept, the channel's deadline still counts. At most
// queue_max posts wait (then kResourceExhausted).
std::unique_ptr<Sender> delay_sends(std::unique_ptr<Sender> inner, int64_t delay_ms,
                                    size_t queue_max = 4096);

// Lets at most bytes_per_s through (token bucket of one second's worth / 10, over all channels).
std::unique_ptr<Sender> limit_rate(std::unique_ptr<Sender> inner, uint64_t bytes_per_s,
                                   size_t queue_max = 4096);

// The coats that break things take channels_max: only the first so many channels opened through
// them are broken, so that a retry can be seen to succeed.

// Sends record `record` of a channel with one bit flipped (bit `bit` counted from the first
// byte; taken modulo the record's bits). The caller's bytes are not touched.
std::unique_ptr<Sender> corrupt_record(std::unique_ptr<Sender> inner, uint32_t record, uint64_t bit,
                                       uint64_t channels_max = UINT64_MAX);

// How a cut ends a channel: kCancel tells the receiver; kSilent just stops posting (a half-sent
// state whose end only the deadline finds).
enum class Cut { kCancel, kSilent };
// Lets the first `records` records of each channel through.
std::unique_ptr<Sender> cut_after_records(std::unique_ptr<Sender> inner, uint32_t records, Cut cut,
                                          uint64_t channels_max = UINT64_MAX);
// Lets whole records through until `bytes` bytes of the channel have passed; the one that would
// cross the line is shortened to end on it (so the receiver refuses it) and is the last.
std::unique_ptr<Sender> cut_after_bytes(std::unique_ptr<Sender> inner, uint64_t bytes, Cut cut,
                                        uint64_t channels_max = UINT64_MAX);

}  // namespace akv::transport
