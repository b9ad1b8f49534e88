#include "prefill_node/scheduler/scheduler.h"

#include <pthread.h>

#include <algorithm>

#include <fmt/format.h>

#include "common/base/units.h"
#include "common/model/wire.h"

namespace akv::prefill {
namespace {

// Virtual deadline of a prompt: its arrival plus this many milliseconds a token. Larger favours
// short prompts more; the wait of a long one behind later short ones is bounded by it.
constexpr double kSlackMsPerToken = 10.0;

double virtual_deadline_ms(const Job& job, TimePoint epoch) {
  return ms_between(epoch, job.arrived) + kSlackMsPerToken * static_cast<double>(job.tokens());
}

}  // namespace

Scheduler::Scheduler(std::shared_ptr<const model::Model> model, std::vector<int32_t> end_tokens,
                     std::unique_ptr<PromptEngine> engine, const SchedulerOptions& options,
                     Outbox& outbox, Shipper& shipper, const Probe& probe, Logger log, EmitFn emit)
    : model_(std::move(model)),
      end_tokens_(std::move(end_tokens)),
      options_(options),
      outbox_(outbox),
      shipper_(shipper),
      probe_(probe),
      log_(std::move(log)),
      emit_(std::move(emit)),
      engine_(std::move(engine)) {
  thread_ = std::thread([this] { loop(); });
  pthread_setname_np(thread_.native_handle(), "prefill-engine");
}

Scheduler::~Scheduler() { stop(); }

void Scheduler::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    for (const JobPtr& job : all_) job->cancelled = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Status Scheduler::submit(std::shared_ptr<Job> job) {
  const auto tokens = static_cast<uint64_t>(job->tokens());
  const uint64_t work = engine_->work_bytes(job->tokens());
  if (work > options_.max_prefill_bytes) {
    return make_error(
        Code::kResourceExhausted,
        fmt::format("a prompt of {} tokens takes {} of work, the node allows {}", tokens,
                    format_bytes(work), format_bytes(options_.max_prefill_bytes)),
        "max-prefill-bytes");
  }
  proto::Queued queued{.ref = job->spec.ref,
                       .queue_requests = jobs_count_.load(),
                       .queue_tokens = jobs_tokens_.load()};
  const uint64_t owner = job->key.owner;
  {
    std::lock_guard lock(mutex_);
    if (stop_) return make_error(Code::kUnavailable, "the prefill node is stopping");
    if (all_.size() >= options_.max_queue_requests ||
        (!all_.empty() && jobs_tokens_ + tokens > options_.max_queue_tokens)) {
      return make_error(Code::kResourceExhausted,
                        fmt::format("the prefill queue holds {} tokens of at most {}",
                                    jobs_tokens_.load(), options_.max_queue_tokens),
                        "max-queue-tokens");
    }
    jobs_count_ += 1;
    jobs_tokens_ += tokens;
    all_.push_back(job);
    queued_.push_back(std::move(job));
  }
  emit_(owner, std::move(queued));
  wake_.notify_all();
  return {};
}

void Scheduler::cancel(const RequestKey& key) {
  {
    std::lock_guard lock(mutex_);
    for (const JobPtr& job : all_) {
      if (job->key == key) job->cancelled = true;
    }
  }
  wake_.notify_all();
}

void Scheduler::cancel_owner(uint64_t owner) {
  {
    std::lock_guard lock(mutex_);
    for (const JobPtr& job : all_) {
      if (job->key.owner == owner) job->cancelled = true;
    }
  }
  wake_.notify_all();
}

void Scheduler::loop() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      // A queued prompt may wait for outbox room that another thread frees, and deadlines pass
      // while nothing is in work: look again at a bounded interval.
      wake_.wait_for(lock, std::chrono::milliseconds(100),
                     [&] { return stop_ || !queued_.empty() || !active_.empty(); });
      if (stop_) break;
    }
    drop_ended();
    end_late_shipments();
    admit();
    if (const JobPtr job = pick()) {
      step(job);
    } else {
      std::unique_lock lock(mutex_);
      if (!queued_.empty() && !stop_) wake_.wait_for(lock, std::chrono::milliseconds(5));
    }
  }
  active_.clear();
}

