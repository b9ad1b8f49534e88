#include "prefill_node/outbox/shipper.h"

namespace akv::prefill {
namespace {

Result<transport::LandingAddress> landing_address(const proto::Landing& landing,
                                                  const kv::StatePlan& plan) {
  transport::LandingAddress to;
  AKV_ASSIGN_OR_RETURN(to.state_address, parse_host_port(landing.state_address));
  const auto transfer = Id128::from_hex(landing.transfer);
  const auto token = Id128::from_hex(landing.token);
  if (!transfer || !token) {
    return make_error(Code::kInvalidArgument, "landing ids are not 32 hex digits", "landing");
  }
  to.transfer = *transfer;
  to.token = *token;
  to.attempt = landing.attempt;
  to.transport = landing.transport;
  to.version = landing.ucx_version;
  to.extension = landing.extension;
  to.sizes.push_back(plan.header_bytes);
  to.sizes.insert(to.sizes.end(), plan.record_bytes.begin(), plan.record_bytes.end());
  return to;
}

}  // namespace

void Shipper::ship(const std::shared_ptr<OutgoingState>& state, const ShipOrder& order) {
  const auto to = landing_address(order.landing, state->plan());
  if (!to.ok()) return report(*state, order, ShipmentReport{.status = to.error()});
  // The state holds its shipments and each holds this closure: a raw pointer breaks the circle. It
  // is valid because the transport holds the state until the channel's terminal event.
  const auto done = [this, raw = state.get(), order](const ShipmentReport& ended) {
    report(*raw, order, ended);
  };
  const Status opened = state->ship(sender_, *to, order.deadline, done);
  if (!opened.ok()) report(*state, order, ShipmentReport{.status = opened});
}

void Shipper::report(const OutgoingState& state, const ShipOrder& order,
                     const ShipmentReport& report) {
  const Logger log = log_.request(order.request_id);
  if (report.status.ok()) {
    probe_.transferred(report.transfer_ms / 1000, state.bytes());
    log.info("state sent", {{"attempt", order.ref.attempt},
                            {"state_bytes", state.bytes()},
                            {"transfer_ms", report.transfer_ms},
                            {"transfer_hidden_ms", report.hidden_ms}});
    emit_(order.owner, proto::Sent{.ref = order.ref,
                                   .state_bytes = state.bytes(),
                                   .dense_bytes = state.plan().dense_bytes,
                                   .theta = state.plan().theta,
                                   .prefill_ms = state.prefill_ms,
                                   .compress_ms = state.compress_ms,
                                   .transfer_ms = report.transfer_ms,
                                   .transfer_hidden_ms = report.hidden_ms});
    return;
  }
  const Error& error = report.status.error();
  if (error.code == Code::kCancelled) {
    probe_.transfer_cancelled();
  } else {
    probe_.transfer_failed();
  }
  log.info(
      "state not sent",
      {{"attempt", order.ref.attempt}, {"code", code_name(error.code)}, {"error", error.message}});
  emit_(order.owner, proto::Failed{.ref = order.ref,
                                   .code = static_cast<uint16_t>(error.code),
                                   .phase = order.phase,
                                   .message = error.message,
                                   .param = error.param});
}

}  // namespace akv::prefill
