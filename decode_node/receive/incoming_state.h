// A state on its way in: reserved memory that a transfer fills and that is checked record by record
// before anything reads it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/base/units.h"
#include "common/kv/state.h"
#include "decode_node/cache/landing_memory.h"
#include "proto/control.h"
#include "transport/transport.h"

namespace akv::decode {

// How a landing ended: ok only when every record arrived and passed verification.
struct LandingReport {
  Status status;
  uint32_t device_records = 0;  // of its records: came from device memory to device memory
  double landing_ms = 0;  // first record to the end of verification, and of copies to a device
};

// Shared by the engine, which owns the session, and the transport, which holds it until its
// terminal event; the bytes are only read by the engine after an ok report.
class IncomingState : public std::enable_shared_from_this<IncomingState> {
 public:
  // Allocates plan.total_bytes. kResourceExhausted when the memory cannot be had.
  static Result<std::shared_ptr<IncomingState>> create(kv::StatePlan plan,
                                                       const kv::StateIdentity& identity);

  // Where the bytes land; their contents are the transport's until the report.
  std::span<std::byte> memory() { return buffer_.bytes(); }
  // The state is to come to this memory too, before the report. May be null. Before expect().
  void land_in(std::shared_ptr<LandingMemory> landing) { landing_ = std::move(landing); }
  LandingMemory* landing() const { return landing_.get(); }

  // Opens the landing; `done` runs exactly once, on a thread of the transport or of land_in()'s
  // memory, unless an error is returned at once. Once per state.
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
  void on_landed(transport::Receiver& receiver, const transport::RecordLanded& landed);
  bool take(transport::Receiver& receiver, uint32_t record, const Status& arrived);
  void report(const std::optional<Error>& failed, const Status& landed);
  Status verify(uint32_t record) const;

  const kv::StatePlan plan_;
  const kv::StateIdentity identity_;
  uint64_t header_checksum_ = 0;
  kv::StateBuffer buffer_;
  Id128 transfer_;
  std::function<void(const LandingReport&)> done_;
  std::shared_ptr<LandingMemory> landing_;
  // Transport thread only, until the terminal event.
  TimePoint first_record_;
  bool any_record_ = false;
  uint32_t device_records_ = 0;
  std::mutex mutex_;
  bool ended_ = false;  // guarded by mutex_: the receiver may be gone
  Status verdict_;      // guarded by mutex_: the first record that failed verification
};

}  // namespace akv::decode
