#include "prefill_node/daemon.h"

#include "common/base/checksum.h"
#include "common/model/vocab_loader.h"
#include "common/model/wire.h"
#include "common/net/admin.h"
#include "kernels/isa.h"
#include "transport/nccl/nccl_transport.h"
#include "transport/ucx/ucx_transport.h"

namespace akv::prefill {
namespace {

// The command in a message, or why it is none.
template <class M>
bool decode_into(const net::ControlMessage& message, std::optional<Command>& command,
                 std::string& error) {
  if (message.type != proto::type_of<M>()) return false;
  auto decoded = proto::decode<M>(message.type, message.body, message.blob);
  if (decoded) {
    command = std::move(*decoded.value);
  } else {
    error = decoded.error;
  }
  return true;
}

net::ControlMessage to_message(proto::Frames&& frames) {
  return {std::move(frames.type), std::move(frames.body), std::move(frames.blob)};
}

}  // namespace

Status Daemon::check(const Config& config, const AppContext&) {
  AKV_ASSIGN_OR_RETURN(const auto model, model::Model::load(config.model));
  AKV_ASSIGN_OR_RETURN(const auto tokenizer, model::Tokenizer::create(model->vocab()));
  AKV_RETURN_IF_ERROR(config.control_options());
  if (config.device == DevicePreference::kCuda) {
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
  AKV_ASSIGN_OR_RETURN(parts_.device, choose_engine_device(config_.device, parts_.model));
  auto engine = make_engine(config_, parts_.device, parts_.model);
  if (!engine.ok()) {
    AKV_ASSIGN_OR_RETURN(parts_.device,
                         device_instead_of(parts_.device, config_.device, engine.error()));
    engine = make_engine(config_, parts_.device, parts_.model);
  }
  AKV_ASSIGN_OR_RETURN(parts_.engine, std::move(engine));
  parts_.probe = std::make_unique<Probe>(*context_.metrics, /*shared_process=*/false);
  context_.metrics
      ->gauge("akv_build_info", "Constant 1; what runs.",
              {{"version", std::string(project_version())},
               {"isa", isa_name(active_isa())},
               {"ucx", transport::ucx_version()}})
      .set(1);
  publish_device(*context_.metrics, parts_.device);
  hello_ = model::make_hello("prefill", *parts_.model);
  hello_.version = project_version();
  hello_.ucx_version = transport::ucx_version();
  hello_.transports = {"ucx"};
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

  transport::TransportConfig transport =
      transport::node_config({.ucx_transports = config_.ucx_transports,
                              .ucx_devices = config_.ucx_devices,
                              .heartbeat_ms = config_.heartbeat_ms,
                              .gpu = parts_.device.is_gpu(),
                              .gpu_memory_is_host = parts_.device.memory_is_host,
                              .on_thread_start = parts_.device.bind_thread},
                             context_.log);
  transport.local_address = HostPort{config_.state.host, 0};
  AKV_ASSIGN_OR_RETURN(const std::string ucx, transport::describe_ucx(transport));
  AKV_ASSIGN_OR_RETURN(auto sender, transport::make_ucx_sender(transport));
  if (parts_.device.is_gpu()) sender = over_nccl(std::move(sender), /*ordinal=*/0, transport);
  AKV_ASSIGN_OR_RETURN(parts_.sender, wrap_sender(std::move(sender), config_.coats));

  const auto options = config_.service_options(parts_.device);
  parts_.service = std::make_unique<PrefillService>(
      parts_.model, *parts_.tokenizer, std::move(parts_.engine), options, *parts_.sender,
      *parts_.probe, context_.log,
      [this](uint64_t owner, Event&& event) { emit(owner, std::move(event)); });
  parts_.probe->watch(*context_.metrics, parts_.service->levels());
  hello_.capacity.max_queue_tokens = options.scheduler.max_queue_tokens;
  hello_.capacity.max_prefill_bytes = options.scheduler.max_prefill_bytes;
  hello_.capacity.outbox_bytes = options.outbox_bytes;

  net::HttpServerOptions admin;
  admin.bind = config_.metrics;
  admin.thread_name = "admin";
  const net::AdminSources sources{
      .state =
          [this] {
            if (parts_.service->draining()) return net::AdminState{false, "draining"};
            const Status health = parts_.service->health();
            return net::AdminState{health.ok(), health.ok() ? "" : health.error().message};
          },
      .metrics_text = [this] { return context_.metrics->scrape(); }};
  AKV_ASSIGN_OR_RETURN(parts_.admin,
                       net::HttpServer::start(admin, net::make_admin_handler(sources)));
  parts_.control->start(net::ControlHandlers{
      .on_message = [this](net::PeerId peer,
                           net::ControlMessage&& m) { on_message(peer, std::move(m)); },
      .on_peer = [this](const net::PeerEvent& event) { on_peer(event); },
      .on_heartbeat = {},
      .heartbeat_body = [this] { return proto::encode_load(parts_.service->load()); }});
  context_.log.info("started", {{"model", parts_.model->config().name},
                                {"model_fingerprint", hello_.model_fingerprint},
                                {"device", parts_.device.name},
                                {"device_reason", parts_.device.reason},
                                {"isa", isa_name(active_isa())},
                                {"isa_note", isa_message()},
                                {"threads", config_.effective_threads()},
                                {"transport", ucx}});
  return ReadyAddresses{{"control", control.str()},
                        {"state", transport.local_address.str()},
                        {"metrics", parts_.admin->address().str()}};
}

void Daemon::drain() { parts_.service->drain(); }
bool Daemon::idle() const { return parts_.service->idle(); }

void Daemon::stop() {
  if (parts_.control) parts_.control->stop();
  if (parts_.service) parts_.service->stop();
  parts_.sender.reset();
  if (parts_.admin) parts_.admin->stop(0);
}

void Daemon::reload(const Config& config) {
  if (config.curve_peers.empty() || config_.curve_key.empty()) return;
  auto peers = net::read_curve_peers(config.curve_peers);
  if (!peers.ok()) return context_.log.error("CURVE peers not read again", peers.error());
  parts_.control->set_curve_peers(std::move(*peers));
}

// A front door must have said a HELLO that fits before anything else is taken from it.
void Daemon::on_message(net::PeerId peer, net::ControlMessage&& message) {
  if (message.type == proto::type_of<proto::Hello>()) {
    const auto hello = proto::decode<proto::Hello>(message.type, message.body, message.blob);
    if (hello) return on_hello(peer, *hello.value);
  }
  std::optional<Command> command;
  std::string error = "not a message of a prefill node";
  const bool known = decode_into<proto::Prefill>(message, command, error) ||
                     decode_into<proto::Cancel>(message, command, error) ||
                     decode_into<proto::Release>(message, command, error) ||
                     decode_into<proto::Resend>(message, command, error);
  if (!greeted_.contains(peer)) error = "no HELLO came before it";
  if (!known || !command || !greeted_.contains(peer)) {
    context_.log.warn("control message refused",
                      {{"peer", peer}, {"type", message.type}, {"error", error}});
    (void)parts_.control
        ->send(peer,
               to_message(proto::encode(proto::Refused{.reason = message.type + ": " + error})))
        .ok();
    return;
  }
  parts_.service->handle(peer, std::move(*command));
}

void Daemon::on_hello(net::PeerId peer, const proto::Hello& hello) {
  const std::string difference = proto::incompatibility(hello_, hello);
  if (!difference.empty()) {
    context_.log.warn("peer refused", {{"peer_node", hello.node}, {"reason", difference}});
    (void)parts_.control
        ->send(peer, to_message(proto::encode(proto::Refused{.reason = difference})))
        .ok();
    return;
  }
  greeted_[peer] = hello.node;
  context_.log.info("peer greeted", {{"peer_node", hello.node}, {"role", hello.role}});
  (void)parts_.control->send(peer, to_message(proto::encode(proto::Welcome{.hello = hello_}))).ok();
}

// A front door that went down comes back under another id, so nothing can ask for its jobs and
// states any more.
void Daemon::on_peer(const net::PeerEvent& event) {
  if (event.up) return;
  const auto greeted = greeted_.find(event.peer);
  if (greeted == greeted_.end()) return;
  context_.log.info("peer lost", {{"peer_node", greeted->second}, {"reason", event.reason}});
  greeted_.erase(greeted);
  parts_.service->owner_lost(event.peer);
}

void Daemon::emit(uint64_t owner, Event&& event) {
  auto frames = std::visit([](const auto& m) { return proto::encode(m); }, event);
  parts_.control->post([this, owner, message = to_message(std::move(frames))] {
    (void)parts_.control->send_or_lose_peer(owner, message).ok();
  });
}

}  // namespace akv::prefill
