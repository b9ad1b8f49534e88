// decode_node: front door, decode engine and, with --local, a prefill part, around their sockets.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/app/application.h"
#include "common/model/chat_template.h"
#include "common/model/model.h"
#include "common/model/tokenizer.h"
#include "common/net/control_loop.h"
#include "common/net/http_server.h"
#include "decode_node/api/api_server.h"
#include "decode_node/config.h"
#include "decode_node/dispatch/dispatcher.h"
#include "decode_node/dispatch/peer_watch.h"
#include "decode_node/engine/huge_weights.h"
#include "decode_node/local.h"
#include "decode_node/probe.h"
#include "decode_node/scheduler/engine.h"
#include "transport/transport.h"

namespace akv::decode {

class Daemon : private api::ApiObserver {
 public:
  using Config = decode::Config;
  static constexpr const char* kName = "decode_node";
  static constexpr const char* kSummary =
      "holds compressed states, decodes from them and serves the HTTP API";

  static Status check(const Config& config, const AppContext& context);
  static Result<std::unique_ptr<Daemon>> create(const Config& config, const AppContext& context);
  ~Daemon() override;

  Result<ReadyAddresses> start();
  void drain();
  bool idle() const;
  void stop();
  void reload(const Config& config);

 private:
  struct Components {
    std::shared_ptr<const model::Model> model;
    EngineDevice device;
    EngineParts compute;  // until the engine takes them
    std::unique_ptr<model::Tokenizer> tokenizer;
    std::unique_ptr<model::ChatTemplate> chat_template;
    std::unique_ptr<HugeWeights> huge_weights;
    std::unique_ptr<Probe> probe;
    std::unique_ptr<net::ControlLoop> control;
    std::unique_ptr<transport::Receiver> receiver;
    std::unique_ptr<Engine> engine;
    std::unique_ptr<LocalPrefill> local;
    std::unique_ptr<Peers> peers;
    std::unique_ptr<Dispatcher> dispatcher;
    std::unique_ptr<PeerWatch> prefill_watch;
    std::unique_ptr<PeerWatch> decode_watch;
    std::unique_ptr<api::ApiServer> api;
    std::unique_ptr<net::HttpServer> admin;
  };

  Daemon(const Config& config, const AppContext& context) : config_(config), context_(context) {}
  Status create_components();
  Status start_engine();
  uint64_t room_for_weights() const;
  Status choose_device();
  Result<EngineParts> make_engine() const;
  Status start_receiver();
  Status start_front();
  Status start_http();
  void start_control();
  void follow_peers();

  void on_message(net::PeerId peer, net::ControlMessage&& message);
  void on_dialed_message(net::PeerId peer, const net::ControlMessage& message);
  void on_client_message(net::PeerId peer, const net::ControlMessage& message);
  void on_hello(net::PeerId peer, const proto::Hello& hello);
  void on_peer(const net::PeerEvent& event);
  void emit(uint64_t owner, EngineEvent&& event);
  void emit_local(PeerEvent&& event);
  proto::Load heartbeat_load() const;

  void on_first_token(double seconds) override;
  void on_inter_token(double seconds) override;
  void on_finished(const api::RequestRecord& record) override;

  const Config config_;
  const AppContext context_;
  proto::Hello hello_;
  std::string transport_note_;
  Components parts_;
  std::map<net::PeerId, std::string> greeted_;  // control thread: other front doors that fit
  bool stopped_ = false;
};

}  // namespace akv::decode
