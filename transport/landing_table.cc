#include "transport/landing_table.h"

#include <string>

#include "common/base/check.h"

namespace akv::transport {

LandingTable::LandingTable(const TransportConfig& config)
    : transfers_max_(config.transfers_max),
      records_max_(config.records_max),
      record_bytes_max_(config.record_bytes_max) {}

Status LandingTable::add(LandingSpec spec) {
  if (spec.transfer.is_zero() || spec.token.is_zero()) {
    return make_error(Code::kInvalidArgument, "a landing needs a transfer id and a token");
  }
  if (spec.destinations.empty() || spec.destinations.size() > records_max_) {
    return make_error(Code::kInvalidArgument,
                      "a landing of " + std::to_string(spec.destinations.size()) +
                          " records, must be in [1, " + std::to_string(records_max_) + "]");
  }
  for (const auto& span : spec.destinations) {
    if (span.empty() || span.size() > record_bytes_max_) {
      return make_error(Code::kInvalidArgument, "a destination of " + std::to_string(span.size()) +
                                                    " bytes, must be in [1, " +
                                                    std::to_string(record_bytes_max_) + "]");
    }
  }
  if (!spec.device_destinations.empty() &&
      spec.device_destinations.size() != spec.destinations.size()) {
    return make_error(Code::kInvalidArgument, "not one device destination a record");
  }
  const Id128 id = spec.transfer;
  auto landing = std::make_shared<Landing>(std::move(spec));
  std::lock_guard lock(mutex_);
  if (closed_) return make_error(Code::kUnavailable, "the receiver is closing");
  if (landings_.size() >= transfers_max_) {
    return make_error(Code::kResourceExhausted,
                      std::to_string(transfers_max_) + " transfers are expected already");
  }
  if (!landings_.emplace(id, std::move(landing)).second) {
    return make_error(Code::kInvalidArgument, "transfer " + id.hex() + " is expected already");
  }
  return {};
}

LandingPtr LandingTable::find(const Id128& transfer) const {
  std::lock_guard lock(mutex_);
  auto it = landings_.find(transfer);
  return it == landings_.end() ? nullptr : it->second;
}

void LandingTable::remove(const Id128& transfer) {
  std::lock_guard lock(mutex_);
  landings_.erase(transfer);
}

std::vector<LandingPtr> LandingTable::all() const {
  std::lock_guard lock(mutex_);
  std::vector<LandingPtr> out;
  out.reserve(landings_.size());
  for (const auto& [id, landing] : landings_) out.push_back(landing);
  return out;
}

size_t LandingTable::size() const {
  std::lock_guard lock(mutex_);
  return landings_.size();
}

void LandingTable::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
}

Result<LandingPtr> LandingTable::match(const TransferKey& key, const void* peer) const {
  LandingPtr landing = find(key.transfer);
  if (!landing) {
    return make_error(Code::kNotFound, "transfer " + key.transfer.hex() + " is not expected here");
  }
  if (!equal_constant_time(key.token, landing->spec.token)) {
    return make_error(Code::kMismatch, "wrong token for transfer " + key.transfer.hex());
  }
  if (key.attempt != landing->spec.attempt) {
    return make_error(Code::kMismatch, "attempt " + std::to_string(key.attempt) + ", expected " +
                                           std::to_string(landing->spec.attempt));
  }
  if (landing->peer != nullptr && landing->peer != peer) {
    return make_error(Code::kMismatch, "the transfer is landing by another connection");
  }
  landing->peer = peer;
  return landing;
}

Result<std::span<std::byte>> LandingTable::claim(Landing& landing, uint32_t record,
                                                 uint64_t bytes) {
  AKV_CHECK(!landing.ending);
  const auto& destinations = landing.spec.destinations;
  const std::string name = "record " + std::to_string(record);
  if (record >= destinations.size()) {
    return make_error(Code::kDataLoss,
                      name + " of " + std::to_string(destinations.size()) + " records");
  }
  if (bytes != destinations[record].size()) {
    return make_error(Code::kDataLoss, name + " has " + std::to_string(bytes) + " bytes, not " +
                                           std::to_string(destinations[record].size()));
  }
  if (landing.claimed[record]) return make_error(Code::kDataLoss, name + " is repeated");
  landing.claimed[record] = true;
  ++landing.claimed_count;
  return destinations[record];
}

}  // namespace akv::transport
