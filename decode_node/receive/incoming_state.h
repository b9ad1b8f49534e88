// A state on its way in: reserved memory that a transfer fills and that is checked record by record
// before anything reads it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/base/units.h"
#include "common/kv/state.h"
#include "proto/control.h"
#include "transport/transport.h"

namespace akv::decode {

// How a landing ended: ok only when every record arrived and passed verification.
struct LandingReport {
  Status status;
  double landing_ms = 0;  // first record to the end of verification
};

// Shared by the engine, which owns the session, and the transport, which holds it until its
// terminal event; the bytes are only read by the engine after an ok report.
class IncomingState : public std::enable_shared_from_this<IncomingState> {
 public:
  // Allocates plan.total_bytes. kResourceExhausted when the memory cannot be had.
  static Result<std::shared_ptr<IncomingState>> create(kv::StatePlan plan,
                                                       const kv::StateIdentity& identity);

  // Opens the landing; `done` runs exactly once, on a transport thread, unless an error is returned
  // at once. Once per state.
  Result<proto::Landing> expect(transport::Receiver& receiver, const HostPort& advertised,
                                uint32_t attempt, TimePoint deadline,
                                std::function<void(const LandingReport&)> done);
  // Ends the landing; done follows as soon as nothing writes here any more.
  void cancel(transport::Receiver& receiver);

  const kv::StatePlan& plan() const { return plan_; }
  // The whole state. REQUIRES: an ok report.
  std::span<const std::byte> bytes() const { return buffer_.bytes(); }

 private:
  IncomingState(kv::StatePlan plan, const kv::StateIdentity& identity)
      : plan_(std::move(plan)), identity_(identity) {}
  void on_event(transport::Receiver& receiver, const transport::LandEvent& event);
  Status verify(uint32_t record) const;

  const kv::StatePlan plan_;
  const kv::StateIdentity identity_;
  uint64_t header_checksum_ = 0;
  kv::StateBuffer buffer_;
  Id128 transfer_;
  std::function<void(const LandingReport&)> done_;
  // Transport thread only.
  TimePoint first_record_;
  bool any_record_ = false;
  Status verdict_;  // the first record that failed verification
};

}  // namespace akv::decode
