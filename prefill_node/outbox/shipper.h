// Sends states to landings and tells their front doors how it ended.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "prefill_node/outbox/outgoing_state.h"
#include "prefill_node/probe.h"
#include "proto/control.h"
#include "transport/transport.h"

namespace akv::prefill {

// What a front door is told, from any thread. A Failed of phase "send" or "resend" leaves the state
// in the outbox: it can be sent again until it is released.
using Event =
    std::variant<proto::Queued, proto::Started, proto::FirstToken, proto::Sent, proto::Failed>;
using EmitFn = std::function<void(uint64_t owner, Event&&)>;

// One shipment of one request's state.
struct ShipOrder {
  uint64_t owner = 0;
  proto::RequestRef ref;
  std::string request_id;
  proto::Landing landing;
  TimePoint deadline;
  const char* phase = "send";  // or "resend"
};

// Thread-safe. The sender must end its channels before the shipper is destroyed.
class Shipper {
 public:
  Shipper(transport::Sender& sender, const Probe& probe, Logger log, EmitFn emit)
      : sender_(sender), probe_(probe), log_(std::move(log)), emit_(std::move(emit)) {}

  // Always answered by one Sent or Failed event, perhaps before it returns.
  void ship(const std::shared_ptr<OutgoingState>& state, const ShipOrder& order);

 private:
  void report(const OutgoingState& state, const ShipOrder& order, const ShipmentReport& report);

  transport::Sender& sender_;
  const Probe& probe_;
  const Logger log_;
  const EmitFn emit_;
};

}  // namespace akv::prefill