// Takes cancelled and expired jobs out, wherever they are.
void Scheduler::drop_ended() {
  std::vector<JobPtr> cancelled;
  std::vector<JobPtr> expired;
  {
    std::lock_guard lock(mutex_);
    const TimePoint now = SteadyClock::now();
    for (const JobPtr& job : all_) {
      if (job->cancelled) {
        cancelled.push_back(job);
      } else if (now > job->deadline) {
        expired.push_back(job);
      }
    }
  }
  for (const JobPtr& job : cancelled) drop_cancelled(job);
  for (const JobPtr& job : expired) {
    fail(job, make_error(Code::kDeadlineExceeded, "the request's deadline passed in prefill"),
         job->prompt ? "prefill" : "queued");
  }
}

// Whoever cancelled it released its state, but may have done so before the state was there.
void Scheduler::drop_cancelled(const JobPtr& job) {
  probe_.finished("cancelled");
  log_.request(job->spec.request_id)
      .info("prefill cancelled", {{"attempt", job->spec.ref.attempt},
                                  {"tokens", job->tokens()},
                                  {"layers_done", job->prompt ? job->prompt->next_layer() : 0}});
  remove(job);
  if (job->state) outbox_.release(job->key, job->state.get());
}

void Scheduler::admit() {
  for (;;) {
    JobPtr next;
    {
      std::lock_guard lock(mutex_);
      const TimePoint epoch{};
      const auto best =
          std::min_element(queued_.begin(), queued_.end(), [&](const JobPtr& a, const JobPtr& b) {
            return virtual_deadline_ms(*a, epoch) < virtual_deadline_ms(*b, epoch);
          });
      if (best == queued_.end()) return;
      const uint64_t bytes = engine_->work_bytes((*best)->tokens());
      if (!active_.empty() && active_bytes_ + bytes > options_.max_prefill_bytes) return;
      next = *best;
    }
    if (!start(next)) return;
  }
}

// Gives a queued job its memory; false when it has to wait for outbox room.
bool Scheduler::start(const JobPtr& job) {
  if (job->cancelled) {
    drop_cancelled(job);
    return true;
  }
  if (job->wants_state()) {
    auto state =
        outbox_.create(job->key, job->plan, model::state_identity(*model_, job->spec.token_ids));
    if (!state.ok()) {
      const bool wait =
          state.error().code == Code::kResourceExhausted && state.error().param.empty();
      if (wait) return false;
      fail(job, state.error(), "queued");
      return true;
    }
    job->state = std::move(*state);
  }
  // Asked again: a CANCEL marks the job before it releases the state, so that either it sees the
  // state or we see the mark, and a newer attempt finds its key free.
  if (job->cancelled) {
    drop_cancelled(job);
    return true;
  }
  const bool observed = job->state && job->plan.codec == kv::Codec::kAnchorKv;
  auto prompt = engine_->begin(job->spec.token_ids, observed ? job->plan.options.window : 0);
  if (!prompt.ok()) {
    fail(job, prompt.error(), "queued");
    return true;
  }
  job->prompt = std::move(*prompt);
  job->started = SteadyClock::now();
  active_.push_back(job);
  active_bytes_ += engine_->work_bytes(job->tokens());
  {
    std::lock_guard lock(mutex_);
    queued_.erase(std::find(queued_.begin(), queued_.end(), job));
  }
  emit_(job->key.owner,
        proto::Started{.ref = job->spec.ref, .queue_ms = ms_between(job->arrived, job->started)});
  // The transfer is opened before the first layer is computed: records leave as they are finished.
  if (job->state) {
    shipper_.ship(job->state, ShipOrder{.owner = job->key.owner,
                                        .ref = job->spec.ref,
                                        .request_id = job->spec.request_id,
                                        .landing = *job->spec.landing,
                                        .deadline = job->deadline});
  }
  return true;
}

Scheduler::JobPtr Scheduler::pick() const {
  const TimePoint epoch{};
  JobPtr best;
  for (const JobPtr& job : active_) {
    if (!best || virtual_deadline_ms(*job, epoch) < virtual_deadline_ms(*best, epoch)) best = job;
  }
  return best;
}

void Scheduler::step(const JobPtr& job) {
  const bool last = job->prompt->next_layer() + 1 == model_->config().layers;
  LayerOrder order = layer_order(job);
  if (last) order.on_logits = [&](std::span<float> logits) { return first_token(*job, logits); };
  Status status = engine_->run_layer(*job->prompt, job->cancelled, order);
  if (status.ok()) status = job->record_status;
  if (!status.ok()) {
    if (status.error().code != Code::kCancelled) fail(job, status.error(), "prefill");
    return;  // a cancelled job is dropped at the next round
  }
  if (last) finish(job);
}

