#include <string>

#include "transport/transport.h"

namespace akv::transport {
namespace {

Status check_range(const char* name, uint64_t value, uint64_t low, uint64_t high) {
  if (value >= low && value <= high) return {};
  return make_error(Code::kInvalidArgument,
                    std::string(name) + " is " + std::to_string(value) + ", must be in [" +
                        std::to_string(low) + ", " + std::to_string(high) + "]",
                    name);
}

Status check_ms(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value < 0) value = 0;  // every range starts above 0, so this is still reported
  return check_range(name, static_cast<uint64_t>(value), static_cast<uint64_t>(low),
                     static_cast<uint64_t>(high));
}

}  // namespace

Status validate(const TransportConfig& c) {
  AKV_RETURN_IF_ERROR(check_ms("heartbeat_interval_ms", c.heartbeat_interval_ms, 10, 60000));
  AKV_RETURN_IF_ERROR(
      check_ms("heartbeat_lost_ms", c.heartbeat_lost_ms, 2 * c.heartbeat_interval_ms, 600000));
  AKV_RETURN_IF_ERROR(check_ms("connect_timeout_ms", c.connect_timeout_ms, 10, 60000));
  AKV_RETURN_IF_ERROR(check_ms("drain_ms", c.drain_ms, 1, 60000));
  AKV_RETURN_IF_ERROR(check_ms("idle_close_ms", c.idle_close_ms, 100, INT64_MAX));
  AKV_RETURN_IF_ERROR(check_range("connections_max", c.connections_max, 1, 4096));
  AKV_RETURN_IF_ERROR(check_range("transfers_max", c.transfers_max, 1, 65536));
  AKV_RETURN_IF_ERROR(check_range("records_max", c.records_max, 1, 65536));
  AKV_RETURN_IF_ERROR(check_range("records_inflight_max", c.records_inflight_max, 1, 256));
  return check_range("record_bytes_max", c.record_bytes_max, 1, 1ull << 40);
}

}  // namespace akv::transport
