// prefill_node: sockets and threads around a PrefillService.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "common/app/application.h"
#include "common/net/control_loop.h"
#include "common/net/http_server.h"
#include "prefill_node/config.h"
#include "prefill_node/make_engine.h"
#include "prefill_node/probe.h"
#include "prefill_node/service/prefill_service.h"
#include "transport/transport.h"

namespace akv::prefill {

class Daemon {
 public:
  using Config = prefill::Config;
  static constexpr const char* kName = "prefill_node";
  static constexpr const char* kSummary =
      "runs the model over prompts, compresses each layer's KV cache and ships the states";

  static Status check(const Config& config, const AppContext& context);
  static Result<std::unique_ptr<Daemon>> create(const Config& config, const AppContext& context);
  ~Daemon();

  Result<ReadyAddresses> start();
  void drain();
  bool idle() const;
  void stop();
  void reload(const Config& config);

 private:
  struct Components {
    std::shared_ptr<const model::Model> model;
    EngineDevice device;
    std::unique_ptr<PromptEngine> engine;  // until the service takes it
    std::unique_ptr<model::Tokenizer> tokenizer;
    std::unique_ptr<Probe> probe;
    std::unique_ptr<net::ControlLoop> control;
    std::unique_ptr<PrefillService> service;
    std::unique_ptr<transport::Sender> sender;  // ends before the service: its events reach into it
    std::unique_ptr<net::HttpServer> admin;
  };

  Daemon(const Config& config, const AppContext& context) : config_(config), context_(context) {}
  Status create_components();
  void on_message(net::PeerId peer, net::ControlMessage&& message);
  void on_hello(net::PeerId peer, const proto::Hello& hello);
  void on_peer(const net::PeerEvent& event);
  void emit(uint64_t owner, Event&& event);

  const Config config_;
  const AppContext context_;
  proto::Hello hello_;  // what we say of ourselves
  Components parts_;
  std::map<net::PeerId, std::string> greeted_;  // control thread: front doors that fit -> node
};

}  // namespace akv::prefill
