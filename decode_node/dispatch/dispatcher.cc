// Submission, attempts and ends of requests; what peers say is in dispatcher_events.cc.
#include "decode_node/dispatch/dispatcher.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include <fmt/format.h>

#include "common/base/ids.h"
#include "common/model/wire.h"
#include "decode_node/dispatch/tell.h"

namespace akv::decode {
namespace {

constexpr int64_t kRetryAfterMs = 1000;
constexpr uint32_t kMaxWaitShift = 6;   // of the wait before a further attempt
constexpr int64_t kReportWaitMs = 500;  // for SENT, when the output ends before it
constexpr auto kLateSlack = std::chrono::seconds(1);
constexpr const char* kTimedOut = "the request timed out";

int64_t retry_after_ms(const Error& error) {
  const bool later = error.code == Code::kUnavailable || error.code == Code::kResourceExhausted;
  return later ? kRetryAfterMs : 0;
}

}  // namespace

Dispatcher::Dispatcher(std::shared_ptr<const model::Model> model, const model::Tokenizer& tokenizer,
                       const model::ChatTemplate* chat_template, const DispatcherOptions& options,
                       net::ControlLoop& control, Peers& peers, LocalParts local,
                       const Probe& probe, Logger log)
    : model_(std::move(model)),
      options_(options),
      control_(control),
      peers_(peers),
      local_(std::move(local)),
      probe_(probe),
      log_(std::move(log)),
      tokenizer_(tokenizer) {
  info_.name = options.model_name.empty() ? model_->config().name : options.model_name;
  info_.created = std::time(nullptr);
  info_.context_length = model_->config().context_length;
  info_.vocab = model_->config().vocab;
  info_.tokenizer = &tokenizer;
  info_.chat_template = chat_template;
}

api::Readiness Dispatcher::readiness() const {
  api::Readiness readiness;
  readiness.draining = draining_;
  readiness.reason = draining_ ? "draining" : peers_.unready_reason();
  readiness.ready = readiness.reason.empty();
  return readiness;
}

Result<Dispatcher::RequestPtr> Dispatcher::make_request(api::GenerationRequest&& spec) const {
  const api::Readiness readiness = this->readiness();
  if (!readiness.ready) return make_error(Code::kUnavailable, readiness.reason);
  const auto tokens = static_cast<int64_t>(spec.prompt_ids.size());
  if (queue_requests_ >= options_.max_queue ||
      (queue_requests_ > 0 &&
       queue_tokens_ + static_cast<uint64_t>(tokens) > options_.max_queue_tokens)) {
    return make_error(Code::kResourceExhausted,
                      fmt::format("{} requests of {} prompt tokens are waiting",
                                  queue_requests_.load(), queue_tokens_.load()));
  }
  auto request = std::make_shared<Request>();
  request->codec = options_.codec;
  if (options_.auto_theta) request->codec.theta = kv::auto_theta(tokens);
  if (spec.kv.codec) request->codec.codec = *spec.kv.codec;
  if (spec.kv.profile) request->codec.profile = *spec.kv.profile;
  if (spec.kv.theta) request->codec.theta = *spec.kv.theta;
  AKV_ASSIGN_OR_RETURN(request->plan, model::plan_state(*model_, tokens, request->codec));
  AKV_RETURN_IF_ERROR(validate(model::sampling_params(spec.sampling), model_->config().vocab));
  request->id = Id128::random().hex();
  request->spec = std::move(spec);
  request->arrived = SteadyClock::now();
  request->cancelled = std::make_shared<std::atomic<bool>>(false);
  return request;
}

std::optional<api::GenerationError> Dispatcher::submit(api::GenerationRequest spec,
                                                       std::shared_ptr<api::GenerationSink> sink,
                                                       Handle* handle) {
  auto made = make_request(std::move(spec));
  if (!made.ok()) {
    return api::GenerationError{made.error(), retry_after_ms(made.error()), "queued"};
  }
  RequestPtr request = std::move(*made);
  request->handle = next_handle_++;
  request->sink = std::move(sink);
  *handle = request->handle;
  {
    std::lock_guard lock(cancel_mutex_);
    cancel_flags_.emplace(request->handle, request->cancelled);
  }
  ++open_requests_;
  ++queue_requests_;
  queue_tokens_ += request->spec.prompt_ids.size();
  if (!control_.post([this, request] { start(request); })) {
    left_queue(*request);
    --open_requests_;
    return api::GenerationError{make_error(Code::kUnavailable, "the node is stopping"),
                                kRetryAfterMs, "queued"};
  }
  return std::nullopt;
}

void Dispatcher::start(const RequestPtr& request) {
  requests_.emplace(request->handle, request);
  handles_.emplace(request->id, request->handle);
  if (*request->cancelled) return forget(*request, "cancelled");
  if (!request->plan.reachable) probe_.theta_unreachable();
  begin_attempt(*request);
}

// Each attempt opens a session on some engine, then has the state sent there: from an outbox that
// holds it, else by a prefill.
void Dispatcher::begin_attempt(Request& request) {
  ++request.attempt;
  request.landed = false;
  request.sent = false;
  if (request.wants_state()) return open_engine(request);
  send_prefill(request);
}

void Dispatcher::open_engine(Request& request) {
  Peer* engine = peers_.pick(Role::kDecode, request.attempt > 1 ? request.engine : ~net::PeerId{0});
  if (engine == nullptr) {
    return retry(request, make_error(Code::kUnavailable, "no decode peer is ready"), "queued");
  }
  request.engine = engine->id;
  request.has_engine = true;
  request.stage = Request::Stage::kOpening;
  engine->outstanding_tokens += request.spec.prompt_ids.size();
  proto::Open open;
  open.ref = request.ref();
  open.request_id = request.spec.request_id;
  open.token_ids = request.spec.prompt_ids;
  open.sampling = request.spec.sampling;
  open.max_tokens = request.spec.max_tokens;
  open.codec = request.codec;
  open.deadline_ms = request.remaining_ms();
  if (!tell_engine(request.engine, std::move(open))) {
    retry(request, make_error(Code::kUnavailable, "the decode peer does not take messages"),
          "queued");
  }
}

void Dispatcher::send_prefill(Request& request) {
  Peer* peer =
      peers_.pick(Role::kPrefill, request.prefills > 0 ? request.prefill : ~net::PeerId{0});
  if (peer == nullptr) {
    return retry(request, make_error(Code::kUnavailable, "no prefill peer is ready"), "queued");
  }
  ++request.prefills;
  request.prefill = peer->id;
  request.has_prefill = true;
  request.prefilling = true;
  request.prefill_attempt = request.attempt;
  request.stage = Request::Stage::kPrefill;
  peer->outstanding_tokens += request.spec.prompt_ids.size();
  proto::Prefill prefill;
  prefill.ref = request.ref();
  prefill.request_id = request.spec.request_id;
  prefill.token_ids = request.spec.prompt_ids;
  prefill.sampling = request.spec.sampling;
  prefill.max_tokens = request.spec.max_tokens;
  prefill.codec = request.codec;
  if (request.wants_state()) {
    prefill.landing = request.opened.landing;
    prefill.state_bytes = request.opened.state_bytes;
    prefill.plan_hash = request.opened.plan_hash;
  }
  prefill.deadline_ms = request.remaining_ms();
  if (!tell_prefill(request.prefill, std::move(prefill))) {
    retry(request, make_error(Code::kUnavailable, "the prefill peer does not take messages"),
          "queued");
  }
}

void Dispatcher::send_resend(Request& request) {
  request.stage = Request::Stage::kPrefill;
  const proto::Resend resend{.ref = request.ref(),
                             .landing = request.opened.landing,
                             .deadline_ms = request.remaining_ms()};
  if (!tell_prefill(request.prefill, resend)) {
    release_prefill(request, "unreachable");
    send_prefill(request);
  }
}

// Another attempt after a short wait, or the end if there were too many.
void Dispatcher::retry(Request& request, const Error& error, const char* phase) {
  release_engine(request, "retry");
  if (request.attempt >= options_.max_attempts || request.remaining_ms() <= 0) {
    // A transfer that ends because the prefill failed is told by both; the reason is the prefill's.
    const bool echo = error.code == Code::kCancelled || error.code == Code::kNotFound;
    if (echo && request.prefill_error) return fail(request, *request.prefill_error, "prefill");
    return fail(request, error, phase);
  }
  log_.request(request.spec.request_id)
      .warn("attempt failed", {{"attempt", request.attempt},
                               {"phase", phase},
                               {"code", code_name(error.code)},
                               {"error", error.message}});
  request.stage = Request::Stage::kWaiting;
  // A client that has tokens already is worth waiting for a node that comes back; others are told
  // soon, and may ask again.
  const uint32_t waits = std::min<uint32_t>(request.attempt - 1, kMaxWaitShift);
  const int64_t wait_ms =
      options_.retry_ms * (request.output.empty() ? waits : (int64_t{1} << waits) - 1);
  control_.call_after(wait_ms, [this, handle = request.handle, attempt = request.attempt] {
    const auto at = requests_.find(handle);
    if (at == requests_.end() || at->second->attempt != attempt) return;
    if (at->second->stage == Request::Stage::kWaiting) begin_attempt(*at->second);
  });
}

// Nothing of the request is held by the engine any more.
void Dispatcher::engine_over(Request& request) {
  request.has_engine = false;
  if (Peer* peer = peers_.find(Role::kDecode, request.engine)) {
    peer->done(request.spec.prompt_ids.size());
  }
}

// The prefill peer has no more work with the prompt; it may still hold its state.
void Dispatcher::prefill_over(Request& request) {
  if (!std::exchange(request.prefilling, false)) return;
  if (Peer* peer = peers_.find(Role::kPrefill, request.prefill)) {
    peer->done(request.spec.prompt_ids.size());
  }
}

void Dispatcher::release_engine(Request& request, const char* reason) {
  if (!request.has_engine) return;
  engine_over(request);
  tell_engine(request.engine, proto::Close{.ref = request.ref(), .reason = reason});
}

void Dispatcher::release_prefill(Request& request, const char* reason) {
  if (!request.has_prefill) return;
  request.has_prefill = false;
  prefill_over(request);
  tell_prefill(request.prefill, proto::Cancel{.ref = request.ref(), .reason = reason});
}

void Dispatcher::finish(Handle handle) {
  control_.post([this, handle] {
    const auto at = requests_.find(handle);
    if (at != requests_.end()) complete(*at->second, "stop");
  });
}

void Dispatcher::cancel(Handle handle, std::string_view reason) {
  {
    std::lock_guard lock(cancel_mutex_);
    const auto flag = cancel_flags_.find(handle);
    if (flag == cancel_flags_.end()) return;
    *flag->second = true;
  }
  control_.post([this, handle, why = std::string(reason)] {
    const auto at = requests_.find(handle);
    if (at != requests_.end()) forget(*at->second, why.c_str());
  });
}

void Dispatcher::deliver(Request& request, std::span<const proto::TokenOut> tokens) {
  for (const proto::TokenOut& token : tokens) request.output.push_back(token.id);
  if (!*request.cancelled) request.sink->on_tokens(tokens);
}

// The output is complete. The report of the transfer may still be on its way.
void Dispatcher::complete(Request& request, const char* finish_reason) {
  if (request.stage == Request::Stage::kEnding) return;
  request.finish_reason = finish_reason;
  request.stage = Request::Stage::kEnding;
  if (request.sent || !request.landed) return conclude(request);
  control_.call_after(kReportWaitMs, [this, handle = request.handle] {
    const auto at = requests_.find(handle);
    if (at != requests_.end()) conclude(*at->second);
  });
}

void Dispatcher::conclude(Request& request) {
  api::GenerationResult result;
  result.finish_reason = request.finish_reason;
  result.completion_tokens = static_cast<int64_t>(request.output.size());
  result.kv = request.report;
  result.kv.codec = request.plan.codec == kv::Codec::kNone ? "none" : "anchorkv";
  result.kv.profile = request.codec.profile;
  result.kv.theta = std::min(request.plan.theta, 1.0);  // a dense state's header is no compression
  result.kv.theta_requested = request.codec.theta;
  result.kv.prompt_tokens = static_cast<int64_t>(request.spec.prompt_ids.size());
  result.kv.dense_bytes = request.plan.dense_bytes;
  result.kv.state_bytes = request.plan.total_bytes;
  const auto sink = request.sink;
  const auto cancelled = request.cancelled;
  forget(request, "ok");
  if (!*cancelled) sink->on_done(result);
}

void Dispatcher::fail(Request& request, const Error& error, const char* phase) {
  const auto sink = request.sink;
  const auto cancelled = request.cancelled;
  // Peers see the request's own deadline pass in their part of the work, and call it by that.
  const bool late = error.code == Code::kDeadlineExceeded &&
                    SteadyClock::now() + kLateSlack > request.spec.deadline;
  const api::GenerationError failure{late ? make_error(error.code, kTimedOut) : error,
                                     retry_after_ms(error), phase};
  forget(request, phase);
  if (!*cancelled) sink->on_error(failure);
}

void Dispatcher::abandon() {
  draining_ = true;
  control_.post([this] {
    std::vector<RequestPtr> open;
    for (const auto& [handle, request] : requests_) open.push_back(request);
    for (const RequestPtr& request : open) {
      cut_short(*request, make_error(Code::kUnavailable, "the server stops now; ask another one"),
                "stop");
    }
  });
}

// An output that is complete and waits only for the report of its transfer is an answer.
void Dispatcher::cut_short(Request& request, const Error& error, const char* phase) {
  if (request.stage == Request::Stage::kEnding) return conclude(request);
  fail(request, error, phase);
}

void Dispatcher::left_queue(const Request& request) {
  --queue_requests_;
  queue_tokens_ -= request.spec.prompt_ids.size();
}

// Frees everything the request holds anywhere.
void Dispatcher::forget(Request& request, const char* outcome) {
  release_engine(request, outcome);
  release_prefill(request, outcome);
  if (request.first_token_ms < 0) left_queue(request);
  const Handle handle = request.handle;
  log_.request(request.spec.request_id)
      .info("request ended", {{"attempt", request.attempt},
                              {"prompt_tokens", request.spec.prompt_ids.size()},
                              {"output_tokens", request.output.size()},
                              {"state_bytes", request.wants_state() ? request.plan.total_bytes : 0},
                              {"queue_ms", request.queue_ms},
                              {"prefill_ms", request.report.prefill_ms},
                              {"compress_ms", request.report.compress_ms},
                              {"transfer_ms", request.report.transfer_ms},
                              {"first_token_ms", request.first_token_ms},
                              {"total_ms", ms_since(request.arrived)},
                              {"outcome", outcome}});
  {
    std::lock_guard lock(cancel_mutex_);
    cancel_flags_.erase(handle);
  }
  handles_.erase(request.id);
  requests_.erase(handle);
  --open_requests_;
}

void Dispatcher::tick() {
  std::vector<RequestPtr> late;
  const TimePoint now = SteadyClock::now();
  for (const auto& [handle, request] : requests_) {
    if (now > request->spec.deadline) late.push_back(request);
  }
  for (const RequestPtr& request : late) {
    cut_short(*request, make_error(Code::kDeadlineExceeded, kTimedOut),
              request->output.empty() ? "prefill" : "decode");
  }
}

}  // namespace akv::decode
