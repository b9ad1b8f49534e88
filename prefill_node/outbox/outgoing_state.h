// A state on its way out: built layer by layer by the engine, sent record by record while later
// layers are still computed, and kept until the request ends so that it can be sent again.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/kv/state.h"
#include "transport/transport.h"

namespace akv::prefill {

// How a shipment ended.
struct ShipmentReport {
  Status status;           // ok: the receiver has every record
  double transfer_ms = 0;  // first post to end
  double hidden_ms = 0;    // of which while layers were still being computed
};
using ShipmentDone = std::function<void(const ShipmentReport&)>;

// Transport records: 0 is the state header, 1 + l is layer l. Thread-safe: the engine publishes
// records, the control thread starts and cancels shipments, the progress thread ends them.
// Shared: a shipment in flight holds the bytes alive whatever the outbox does.
class OutgoingState : public std::enable_shared_from_this<OutgoingState> {
 public:
  // kResourceExhausted when the memory cannot be had. The header is written (and ready) at once.
  static Result<std::shared_ptr<OutgoingState>> create(kv::StatePlan plan,
                                                       const kv::StateIdentity& identity);

  const kv::StatePlan& plan() const { return plan_; }
  uint64_t bytes() const { return buffer_.size(); }
  uint64_t header_checksum() const { return header_checksum_; }

  // Facts of the prefill that made it, for reports of every shipment; the engine adds to them.
  std::atomic<double> prefill_ms{0};  // until the first token
  std::atomic<double> compress_ms{0};

  // The record of `layer`, for the engine to fill before it publishes it. Engine thread only.
  std::span<std::byte> record(int layer) { return buffer_.record(plan_, layer); }
  // `layer` is complete and will not change: it goes to every open shipment, from `device`, the
  // same bytes in device memory, where it is given and the transport can read it. The transport
  // lets go of it as soon as the record is sent; later shipments go from host memory.
  void publish(int layer, std::shared_ptr<const std::byte> device = nullptr);
  bool complete() const;
  // Whether an open shipment would read the next record from device memory.
  bool wants_device() const;

  // Sends everything that is ready now and each later record when it is published. `done` runs once
  // on a transport thread, unless an error is returned at once.
  Status ship(transport::Sender& sender, const transport::LandingAddress& to, TimePoint deadline,
              ShipmentDone done);
  // Ends all shipments; their done says kCancelled. The state stays and may be shipped again.
  void end_shipments();
  // The same, and refuses further ones.
  void cancel();
  bool shipping() const;

 private:
  struct Shipment {
    transport::Sender* sender = nullptr;
    transport::ChannelId channel;
    bool reads_device = false;
    ShipmentDone done;
    uint64_t serial = 0;
    uint32_t in_flight = 0;  // records posted, not yet sent
    TimePoint busy_since;    // of the current stretch with records in flight
    double busy_ms = 0;      // of the stretches before
  };

  explicit OutgoingState(kv::StatePlan plan) : plan_(std::move(plan)) {}
  uint32_t ready_records() const;  // REQUIRES: mutex_ held
  void post_ready(const Shipment& shipment, uint32_t from, uint32_t to,
                  const std::shared_ptr<const std::byte>& device);
  Shipment* find(uint64_t serial);                           // REQUIRES: mutex_ held
  static void posted(Shipment& shipment, uint32_t records);  // REQUIRES: mutex_ held
  void on_event(uint64_t serial, const transport::SendEvent& event);
  void on_record_sent(uint64_t serial);
  void end(uint64_t serial, Status status);

  const kv::StatePlan plan_;
  kv::StateBuffer buffer_;
  uint64_t header_checksum_ = 0;

  mutable std::mutex mutex_;
  int layers_ready_ = 0;
  bool cancelled_ = false;
  TimePoint last_ready_;
  uint64_t next_serial_ = 1;
  std::vector<Shipment> shipments_;
};

}  // namespace akv::prefill
