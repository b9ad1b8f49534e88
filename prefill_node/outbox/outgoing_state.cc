#include "prefill_node/outbox/outgoing_state.h"

#include <algorithm>

#include "common/base/check.h"

namespace akv::prefill {

Result<std::shared_ptr<OutgoingState>> OutgoingState::create(kv::StatePlan plan,
                                                             const kv::StateIdentity& identity) {
  std::shared_ptr<OutgoingState> state(new OutgoingState(std::move(plan)));
  AKV_ASSIGN_OR_RETURN(state->buffer_, kv::StateBuffer::create(state->plan_));
  state->header_checksum_ =
      kv::write_header(state->plan_, identity, state->buffer_.header(state->plan_));
  return state;
}

uint32_t OutgoingState::ready_records() const { return static_cast<uint32_t>(layers_ready_) + 1; }

bool OutgoingState::complete() const {
  std::lock_guard lock(mutex_);
  return layers_ready_ == plan_.shape.layers;
}

bool OutgoingState::shipping() const {
  std::lock_guard lock(mutex_);
  return !shipments_.empty();
}

bool OutgoingState::wants_device() const {
  std::lock_guard lock(mutex_);
  return std::any_of(shipments_.begin(), shipments_.end(),
                     [](const Shipment& s) { return s.reads_device; });
}

void OutgoingState::publish(int layer, std::shared_ptr<const std::byte> device) {
  std::vector<Shipment> open;
  {
    std::lock_guard lock(mutex_);
    AKV_CHECK(layer == layers_ready_);
    ++layers_ready_;
    last_ready_ = SteadyClock::now();
    for (Shipment& shipment : shipments_) posted(shipment, 1);
    open = shipments_;
  }
  const auto record = static_cast<uint32_t>(layer) + 1;
  for (const Shipment& shipment : open) post_ready(shipment, record, record + 1, device);
}

// A channel that has ended refuses posts; its terminal event says why, so the refusal is dropped.
// `device`: of the one record that is posted then.
void OutgoingState::post_ready(const Shipment& shipment, uint32_t from, uint32_t to,
                               const std::shared_ptr<const std::byte>& device) {
  const auto all = static_cast<const OutgoingState*>(this)->buffer_.bytes();
  for (uint32_t record = from; record < to; ++record) {
    const bool header = record == 0;
    const size_t offset = header ? 0 : plan_.record_offset[record - 1];
    const size_t size = header ? plan_.header_bytes : plan_.record_bytes[record - 1];
    transport::Payload payload{.bytes = all.subspan(offset, size), .keepalive = shared_from_this()};
    if (device && shipment.reads_device) {
      payload.device = device.get();
      using Held = std::pair<std::shared_ptr<const void>, std::shared_ptr<const std::byte>>;
      payload.keepalive = std::make_shared<const Held>(std::move(payload.keepalive), device);
    }
    (void)shipment.sender->post(shipment.channel, record, payload).ok();
  }
  if (to == static_cast<uint32_t>(plan_.shape.layers) + 1) {
    (void)shipment.sender->finish(shipment.channel).ok();
  }
}

Status OutgoingState::ship(transport::Sender& sender, const transport::LandingAddress& to,
                           TimePoint deadline, ShipmentDone done) {
  Shipment shipment;
  shipment.sender = &sender;
  shipment.done = std::move(done);
  uint32_t ready = 0;
  {
    // The transport may deliver an event from its own thread before open() returns; the lock makes
    // that event wait until the shipment is on the list.
    std::lock_guard lock(mutex_);
    if (cancelled_) return make_error(Code::kCancelled, "the request has ended");
    shipment.serial = next_serial_++;
    auto opened =
        sender.open(to, deadline,
                    [self = shared_from_this(), serial = shipment.serial](
                        const transport::SendEvent& event) { self->on_event(serial, event); });
    if (!opened.ok()) return std::move(opened).error();
    shipment.channel = *opened;
    shipment.reads_device = sender.reads_device(to);
    ready = ready_records();
    posted(shipment, ready);
    shipments_.push_back(shipment);
    // Posted under the lock: publish() of the next record must not overtake these.
    post_ready(shipment, 0, ready, nullptr);
  }
  return {};
}

void OutgoingState::cancel() {
  {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
  }
  end_shipments();
}

void OutgoingState::end_shipments() {
  std::vector<Shipment> open;
  {
    std::lock_guard lock(mutex_);
    open = shipments_;
  }
  for (const Shipment& shipment : open) shipment.sender->cancel(shipment.channel);
}

OutgoingState::Shipment* OutgoingState::find(uint64_t serial) {
  const auto at = std::find_if(shipments_.begin(), shipments_.end(),
                               [&](const Shipment& s) { return s.serial == serial; });
  return at == shipments_.end() ? nullptr : &*at;
}

void OutgoingState::posted(Shipment& shipment, uint32_t records) {
  if (shipment.in_flight == 0) shipment.busy_since = SteadyClock::now();
  shipment.in_flight += records;
}

void OutgoingState::on_record_sent(uint64_t serial) {
  std::lock_guard lock(mutex_);
  Shipment* shipment = find(serial);
  if (shipment == nullptr || shipment->in_flight == 0) return;
  if (--shipment->in_flight == 0) shipment->busy_ms += ms_since(shipment->busy_since);
}

void OutgoingState::on_event(uint64_t serial, const transport::SendEvent& event) {
  if (std::holds_alternative<transport::RecordSent>(event)) on_record_sent(serial);
  if (std::holds_alternative<transport::Complete>(event)) end(serial, {});
  if (const auto* failed = std::get_if<transport::Failed>(&event)) end(serial, failed->error);
}

void OutgoingState::end(uint64_t serial, Status status) {
  Shipment shipment;
  ShipmentReport report;
  {
    std::lock_guard lock(mutex_);
    Shipment* found = find(serial);
    if (found == nullptr) return;
    shipment = std::move(*found);
    shipments_.erase(shipments_.begin() + (found - shipments_.data()));
    const TimePoint now = SteadyClock::now();
    report.transfer_ms = shipment.busy_ms;
    if (shipment.in_flight > 0) report.transfer_ms += ms_between(shipment.busy_since, now);
    // What came after the last layer was computed is the part that a client could notice.
    const bool computing = layers_ready_ < plan_.shape.layers;
    const double noticed_ms = computing ? 0.0 : ms_between(last_ready_, now);
    report.hidden_ms = std::max(0.0, report.transfer_ms - noticed_ms);
  }
  report.status = std::move(status);
  if (shipment.done) shipment.done(report);
}

}  // namespace akv::prefill