// A finished record goes to every open shipment while later layers are computed.
LayerOrder Scheduler::layer_order(const JobPtr& job) {
  LayerOrder order;
  if (!job->state) return order;
  const int layer = job->prompt->next_layer();
  order.record.plan = &job->state->plan();
  order.record.state_checksum = job->state->header_checksum();
  order.record.bytes = job->state->record(layer);
  order.record.keep_on_device = job->state->wants_device();
  order.record.done = [state = job->state, layer,
                       work = std::weak_ptr(job)](Result<FinishedRecord> record) {
    if (record.ok()) {
      state->compress_ms = state->compress_ms + record->compress_ms;
      state->publish(layer, std::move(record->device));
    } else if (const auto owner = work.lock()) {
      owner->record_status = record.error();
    }
  };
  return order;
}

Status Scheduler::first_token(Job& job, std::span<float> logits) {
  const auto params = model::sampling_params(job.spec.sampling);
  const model::SamplerState state(params, job.spec.token_ids, end_tokens_);
  AKV_ASSIGN_OR_RETURN(
      const auto sampled,
      model::sample(logits, params, state, static_cast<uint64_t>(job.tokens()), sampler_scratch_));
  const double prefill_ms = ms_since(job.started);
  if (job.state) job.state->prefill_ms = prefill_ms;
  probe_.prefilled(job.tokens(), prefill_ms / 1000);
  emit_(job.key.owner, proto::FirstToken{.ref = job.spec.ref,
                                         .token = model::token_out(sampled),
                                         .queue_ms = ms_between(job.arrived, job.started),
                                         .prefill_ms = prefill_ms});
  return {};
}

void Scheduler::finish(const JobPtr& job) {
  double compress_ms = 0;
  if (job->state) {
    compress_ms = job->state->compress_ms;
    probe_.compressed(compress_ms / 1000, job->plan.ratio());
    if (!job->plan.reachable) probe_.theta_unreachable();
    shipping_.emplace_back(after_ms(options_.transfer_timeout_ms), job->state);
  }
  probe_.finished("ok");
  log_.request(job->spec.request_id)
      .info("prefill done", {{"attempt", job->spec.ref.attempt},
                             {"tokens", job->tokens()},
                             {"state_bytes", job->state ? job->plan.total_bytes : 0},
                             {"queue_ms", ms_between(job->arrived, job->started)},
                             {"prefill_ms", ms_since(job->started)},
                             {"compress_ms", compress_ms},
                             {"outcome", "ok"}});
  remove(job);
}

void Scheduler::fail(const JobPtr& job, const Error& error, std::string_view phase) {
  probe_.finished("failed");
  log_.request(job->spec.request_id)
      .warn("prefill failed", {{"attempt", job->spec.ref.attempt},
                               {"tokens", job->tokens()},
                               {"phase", phase},
                               {"code", code_name(error.code)},
                               {"error", error.message}});
  remove(job);
  emit_(job->key.owner, proto::Failed{.ref = job->spec.ref,
                                      .code = static_cast<uint16_t>(error.code),
                                      .phase = std::string(phase),
                                      .message = error.message,
                                      .param = error.param});
  // After the reason: the end of its shipments is told too, and must not be taken for it.
  if (job->state) outbox_.release(job->key, job->state.get());
}

// The state, if there is one, stays in the outbox.
void Scheduler::remove(const JobPtr& job) {
  const auto active = std::find(active_.begin(), active_.end(), job);
  if (active != active_.end()) {
    active_bytes_ -= engine_->work_bytes(job->tokens());
    active_.erase(active);
  }
  job->prompt.reset();
  std::lock_guard lock(mutex_);
  std::erase(queued_, job);
  if (std::erase(all_, job) == 0) return;
  jobs_count_ -= 1;
  jobs_tokens_ -= static_cast<uint64_t>(job->tokens());
}

void Scheduler::end_late_shipments() {
  const TimePoint now = SteadyClock::now();
  std::erase_if(shipping_, [&](const auto& entry) {
    const auto state = entry.second.lock();
    if (!state || !state->shipping()) return true;
    if (now < entry.first) return false;
    state->end_shipments();
    return true;
  });
}

}  // namespace akv::prefill
