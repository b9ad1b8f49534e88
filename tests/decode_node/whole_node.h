// A front door, a decode engine and a prefill part in this process, over the in-process transport:
// everything real but the sockets, with a place where a test may drop or change what is said.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/model/wire.h"
#include "decode_node/dispatch/dispatcher.h"
#include "decode_node/engine/cpu_step.h"
#include "prefill_node/engine/cpu_engine.h"
#include "prefill_node/service/prefill_service.h"
#include "transport/inproc/inproc_transport.h"

namespace akv::decode {

// What one generation gave its client.
class Output : public api::GenerationSink {
 public:
  void on_tokens(std::span<const proto::TokenOut> tokens) override {
    const std::lock_guard lock(mutex_);
    for (const proto::TokenOut& token : tokens) tokens_.push_back(token.id);
    changed_.notify_all();
  }
  void on_done(const api::GenerationResult& result) override { end(result.finish_reason); }
  void on_error(const api::GenerationError& error) override {
    message = error.error.message;
    end(std::string(code_name(error.error.code)));
  }

  std::string message;  // of an error, once ended
  // "stop", "length" or the name of an error's code; "late" if none came in time.
  std::string ending() {
    std::unique_lock lock(mutex_);
    const bool ended = changed_.wait_for(lock, std::chrono::seconds(60), [&] { return ended_; });
    return ended ? ending_ : "late";
  }
  bool wait_tokens(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60),
                             [&] { return ended_ || tokens_.size() >= count; });
  }
  std::vector<int32_t> tokens() {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }

 private:
  void end(std::string how) {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(ended_) << "a second end: " << how;
    ended_ = true;
    ending_ = std::move(how);
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int32_t> tokens_;
  bool ended_ = false;
  std::string ending_;
};

class WholeNode {
 public:
  struct Running {
    std::shared_ptr<Output> output = std::make_shared<Output>();
    api::GenerationService::Handle handle = 0;
  };

  explicit WholeNode(EngineOptions engine_options = {},
                     prefill::ServiceOptions prefill_options = {})
      : model_(*model::Model::load(AKV_GOLDEN_DIR "/random_gguf/llama_mixed.gguf")),
        tokenizer_(*model::Tokenizer::create(model_->vocab())),
        control_(*net::ControlLoop::create({})),
        peers_(*control_, Logger()),
        receiver_(*transport::make_inproc_receiver(network_, {})),
        sender_(*transport::make_inproc_sender(network_, {})),
        prefill_(model_, tokenizer_,
                 std::make_unique<prefill::CpuPromptEngine>(model_, prefill::StreamOptions{}, 1),
                 prefill_options, *sender_, prefill_probe_, Logger(),
                 [this](uint64_t, prefill::Event&& event) { emit(std::move(event)); }),
        engine_(model_, tokenizer_.end_tokens(), cpu_parts(model_),
                at(engine_options, receiver_->address()), *receiver_, probe_, Logger(),
                [this](uint64_t, EngineEvent&& event) { emit(std::move(event)); }) {
    peers_.add_local(Role::kDecode, "d", [this] { return engine_.load(); });
    peers_.add_local(Role::kPrefill, "p", [this] { return prefill_.load(); });
    LocalParts parts;
    parts.engine = [this](EngineCommand&& c) {
      if (std::holds_alternative<proto::Open>(c)) ++opens;
      engine_.handle(0, std::move(c));
    };
    parts.prefill = [this](PrefillCommand&& c) {
      if (std::holds_alternative<proto::Prefill>(c)) ++prefills;
      prefill_.handle(0, std::move(c));
    };
    DispatcherOptions options;
    options.codec.min_compress_tokens = 64;
    options.retry_ms = 5;
    dispatcher_ = std::make_unique<Dispatcher>(model_, tokenizer_, nullptr, options, *control_,
                                               peers_, std::move(parts), probe_, Logger());
    control_->start({});
    control_->post([this] {
      peers_.refresh();
      control_->call_every(10, [this] { dispatcher_->tick(); });
    });
    EXPECT_TRUE(eventually([&] { return dispatcher_->readiness().ready; }));
  }

  ~WholeNode() {
    control_->stop();
    prefill_.stop();
    engine_.stop();
    sender_.reset();
    receiver_.reset();
  }

  // Set before the first request. Control thread: false drops the event; it may be changed.
  std::function<bool(PeerEvent&)> on_event = [](PeerEvent&) { return true; };
  std::atomic<int> opens = 0;
  std::atomic<int> prefills = 0;

  static std::vector<int32_t> prompt(int tokens, int seed) {
    std::vector<int32_t> ids;
    for (int i = 0; i < tokens; ++i) ids.push_back((i * 37 + seed * 101 + i * i % 13) % 256);
    return ids;
  }

  Running submit(std::vector<int32_t> prompt, int32_t max_tokens, double temperature = 0) {
    Running running;
    api::GenerationRequest request;
    request.request_id = "test";
    request.prompt_ids = std::move(prompt);
    request.max_tokens = max_tokens;
    request.sampling.temperature = temperature;
    request.sampling.seed = 7;
    request.sampling.ignore_eos = true;
    request.deadline = after_ms(60000);
    const auto refused = dispatcher_->submit(std::move(request), running.output, &running.handle);
    EXPECT_FALSE(refused.has_value()) << refused->error.message;
    return running;
  }

  static bool eventually(const std::function<bool()>& condition) {
    const TimePoint until = after_ms(60000);
    while (!condition()) {
      if (SteadyClock::now() > until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }

  // No session, no byte, no queue, nothing in the outbox.
  bool all_free() {
    return eventually([&] {
      const proto::Load load = engine_.load();
      return engine_.idle() && load.resident_bytes == 0 && load.reserved_bytes == 0 &&
             load.suffix_bytes == 0 && load.queue_requests == 0 && prefill_.idle() &&
             prefill_.load().outbox_bytes == 0 && dispatcher_->idle() &&
             dispatcher_->queue_requests() == 0 && dispatcher_->queue_tokens() == 0;
    });
  }

  Dispatcher& dispatcher() { return *dispatcher_; }
  Engine& engine() { return engine_; }
  const model::Model& model() const { return *model_; }

 private:
  static EngineParts cpu_parts(const std::shared_ptr<const model::Model>& model) {
    EngineParts parts;
    parts.workers = std::make_shared<WorkerPool>(1);
    parts.step = std::make_unique<CpuStepEngine>(model, parallel_view(*parts.workers));
    return parts;
  }
  static EngineOptions at(EngineOptions options, const HostPort& state) {
    options.advertise_state = state;
    return options;
  }

  template <class Event>
  void emit(Event&& event) {
    auto any = std::make_shared<PeerEvent>(std::visit(
        [](auto&& m) { return PeerEvent(std::forward<decltype(m)>(m)); }, std::move(event)));
    control_->post([this, any] {
      if (on_event(*any)) dispatcher_->on_event(kLocalPeer, std::move(*any));
    });
  }

  const std::shared_ptr<const model::Model> model_;
  const model::Tokenizer tokenizer_;
  const Probe probe_;
  const prefill::Probe prefill_probe_;
  std::unique_ptr<net::ControlLoop> control_;
  Peers peers_;
  std::shared_ptr<transport::InprocNetwork> network_ = transport::make_inproc_network();
  std::unique_ptr<transport::Receiver> receiver_;
  std::unique_ptr<transport::Sender> sender_;
  prefill::PrefillService prefill_;
  Engine engine_;
  std::unique_ptr<Dispatcher> dispatcher_;
};

}  // namespace akv::decode
