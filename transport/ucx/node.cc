// What both daemons do to have UCX: their configuration as the transport's, its lines in their log.
#include "transport/ucx/ucx_transport.h"

namespace akv::transport {

TransportConfig node_config(const NodeTransport& node, const Logger& log) {
  TransportConfig config;
  config.ucx_transports = node.ucx_transports;
  config.ucx_devices = node.ucx_devices;
  config.heartbeat_interval_ms = node.heartbeat_ms;
  config.heartbeat_lost_ms = 3 * node.heartbeat_ms;
  if (node.gpu) {
    config.device_memory = node.gpu_memory_is_host ? DeviceMemory::kHost : DeviceMemory::kCuda;
  }
  config.on_thread_start = node.on_thread_start;
  const Logger ucx_log = log.component("ucx");
  config.on_notice = [ucx_log](std::string_view line) {
    ucx_log.info("transport", {{"notice", line}});
  };
  // UCX would print on standard output, where the ready line goes.
  redirect_ucx_log([ucx_log](bool error, std::string_view line) {
    ucx_log.log(error ? LogLevel::kError : LogLevel::kWarn, "ucx says", {{"line", line}});
  });
  return config;
}

}  // namespace akv::transport
