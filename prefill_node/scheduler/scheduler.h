// The prefill engine's thread: which prompt runs its next layer, and what happens at its borders.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/log/log.h"
#include "common/model/model.h"
#include "common/model/sampler.h"
#include "prefill_node/engine/prompt_engine.h"
#include "prefill_node/outbox/outbox.h"
#include "prefill_node/outbox/shipper.h"
#include "prefill_node/probe.h"
#include "prefill_node/scheduler/job.h"

namespace akv::prefill {

struct SchedulerOptions {
  uint64_t max_prefill_bytes = uint64_t{1} << 30;  // hidden states and activations in work
  uint64_t max_queue_tokens = 1 << 20;             // prompt tokens waiting or in work
  size_t max_queue_requests = 4096;
  int64_t transfer_timeout_ms = 30000;
};

// Prompts take turns at layer borders: the one whose virtual deadline (arrival plus a multiple of
// its own work) is nearest goes next, so a short prompt overtakes a long one and none starves.
class Scheduler {
 public:
  Scheduler(std::shared_ptr<const model::Model> model, std::vector<int32_t> end_tokens,
            std::unique_ptr<PromptEngine> engine, const SchedulerOptions& options, Outbox& outbox,
            Shipper& shipper, const Probe& probe, Logger log, EmitFn emit);
  ~Scheduler();  // stop()

  // [thread-safe] Queues a job, or says why not: kResourceExhausted (queue full; or never possible
  // with max_prefill_bytes: param names it), kUnavailable (stopped). Emits Queued.
  Status submit(std::shared_ptr<Job> job);
  // [thread-safe] Marks it; the engine drops it at the next chunk border, without an event.
  void cancel(const RequestKey& key);
  void cancel_owner(uint64_t owner);
  // [thread-safe] Joins the engine thread; jobs are dropped without events.
  void stop();

  // [thread-safe] Levels for heartbeats and metrics.
  uint64_t queue_requests() const { return jobs_count_.load(std::memory_order_relaxed); }
  uint64_t queue_tokens() const { return jobs_tokens_.load(std::memory_order_relaxed); }
  uint64_t max_queue_tokens() const { return options_.max_queue_tokens; }
  uint64_t dense_kv_bytes() const { return engine_->dense_kv_bytes(); }
  // [thread-safe] Not ok once the engine's device is lost.
  Status health() const { return engine_->health(); }

 private:
  using JobPtr = std::shared_ptr<Job>;
  void loop();
  void drop_ended();
  void drop_cancelled(const JobPtr& job);
  void admit();
  bool start(const JobPtr& job);
  JobPtr pick() const;
  void step(const JobPtr& job);
  LayerOrder layer_order(const JobPtr& job);
  Status first_token(Job& job, std::span<float> logits);
  void fail(const JobPtr& job, const Error& error, std::string_view phase);
  void remove(const JobPtr& job);
  void finish(const JobPtr& job);
  void end_late_shipments();

  const std::shared_ptr<const model::Model> model_;
  const std::vector<int32_t> end_tokens_;
  const SchedulerOptions options_;
  Outbox& outbox_;
  Shipper& shipper_;
  const Probe& probe_;
  const Logger log_;
  const EmitFn emit_;

  // Engine thread only, after construction.
  const std::unique_ptr<PromptEngine> engine_;
  model::SamplerScratch sampler_scratch_;
  std::vector<JobPtr> active_;
  uint64_t active_bytes_ = 0;
  // States whose layers are all computed, until their transfer ends or takes too long.
  std::vector<std::pair<TimePoint, std::weak_ptr<OutgoingState>>> shipping_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<JobPtr> queued_;  // guarded by mutex_
  std::vector<JobPtr> all_;    // guarded by mutex_: queued and active
  bool stop_ = false;          // guarded by mutex_
  std::atomic<uint64_t> jobs_count_{0};
  std::atomic<uint64_t> jobs_tokens_{0};
  std::thread thread_;
};

}  // namespace akv::prefill
