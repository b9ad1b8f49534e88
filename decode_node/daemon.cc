// Construction, start and stop; messages are in daemon_messages.cc.
#include "decode_node/daemon.h"

#include <algorithm>

#include "common/device/host.h"
#include "common/model/wire.h"
#include "common/net/admin.h"
#include "decode_node/engine/cpu_step.h"
#include "decode_node/engine/make_device_engine.h"
#include "kernels/isa.h"
#include "transport/nccl/nccl_transport.h"
#include "transport/ucx/ucx_transport.h"

namespace akv::decode {
namespace {

constexpr int64_t kTickMs = 50;
constexpr int kStopGraceMs = 1000;

Result<std::unique_ptr<model::ChatTemplate>> load_template(const model::Model& model,
                                                           const std::string& builtin) {
  using model::ChatTemplate;
  std::unique_ptr<ChatTemplate> none;
  if (!builtin.empty()) {
    AKV_ASSIGN_OR_RETURN(auto named, ChatTemplate::builtin(builtin));
    return std::make_unique<ChatTemplate>(std::move(named));
  }
  if (model.vocab().chat_template.empty()) return none;
  AKV_ASSIGN_OR_RETURN(auto own, ChatTemplate::parse(model.vocab().chat_template));
  return std::make_unique<ChatTemplate>(std::move(own));
}

}  // namespace

Status Daemon::check(const Config& config, const AppContext&) {
  AKV_ASSIGN_OR_RETURN(const auto model, model::Model::load(config.model));
  AKV_ASSIGN_OR_RETURN(const auto tokenizer, model::Tokenizer::create(model->vocab()));
  AKV_ASSIGN_OR_RETURN(const auto chat, load_template(*model, config.chat_template));
  AKV_ASSIGN_OR_RETURN(const auto control, config.control_options());
  for (const PeerSource* source : {&config.prefill, &config.decode}) {
    if (!source->file.empty()) AKV_RETURN_IF_ERROR(read_peer_file(source->file));
  }
  if (config.device == DevicePreference::kCuda && config.max_sessions > 0) {
    AKV_RETURN_IF_ERROR(choose_engine_device(config.device, model));
  }
  return {};
}

Result<std::unique_ptr<Daemon>> Daemon::create(const Config& config, const AppContext& context) {
  tune_allocator();
  std::unique_ptr<Daemon> daemon(new Daemon(config, context));
  AKV_RETURN_IF_ERROR(daemon->create_components());
  return daemon;
}

Daemon::~Daemon() { stop(); }

Status Daemon::create_components() {
  AKV_ASSIGN_OR_RETURN(parts_.model, model::Model::load(config_.model));
  AKV_ASSIGN_OR_RETURN(auto tokenizer, model::Tokenizer::create(parts_.model->vocab()));
  parts_.tokenizer = std::make_unique<model::Tokenizer>(std::move(tokenizer));
  AKV_ASSIGN_OR_RETURN(parts_.chat_template, load_template(*parts_.model, config_.chat_template));
  AKV_RETURN_IF_ERROR(choose_device());
  parts_.probe = std::make_unique<Probe>(*context_.metrics);
  context_.metrics
      ->gauge("akv_build_info", "Constant 1; what runs.",
              {{"version", std::string(project_version())},
               {"isa", isa_name(active_isa())},
               {"ucx", transport::ucx_version()}})
      .set(1);
  publish_device(*context_.metrics, parts_.device);
  hello_ = model::make_hello(config_.max_sessions > 0 ? "decode" : "frontdoor", *parts_.model);
  hello_.version = project_version();
  hello_.ucx_version = transport::ucx_version();
  return {};
}

Result<ReadyAddresses> Daemon::start() {
  AKV_ASSIGN_OR_RETURN(auto control_options, config_.control_options());
  AKV_ASSIGN_OR_RETURN(parts_.control, net::ControlLoop::create(std::move(control_options)));
  const HostPort control = *parts_.control->address();
  const std::string node = config_.app.node_name.empty()
                               ? advertised(config_.advertise_control, control).str()
                               : config_.app.node_name;
  context_.metrics->set_node(node);
  context_.log.set_node(node);
  hello_.node = node;
  if (config_.max_sessions > 0) AKV_RETURN_IF_ERROR(start_receiver());
  if (config_.max_sessions > 0) AKV_RETURN_IF_ERROR(start_engine());
  AKV_RETURN_IF_ERROR(start_front());
  AKV_RETURN_IF_ERROR(start_http());
  start_control();
  follow_peers();
  context_.log.info("started", {{"model", parts_.model->config().name},
                                {"model_fingerprint", hello_.model_fingerprint},
                                {"device", parts_.device.name},
                                {"device_reason", parts_.device.reason},
                                {"isa", isa_name(active_isa())},
                                {"isa_note", isa_message()},
                                {"threads", config_.effective_threads()},
                                {"local", config_.local},
                                {"transport", transport_note_}});
  if (parts_.engine && !parts_.device.is_gpu()) {
    parts_.huge_weights =
        std::make_unique<HugeWeights>(parts_.model, room_for_weights(), context_.log);
  }
  ReadyAddresses ready{{"http", parts_.api->address().str()}, {"control", control.str()}};
  if (parts_.receiver && !config_.local) {
    ready.emplace_back("state", parts_.receiver->address().str());
  }
  ready.emplace_back("metrics", parts_.admin->address().str());
  return ready;
}

Status Daemon::start_receiver() {
  if (config_.local) {
    AKV_ASSIGN_OR_RETURN(
        parts_.local,
        LocalPrefill::create(config_, parts_.device, parts_.model, *parts_.tokenizer,
                             *context_.metrics, context_.log,
                             [this](PeerEvent&& event) { emit_local(std::move(event)); }));
    parts_.receiver = parts_.local->take_receiver();
    transport_note_ = "inproc";
    hello_.transports = {"inproc"};
    return {};
  }
  const transport::TransportConfig transport =
      transport::node_config({.ucx_transports = config_.ucx_transports,
                              .ucx_devices = config_.ucx_devices,
                              .heartbeat_ms = config_.heartbeat_ms,
                              .gpu = parts_.device.is_gpu(),
                              .gpu_memory_is_host = parts_.device.memory_is_host,
                              .on_thread_start = parts_.device.bind_thread},
                             context_.log);
  AKV_ASSIGN_OR_RETURN(transport_note_, transport::describe_ucx(transport));
  AKV_ASSIGN_OR_RETURN(parts_.receiver, transport::make_ucx_receiver(transport, config_.state));
  if (parts_.device.is_gpu()) {
    parts_.receiver = over_nccl(std::move(parts_.receiver), /*ordinal=*/0, transport);
  }
  hello_.transports = {"ucx"};
  hello_.state_address = advertised(config_.advertise_state, parts_.receiver->address()).str();
  return {};
}

// Where the engine computes, and the engine's parts there.
Status Daemon::choose_device() {
  if (config_.max_sessions == 0) {
    parts_.device.reason = "a front door computes nothing";
    return {};
  }
  AKV_ASSIGN_OR_RETURN(parts_.device, choose_engine_device(config_.device, parts_.model));
  auto compute = make_engine();
  if (!compute.ok()) {
    AKV_ASSIGN_OR_RETURN(parts_.device,
                         device_instead_of(parts_.device, config_.device, compute.error()));
    compute = make_engine();
  }
  AKV_ASSIGN_OR_RETURN(parts_.compute, std::move(compute));
  return {};
}

Result<EngineParts> Daemon::make_engine() const {
  EngineParts engine;
  engine.workers = std::make_shared<WorkerPool>(config_.effective_threads());
  if (parts_.device.is_gpu()) {
    AKV_ASSIGN_OR_RETURN(engine.step, make_device_engine(parts_.device.weights, {}));
  } else {
    engine.step = std::make_unique<CpuStepEngine>(parts_.model, parallel_view(*engine.workers));
  }
  return engine;
}

Status Daemon::start_engine() {
  EngineOptions options = config_.engine_options(parts_.device);
  options.advertise_state = advertised(config_.advertise_state, parts_.receiver->address());
  parts_.engine = std::make_unique<Engine>(
      parts_.model, parts_.tokenizer->end_tokens(), std::move(parts_.compute), options,
      *parts_.receiver, *parts_.probe, context_.log,
      [this](uint64_t owner, EngineEvent&& event) { emit(owner, std::move(event)); });
  hello_.capacity.max_sessions = options.max_sessions;
  hello_.capacity.max_state_bytes = options.max_state_bytes;
  return {};
}

// Memory that the budgets of the parts leave, less a tenth of the limit for all else.
uint64_t Daemon::room_for_weights() const {
  const uint64_t memory = memory_limit_bytes();
  uint64_t taken = memory / 10 + hello_.capacity.max_state_bytes;
  if (parts_.local) taken += parts_.local->budget_bytes();
  return memory - std::min(memory, taken);
}

Status Daemon::start_front() {
  parts_.peers = std::make_unique<Peers>(*parts_.control, context_.log);
  parts_.peers->set_hello(hello_);
  LocalParts local;
  if (parts_.engine) {
    local.engine = [this](EngineCommand&& c) { parts_.engine->handle(0, std::move(c)); };
    parts_.peers->add_local(Role::kDecode, hello_.node, [this] { return parts_.engine->load(); });
  }
  if (parts_.local) {
    local.prefill = [this](PrefillCommand&& c) { parts_.local->handle(std::move(c)); };
    parts_.peers->add_local(Role::kPrefill, hello_.node, [this] { return parts_.local->load(); });
  }
  AKV_ASSIGN_OR_RETURN(const auto options, config_.dispatcher_options());
  parts_.dispatcher = std::make_unique<Dispatcher>(
      parts_.model, *parts_.tokenizer, parts_.chat_template.get(), options, *parts_.control,
      *parts_.peers, std::move(local), *parts_.probe, context_.log);
  parts_.peers->on_lost = [this](const Peer& peer) { parts_.dispatcher->on_peer_lost(peer); };
  const auto zero = [] { return 0.0; };
  EngineLevels engine{zero, zero, zero, zero, zero, {}, {}, {}};  // without a limit, no share of it
  if (parts_.engine) engine = parts_.engine->levels();
  parts_.probe->watch(
      *context_.metrics, std::move(engine),
      FrontLevels{.queue_requests = [this] { return parts_.dispatcher->queue_requests(); },
                  .queue_tokens = [this] { return parts_.dispatcher->queue_tokens(); },
                  .max_queue_requests = [this] { return parts_.dispatcher->max_queue_requests(); },
                  .max_queue_tokens = [this] { return parts_.dispatcher->max_queue_tokens(); },
                  .peers = [this] { return parts_.peers->count_samples(); },
                  .heartbeat_ages = [this] { return parts_.peers->age_samples(); }});
  return {};
}

Status Daemon::start_http() {
  api::ApiOptions api;
  api.http.bind = config_.http;
  api.http.threads = 2;  // a long prompt being tokenised does not hold up health checks and streams
  api.request_timeout_ms = static_cast<int>(config_.request_timeout_ms);
  api.api_key_file = config_.api_key_file;
  api.version = project_version();
  api.metrics_text = [this] { return context_.metrics->scrape(); };
  AKV_ASSIGN_OR_RETURN(parts_.api, api::ApiServer::start(std::move(api), *parts_.dispatcher, this));
  net::HttpServerOptions admin;
  admin.bind = config_.metrics;
  admin.thread_name = "admin";
  const net::AdminSources sources{.state =
                                      [this] {
                                        const api::Readiness readiness =
                                            parts_.dispatcher->readiness();
                                        return net::AdminState{readiness.ready, readiness.reason};
                                      },
                                  .metrics_text = [this] { return context_.metrics->scrape(); }};
  AKV_ASSIGN_OR_RETURN(parts_.admin,
                       net::HttpServer::start(admin, net::make_admin_handler(sources)));
  return {};
}

void Daemon::start_control() {
  parts_.control->start(net::ControlHandlers{
      .on_message = [this](net::PeerId peer,
                           net::ControlMessage&& m) { on_message(peer, std::move(m)); },
      .on_peer = [this](const net::PeerEvent& event) { on_peer(event); },
      .on_heartbeat = [this](net::PeerId peer,
                             std::string_view body) { parts_.peers->on_heartbeat(peer, body); },
      .heartbeat_body = [this] { return proto::encode_load(heartbeat_load()); }});
  parts_.control->post([this] {
    parts_.peers->refresh();
    parts_.control->call_every(kTickMs, [this] { parts_.dispatcher->tick(); });
    parts_.control->call_every(config_.heartbeat_ms, [this] { parts_.peers->refresh(); });
  });
}

void Daemon::follow_peers() {
  const auto follow = [this](const PeerSource& source, Role role) {
    const auto set = [this, role](std::vector<HostPort> addresses) {
      parts_.control->post([this, role, addresses = std::move(addresses)] {
        parts_.peers->set_remote(role, addresses);
      });
    };
    if (!source.addresses.empty()) set(source.addresses);
    return std::make_unique<PeerWatch>(source, context_.log, set);
  };
  parts_.prefill_watch = follow(config_.prefill, Role::kPrefill);
  parts_.decode_watch = follow(config_.decode, Role::kDecode);
}

void Daemon::drain() {
  parts_.dispatcher->drain();
  if (parts_.engine) parts_.engine->drain();
}

bool Daemon::idle() const {
  return parts_.dispatcher->idle() && (!parts_.engine || parts_.engine->idle());
}

// Outside in: no new request, no message, no step, no transfer; then destruction frees the rest.
void Daemon::stop() {
  if (std::exchange(stopped_, true)) return;
  parts_.prefill_watch.reset();
  parts_.decode_watch.reset();
  if (parts_.dispatcher) parts_.dispatcher->abandon();
  if (parts_.api) parts_.api->stop(kStopGraceMs);
  if (parts_.admin) parts_.admin->stop(0);
  if (parts_.control) parts_.control->stop();
  if (parts_.local) parts_.local->stop();
  if (parts_.engine) parts_.engine->stop();
  parts_.huge_weights.reset();
  parts_.receiver.reset();
  parts_.api.reset();
}

void Daemon::reload(const Config& config) {
  const Status keys = parts_.api->reload_keys();
  if (!keys.ok()) context_.log.error("API keys not read again", keys.error());
  if (!config.curve_peers.empty() && !config_.curve_key.empty()) {
    auto peers = net::read_curve_peers(config.curve_peers);
    if (!peers.ok()) return context_.log.error("CURVE peers not read again", peers.error());
    parts_.control->set_curve_peers(std::move(*peers));
  }
  parts_.control->post(
      [this, prefill = config.prefill.addresses, decode = config.decode.addresses] {
        if (!config_.prefill.addresses.empty()) parts_.peers->set_remote(Role::kPrefill, prefill);
        if (!config_.decode.addresses.empty()) parts_.peers->set_remote(Role::kDecode, decode);
      });
}

}  // namespace akv::decode
