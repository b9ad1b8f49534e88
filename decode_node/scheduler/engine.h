// The decode engine: one thread that owns the model's decode path and every session. Admission by
// exact bytes, continuous batching, parking, and the end of sessions in every phase.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "common/base/result.h"
#include "common/base/worker_pool.h"
#include "common/log/log.h"
#include "common/model/model.h"
#include "common/model/sampler.h"
#include "decode_node/cache/byte_pool.h"
#include "decode_node/engine/step.h"
#include "decode_node/probe.h"
#include "decode_node/scheduler/session.h"
#include "proto/control.h"
#include "transport/transport.h"

namespace akv::decode {

struct EngineOptions {
  size_t max_sessions = 256;
  uint64_t max_state_bytes = uint64_t{1} << 30;  // states and suffix pages together
  double page_share = 0.125;                     // of it never given to states
  // Of an engine with memory of its own, where max_state_bytes counts that memory: host memory for
  // states that land or are parked.
  uint64_t max_host_state_bytes = uint64_t{1} << 30;
  size_t max_queue_requests = 1024;  // waiting for bytes
  int64_t lease_ms = 15'000;         // landed, but START never came
  int64_t max_step_rows = 256;       // new tokens of one step, all sessions together
  HostPort advertise_state;          // what senders are told
};

// What computes: the steps, and the workers that draw tokens from logits. The step engine may use
// the same workers.
struct EngineParts {
  std::shared_ptr<WorkerPool> workers;
  std::unique_ptr<StepEngine> step;
};

// What front doors ask, and what they are told.
using EngineCommand = std::variant<proto::Open, proto::Start, proto::Close>;
using EngineEvent =
    std::variant<proto::Opened, proto::Landed, proto::Tokens, proto::Done, proto::Failed>;
using EngineEmitFn = std::function<void(uint64_t owner, EngineEvent&&)>;

class Engine {
 public:
  // The receiver may be destroyed only after stop(); its landings' ends need the engine alive.
  Engine(std::shared_ptr<const model::Model> model, std::vector<int32_t> end_tokens,
         EngineParts parts, const EngineOptions& options, transport::Receiver& receiver,
         const Probe& probe, Logger log, EngineEmitFn emit);
  ~Engine();  // stop()

  // [thread-safe] Errors come back as Failed events.
  void handle(uint64_t owner, EngineCommand&& command);
  // [thread-safe] The owner is gone: its sessions are freed.
  void owner_lost(uint64_t owner);
  // [thread-safe] Sessions go on, new ones are refused.
  void drain() { draining_ = true; }
  bool idle() const { return sessions_count_.load() == 0; }
  // [thread-safe] Joins the thread; sessions are dropped without events.
  void stop();

  // [thread-safe]
  proto::Load load() const;
  EngineLevels levels() const;
  uint64_t max_state_bytes() const { return pool_.capacity(); }
  // [thread-safe] Not ok once the step engine's device is lost.
  Status health() const { return step_->health(); }

 private:
  struct LandingEnded {
    SessionKey key;
    uint64_t order = 0;  // of the session whose landing it was
    LandingReport report;
  };
  struct OwnerLost {};
  struct Input {
    uint64_t owner = 0;
    std::variant<proto::Open, proto::Start, proto::Close, LandingEnded, OwnerLost> what;
  };
  using SessionPtr = std::unique_ptr<Session>;
  using SessionMap = std::map<SessionKey, SessionPtr>;

  void loop();
  bool any_in(SessionPhase phase) const;
  bool wait_for_work();
  Status check_open(const proto::Open& open);
  Status check_start(const Session& session, const proto::Start& start) const;
  void push(Input&& input);
  void apply(Input&& input);
  void on_open(uint64_t owner, proto::Open&& open);
  Result<SessionPtr> make_session(uint64_t owner, proto::Open&& open);
  void on_start(uint64_t owner, const proto::Start& start);
  void on_close(uint64_t owner, const proto::Close& close);
  void on_landing_ended(const LandingEnded& ended);
  void on_owner_lost(uint64_t owner);
  void expire();

  void admit();
  bool reserve_bytes(const Session& session);
  Status reserve(Session& session);
  void release_host(const Session& session);
  Status adopt(Session& session);
  void go_live(Session& session);

  std::vector<Session*> live_oldest_first();
  void unpark();
  bool park_younger(const Session& oldest, int64_t tokens);
  bool make_room(std::vector<Session*>& batch, Session& session, int64_t tokens);
  void park(Session& session);
  Session* youngest_idle() const;
  bool room_is_to_come() const;
  void shed(Session& session);
  void fail_out_of_memory(Session& session);
  bool send_away(Session& session);
  bool bring_back(Session& session);
  void end_if_lost();
  void step();
  void step_failed(std::vector<Session*>& batch, const Error& error);
  void sample_all(std::vector<Session*>& batch, std::vector<StepEntry>& entries);
  void take_token(Session& session, const Result<model::Sampled>& sampled);

  void fail(Session& session, const Error& error, const char* phase);
  void finish(Session& session, const char* reason);
  void end(Session& session, const char* outcome);
  void log_end(const Session& session, const char* outcome) const;
  void publish_levels();

  const std::shared_ptr<const model::Model> model_;
  const std::vector<int32_t> end_tokens_;
  const EngineOptions options_;
  transport::Receiver& receiver_;
  const Probe& probe_;
  const Logger log_;
  const EngineEmitFn emit_;
  const PageShape page_;

  // Engine thread only, after construction.
  const std::shared_ptr<WorkerPool> workers_;
  const std::unique_ptr<StepEngine> step_;
  BytePool pool_;
  BytePool host_pool_;  // landing and parked states, where step_ has memory of its own
  bool lost_ = false;   // the device was found lost, and all sessions ended
  SessionMap sessions_;
  std::deque<Session*> queue_;  // kQueued, in order of arrival
  // Landings of sessions that ended: their bytes stay charged until nothing writes to them.
  std::map<uint64_t, std::shared_ptr<IncomingState>> closing_;
  uint64_t next_order_ = 1;
  std::vector<model::SamplerScratch> sampler_scratch_;  // one a worker

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Input> inputs_;  // guarded by mutex_
  bool stop_ = false;         // guarded by mutex_

  std::atomic<bool> draining_{false};
  std::atomic<uint64_t> sessions_count_{0};
  std::atomic<uint64_t> queued_count_{0};
  std::atomic<uint64_t> queued_tokens_{0};
  std::atomic<uint64_t> resident_bytes_{0};
  std::atomic<uint64_t> parked_count_{0};
  std::thread thread_;
};

}  // namespace akv::decode
