#include "prefill_node/service/prefill_service.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/model/wire.h"

namespace akv::prefill {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

}  // namespace

PrefillService::PrefillService(std::shared_ptr<const model::Model> model,
                               const model::Tokenizer& tokenizer,
                               std::unique_ptr<PromptEngine> engine, const ServiceOptions& options,
                               transport::Sender& sender, const Probe& probe, Logger log,
                               EmitFn emit)
    : model_(model),
      log_(log),
      emit_(emit),
      transfer_timeout_ms_(options.scheduler.transfer_timeout_ms),
      outbox_(options.outbox_bytes),
      shipper_(sender, probe, log, emit),
      scheduler_(model, tokenizer.end_tokens(), std::move(engine), options.scheduler, outbox_,
                 shipper_, probe, log, emit) {}

PrefillService::~PrefillService() { stop(); }

void PrefillService::stop() { scheduler_.stop(); }

void PrefillService::handle(uint64_t owner, Command&& command) {
  std::visit(Overloaded{
                 [&](proto::Prefill&& m) { on_prefill(owner, std::move(m)); },
                 [&](proto::Cancel&& m) { end_request(owner, m.ref); },
                 [&](proto::Release&& m) { end_request(owner, m.ref); },
                 [&](proto::Resend&& m) { on_resend(owner, m); },
             },
             std::move(command));
}

void PrefillService::fail(uint64_t owner, const proto::RequestRef& ref, const Error& error,
                          const char* phase) {
  emit_(owner, proto::Failed{.ref = ref,
                             .code = static_cast<uint16_t>(error.code),
                             .phase = phase,
                             .message = error.message,
                             .param = error.param});
}

Result<std::shared_ptr<Job>> PrefillService::make_job(uint64_t owner, proto::Prefill&& spec) const {
  if (draining_) return make_error(Code::kUnavailable, "the prefill node is draining");
  AKV_RETURN_IF_ERROR(health());
  const auto& config = model_->config();
  if (static_cast<int64_t>(spec.token_ids.size()) > config.context_length) {
    return make_error(Code::kContextLength,
                      fmt::format("the prompt has {} tokens, the model's context is {}",
                                  spec.token_ids.size(), config.context_length),
                      "prompt");
  }
  AKV_RETURN_IF_ERROR(validate(model::sampling_params(spec.sampling), config.vocab));
  auto job = std::make_shared<Job>();
  job->key = RequestKey{owner, spec.ref.id};
  job->arrived = SteadyClock::now();
  job->deadline = after_ms(spec.deadline_ms);
  if (spec.landing) {
    AKV_ASSIGN_OR_RETURN(
        job->plan,
        model::plan_state(*model_, static_cast<int64_t>(spec.token_ids.size()), spec.codec));
    if (model::plan_hash(job->plan) != spec.plan_hash) {
      return make_error(Code::kMismatch,
                        fmt::format("this node plans a state of {} bytes, the decode node of {}",
                                    job->plan.total_bytes, spec.state_bytes));
    }
  }
  job->spec = std::move(spec);
  return job;
}

// A repeated PREFILL of a newer attempt replaces the older one.
void PrefillService::on_prefill(uint64_t owner, proto::Prefill&& spec) {
  const proto::RequestRef ref = spec.ref;
  end_request(owner, ref);
  auto job = make_job(owner, std::move(spec));
  if (!job.ok()) return fail(owner, ref, job.error(), "queued");
  const Status queued = scheduler_.submit(*job);
  if (!queued.ok()) fail(owner, ref, queued.error(), "queued");
}

void PrefillService::on_resend(uint64_t owner, const proto::Resend& resend) {
  const auto state = outbox_.find(RequestKey{owner, resend.ref.id});
  if (!state) {
    return fail(owner, resend.ref,
                make_error(Code::kNotFound, "the outbox does not hold this state"), "resend");
  }
  state->end_shipments();
  // While layers are still computed the scheduler times the transfer from its last layer on.
  const int64_t timeout_ms =
      state->complete() ? std::min(resend.deadline_ms, transfer_timeout_ms_) : resend.deadline_ms;
  shipper_.ship(state, ShipOrder{.owner = owner,
                                 .ref = resend.ref,
                                 .request_id = resend.ref.id,
                                 .landing = resend.landing,
                                 .deadline = after_ms(timeout_ms),
                                 .phase = "resend"});
}

void PrefillService::end_request(uint64_t owner, const proto::RequestRef& ref) {
  const RequestKey key{owner, ref.id};
  scheduler_.cancel(key);
  outbox_.release(key);
}

void PrefillService::owner_lost(uint64_t owner) {
  scheduler_.cancel_owner(owner);
  outbox_.release_owner(owner);
}

bool PrefillService::idle() const {
  return scheduler_.queue_requests() == 0 && outbox_.size() == 0;
}

proto::Load PrefillService::load() const {
  proto::Load load;
  load.queue_requests = scheduler_.queue_requests();
  load.queue_tokens = scheduler_.queue_tokens();
  load.outbox_bytes = outbox_.bytes();
  load.draining = draining_;
  load.ready = !draining_ && health().ok();
  return load;
}

Levels PrefillService::levels() const {
  return {.queue_requests = [this] { return static_cast<double>(scheduler_.queue_requests()); },
          .queue_tokens = [this] { return static_cast<double>(scheduler_.queue_tokens()); },
          .max_queue_tokens = [this] { return static_cast<double>(scheduler_.max_queue_tokens()); },
          .outbox_bytes = [this] { return static_cast<double>(outbox_.bytes()); },
          .max_outbox_bytes = [this] { return static_cast<double>(outbox_.capacity_bytes()); },
          .dense_kv_bytes = [this] { return static_cast<double>(scheduler_.dense_kv_bytes()); }};
}

}  // namespace akv::prefill
