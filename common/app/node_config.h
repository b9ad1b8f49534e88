// The flags that both daemons have, and what follows from them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/app/application.h"
#include "common/app/engine_device.h"
#include "common/base/result.h"
#include "common/base/units.h"
#include "common/config/schema.h"
#include "common/net/control_loop.h"

namespace akv {

struct NodeConfig {
  AppConfig app;
  std::string model;
  DevicePreference device = DevicePreference::kAuto;
  int threads = 0;  // 0: CPUs this process may use
  HostPort control{"127.0.0.1", 0};
  HostPort state{"127.0.0.1", 0};
  HostPort metrics{"127.0.0.1", 0};
  std::optional<HostPort> advertise_control;
  std::optional<HostPort> advertise_state;
  int64_t heartbeat_ms = 1000;
  int64_t lease_ms = 15'000;
  int64_t transfer_timeout_ms = 30'000;
  std::string ucx_transports = "tcp";
  std::string ucx_devices;
  std::string curve_key;
  std::string curve_peers;
  bool insecure = false;

  void declare_node(Schema& schema);
  // kInvalidArgument with the flag as param: a control or state address that is not loopback
  // without CURVE and without --insecure, peers without a key.
  Status validate_node() const;

  int effective_threads() const;
  // The loop's options: addresses, heartbeats, keys read from their files.
  Result<net::ControlLoopOptions> control_options() const;
};

// Says on a scrape where engines compute: akv_device_info{kind, device} 1.
void publish_device(MetricsRegistry& metrics, const EngineDevice& device);

// The address peers are told: advertised if given, else as bound.
HostPort advertised(const std::optional<HostPort>& advertise, const HostPort& bound);

// What a daemon's state depends on: keeps freed memory from staying with the allocator. Call once
// at start, before threads.
void tune_allocator();

}  // namespace akv
