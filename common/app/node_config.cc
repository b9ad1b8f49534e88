#include "common/app/node_config.h"

#include <malloc.h>

#include <fmt/format.h>

#include "common/device/host.h"

namespace akv {

void NodeConfig::declare_node(Schema& s) {
  s.section("Model and threads");
  s.text("model", model, "FILE").doc("GGUF file of the model").required();
  s.choice<DevicePreference>("device", device,
                             {{"auto", DevicePreference::kAuto},
                              {"cpu", DevicePreference::kCpu},
                              {"cuda", DevicePreference::kCuda}})
      .doc("where the engine computes; auto takes a GPU where one works");
  s.integer("threads", threads)
      .range(0, 1024)
      .default_note("CPUs the process may use")
      .doc("threads of the engine");
  s.section("Addresses");
  s.address("control", control).doc("ZeroMQ address of the control plane; port 0 picks a free one");
  s.address("state", state).doc("UCX address that states land on or are dialled from");
  s.address("metrics", metrics).doc("HTTP address of /metrics and /health/*");
  s.address("advertise-control", advertise_control).doc("control address that peers are told");
  s.address("advertise-state", advertise_state).doc("state address that peers are told");
  s.section("Peers and times");
  s.integer("heartbeat-ms", heartbeat_ms)
      .unit("ms")
      .range(10, 60'000)
      .doc("interval of heartbeats; a peer is lost after 3");
  s.integer("lease-ms", lease_ms)
      .unit("ms")
      .range(100, 3'600'000)
      .doc("frees what belongs to a lost peer, or what no message freed");
  s.integer("transfer-timeout-ms", transfer_timeout_ms)
      .unit("ms")
      .range(100, 3'600'000)
      .doc("a state must have landed so long after its last layer was computed");
  s.text("ucx-tls", ucx_transports, "LIST")
      .doc("UCX transports, as UCX_TLS; empty leaves UCX's choice");
  s.text("ucx-net-devices", ucx_devices, "LIST").doc("network devices, as UCX_NET_DEVICES");
  s.section("Security");
  s.text("curve-key", curve_key, "FILE")
      .doc("CURVE key pair of this node; peers must have keys too");
  s.text("curve-peers", curve_peers, "FILE").doc("CURVE public keys that may connect").reloadable();
  s.flag("insecure", insecure).doc("allow addresses other than loopback without CURVE");
}

Status NodeConfig::validate_node() const {
  if (curve_key.empty() && !curve_peers.empty()) {
    return make_error(Code::kInvalidArgument, "curve-peers needs curve-key", "curve-peers");
  }
  const auto exposed = [&](const HostPort& address, const char* flag) -> Status {
    if (is_loopback(address) || insecure || !curve_key.empty()) return {};
    return make_error(Code::kInvalidArgument,
                      fmt::format("{}: got {}, takes a loopback address unless --curve-key or "
                                  "--insecure is given",
                                  flag, address.str()),
                      flag);
  };
  AKV_RETURN_IF_ERROR(exposed(control, "control"));
  return exposed(state, "state");
}

int NodeConfig::effective_threads() const { return threads > 0 ? threads : cpu_count(); }

Result<net::ControlLoopOptions> NodeConfig::control_options() const {
  net::ControlLoopOptions options;
  options.bind = control;
  options.heartbeat_ms = static_cast<int>(heartbeat_ms);
  if (!curve_key.empty()) {
    net::CurveOptions curve;
    AKV_ASSIGN_OR_RETURN(curve.keys, net::read_curve_keys(curve_key));
    if (!curve_peers.empty()) {
      AKV_ASSIGN_OR_RETURN(curve.peers, net::read_curve_peers(curve_peers));
    }
    options.curve = std::move(curve);
  }
  return options;
}

void publish_device(MetricsRegistry& metrics, const EngineDevice& device) {
  metrics
      .gauge("akv_device_info", "Constant 1; where the engine computes.",
             {{"kind", device.kind()}, {"device", device.name}})
      .set(1);
}

HostPort advertised(const std::optional<HostPort>& advertise, const HostPort& bound) {
  return advertise ? *advertise : bound;
}

// glibc raises its mmap threshold up to 32 MiB as large blocks are freed, and then keeps freed
// states and hidden states on its heap; a fixed threshold gives them back to the system.
void tune_allocator() {
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
  mallopt(M_TRIM_THRESHOLD, 1 << 20);
  mallopt(M_ARENA_MAX, 2);
}

}  // namespace akv
