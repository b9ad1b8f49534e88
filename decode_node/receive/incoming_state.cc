#include "decode_node/receive/incoming_state.h"

#include <utility>
#include <vector>

namespace akv::decode {

Result<std::shared_ptr<IncomingState>> IncomingState::create(kv::StatePlan plan,
                                                             const kv::StateIdentity& identity) {
  std::shared_ptr<IncomingState> state(new IncomingState(std::move(plan), identity));
  AKV_ASSIGN_OR_RETURN(state->buffer_, kv::StateBuffer::create(state->plan_));
  // Both ends can compute the header, so records are checked against it in whatever order they and
  // the header itself arrive.
  std::vector<std::byte> header(state->plan_.header_bytes);
  state->header_checksum_ = kv::write_header(state->plan_, identity, header);
  return state;
}

Result<proto::Landing> IncomingState::expect(transport::Receiver& receiver,
                                             const HostPort& advertised, uint32_t attempt,
                                             TimePoint deadline,
                                             std::function<void(const LandingReport&)> done) {
  transfer_ = Id128::random();
  done_ = std::move(done);
  transport::LandingSpec spec;
  spec.transfer = transfer_;
  spec.token = Id128::random();
  spec.attempt = attempt;
  spec.deadline = deadline;
  spec.destinations.push_back(buffer_.header(plan_));
  for (int layer = 0; layer < plan_.shape.layers; ++layer) {
    spec.destinations.push_back(buffer_.record(plan_, layer));
  }
  for (uint32_t record = 0; landing_ && record < spec.destinations.size(); ++record) {
    spec.device_destinations.push_back(landing_->place(record));
  }
  spec.on_event = [self = shared_from_this(), &receiver](const transport::LandEvent& event) {
    self->on_event(receiver, event);
  };
  proto::Landing landing;
  landing.transport = receiver.name();
  landing.state_address = advertised.str();
  landing.ucx_version = receiver.version();
  landing.transfer = transfer_.hex();
  landing.token = spec.token.hex();
  landing.attempt = attempt;
  landing.extension = receiver.extension();
  AKV_RETURN_IF_ERROR(receiver.expect(std::move(spec)));
  return landing;
}

void IncomingState::cancel(transport::Receiver& receiver) { receiver.cancel(transfer_); }

void IncomingState::on_event(transport::Receiver& receiver, const transport::LandEvent& event) {
  if (const auto* landed = std::get_if<transport::RecordLanded>(&event)) {
    return on_landed(receiver, *landed);
  }
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
  }
  std::optional<Error> failed;
  if (const auto* failure = std::get_if<transport::Failed>(&event)) failed = failure->error;
  if (!landing_) return report(failed, {});
  landing_->finish(
      [self = shared_from_this(), failed](const Status& landed) { self->report(failed, landed); });
}

// Records are verified as they land, so that checking hides behind the layers still being computed.
// Only verified bytes go to the device; what landed there comes to the host to be verified.
void IncomingState::on_landed(transport::Receiver& receiver,
                              const transport::RecordLanded& landed) {
  if (!any_record_) first_record_ = SteadyClock::now();
  any_record_ = true;
  const uint32_t record = landed.record;
  if (!landed.on_device) {
    if (take(receiver, record, {}) && landing_) landing_->upload(record);
    return;
  }
  ++device_records_;
  landing_->fetch(record, [self = shared_from_this(), &receiver, record](const Status& arrived) {
    (void)self->take(receiver, record, arrived);
  });
}

// Whether the record is in host memory and all is well with it and those before.
bool IncomingState::take(transport::Receiver& receiver, uint32_t record, const Status& arrived) {
  {
    std::lock_guard lock(mutex_);
    if (!verdict_.ok()) return false;
  }
  const Status verified = arrived.ok() ? verify(record) : arrived;
  if (verified.ok()) return true;
  std::lock_guard lock(mutex_);
  if (verdict_.ok()) verdict_ = verified;
  if (!ended_) receiver.cancel(transfer_);
  return false;
}

void IncomingState::report(const std::optional<Error>& failed, const Status& landed) {
  LandingReport report;
  {
    std::lock_guard lock(mutex_);
    report.status = verdict_;
  }
  if (report.status.ok() && failed) report.status = *failed;
  if (report.status.ok()) report.status = landed;
  if (report.status.ok() && landing_) report.status = landing_->describe();
  report.device_records = device_records_;
  if (any_record_) report.landing_ms = ms_since(first_record_);
  std::exchange(done_, nullptr)(report);
}

Status IncomingState::verify(uint32_t record) const {
  if (record == 0) {
    const auto header = buffer_.bytes().subspan(0, plan_.header_bytes);
    const auto checked = kv::verify_header(header, plan_, identity_);
    if (!checked.ok()) return checked.error();
    return {};
  }
  const int layer = static_cast<int>(record) - 1;
  return kv::verify_record(buffer_.record(plan_, layer), layer, plan_, header_checksum_);
}

}  // namespace akv::decode
