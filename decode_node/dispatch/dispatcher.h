// The front door's orchestration: admission on a decode engine, prefill on a peer, tokens back, and
// what happens when any of them fails or goes away. All state lives on the control thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/log/log.h"
#include "common/model/chat_template.h"
#include "common/model/model.h"
#include "common/model/tokenizer.h"
#include "common/net/control_loop.h"
#include "decode_node/api/service.h"
#include "decode_node/dispatch/peers.h"
#include "decode_node/dispatch/request.h"
#include "decode_node/probe.h"
#include "decode_node/scheduler/engine.h"

namespace akv::decode {

struct DispatcherOptions {
  proto::CodecChoice codec;  // defaults; theta is ignored when auto_theta
  bool auto_theta = true;
  size_t max_queue = 1024;              // requests without a first token
  uint64_t max_queue_tokens = 1 << 20;  // their prompt tokens
  uint32_t max_attempts = 6;            // of one request, over all peers
  std::string model_name;               // of /v1/models; empty: the name in the model file
  int64_t retry_ms = 100;               // before a further attempt, times the attempt
};

// What a message can be, whoever sent it.
using PrefillCommand = std::variant<proto::Prefill, proto::Cancel, proto::Release, proto::Resend>;
using PeerEvent =
    std::variant<proto::Queued, proto::Started, proto::FirstToken, proto::Sent, proto::Failed,
                 proto::Opened, proto::Landed, proto::Tokens, proto::Done>;

// Ways to the parts in this process; empty where there is none.
struct LocalParts {
  std::function<void(PrefillCommand&&)> prefill;
  std::function<void(EngineCommand&&)> engine;
};

class Dispatcher : public api::GenerationService {
 public:
  // All arguments but options outlive the dispatcher. chat_template may be null.
  Dispatcher(std::shared_ptr<const model::Model> model, const model::Tokenizer& tokenizer,
             const model::ChatTemplate* chat_template, const DispatcherOptions& options,
             net::ControlLoop& control, Peers& peers, LocalParts local, const Probe& probe,
             Logger log);

  // [thread-safe] GenerationService.
  std::optional<api::GenerationError> submit(api::GenerationRequest request,
                                             std::shared_ptr<api::GenerationSink> sink,
                                             Handle* handle) override;
  void finish(Handle handle) override;
  void cancel(Handle handle, std::string_view reason) override;
  const api::ModelInfo& model() const override { return info_; }
  api::Readiness readiness() const override;

  // Control thread: a message from a peer (kLocalPeer: from this process).
  void on_event(net::PeerId from, PeerEvent&& event);
  void on_peer_lost(const Peer& peer);
  // Control thread, several times a second: deadlines.
  void tick();

  // [thread-safe]
  void drain() { draining_ = true; }
  // [thread-safe] Drains, and ends what is open with an error that tells clients to ask again.
  void abandon();
  bool idle() const { return open_requests_.load() == 0; }
  double queue_requests() const { return static_cast<double>(queue_requests_.load()); }
  double queue_tokens() const { return static_cast<double>(queue_tokens_.load()); }
  double max_queue_requests() const { return static_cast<double>(options_.max_queue); }
  double max_queue_tokens() const { return static_cast<double>(options_.max_queue_tokens); }

 private:
  using RequestPtr = std::shared_ptr<Request>;

  Result<RequestPtr> make_request(api::GenerationRequest&& spec) const;
  void start(const RequestPtr& request);
  void begin_attempt(Request& request);
  void open_engine(Request& request);
  void send_prefill(Request& request);
  void send_resend(Request& request);
  void retry(Request& request, const Error& error, const char* phase);
  void release_engine(Request& request, const char* reason);
  void release_prefill(Request& request, const char* reason);
  void prefill_over(Request& request);
  void engine_over(Request& request);

  void on(Request& r, net::PeerId from, const proto::Queued& m);
  void on(Request& r, net::PeerId from, const proto::Started& m);
  void on(Request& r, net::PeerId from, const proto::FirstToken& m);
  void on(Request& r, net::PeerId from, const proto::Sent& m);
  void on(Request& r, net::PeerId from, const proto::Failed& m);
  void on(Request& r, net::PeerId from, const proto::Opened& m);
  void on(Request& r, net::PeerId from, const proto::Landed& m);
  void on(Request& r, net::PeerId from, const proto::Tokens& m);
  void on(Request& r, net::PeerId from, const proto::Done& m);
  void prefill_failed(Request& r, const proto::Failed& m);
  void engine_failed(Request& r, const proto::Failed& m);
  void tokens_missing(Request& r);

  void deliver(Request& request, std::span<const proto::TokenOut> tokens);
  void complete(Request& request, const char* finish_reason);
  void conclude(Request& request);
  void fail(Request& request, const Error& error, const char* phase);
  void cut_short(Request& request, const Error& error, const char* phase);
  void forget(Request& request, const char* outcome);
  void left_queue(const Request& request);

  template <class M>
  bool tell_remote(net::PeerId peer, const M& message);
  template <class M>
  bool tell_prefill(net::PeerId peer, M&& message);
  template <class M>
  bool tell_engine(net::PeerId peer, M&& message);

  const std::shared_ptr<const model::Model> model_;
  const DispatcherOptions options_;
  net::ControlLoop& control_;
  Peers& peers_;
  const LocalParts local_;
  const Probe& probe_;
  const Logger log_;
  api::ModelInfo info_;
  const model::Tokenizer& tokenizer_;

  // Control thread only.
  std::unordered_map<Handle, RequestPtr> requests_;
  std::unordered_map<std::string, Handle> handles_;  // by wire id

  std::mutex cancel_mutex_;
  std::unordered_map<Handle, std::shared_ptr<std::atomic<bool>>> cancel_flags_;
  std::atomic<Handle> next_handle_{1};
  std::atomic<bool> draining_{false};
  std::atomic<uint64_t> open_requests_{0};
  std::atomic<uint64_t> queue_requests_{0};
  std::atomic<uint64_t> queue_tokens_{0};
};

}  // namespace akv::decode
