// Thread, commands and admission; steps are in engine_step.cc.
#include "decode_node/scheduler/engine.h"

#include <pthread.h>

#include <algorithm>

#include <fmt/format.h>

#include "common/base/check.h"
#include "common/base/units.h"
#include "common/model/wire.h"

namespace akv::decode {
namespace {

proto::Failed failed(const proto::RequestRef& ref, const Error& error, const char* phase) {
  return {.ref = ref,
          .code = static_cast<uint16_t>(error.code),
          .phase = phase,
          .message = error.message,
          .param = error.param};
}

}  // namespace

Engine::Engine(std::shared_ptr<const model::Model> model, std::vector<int32_t> end_tokens,
               EngineParts parts, const EngineOptions& options, transport::Receiver& receiver,
               const Probe& probe, Logger log, EngineEmitFn emit)
    : model_(std::move(model)),
      end_tokens_(std::move(end_tokens)),
      options_(options),
      receiver_(receiver),
      probe_(probe),
      log_(std::move(log)),
      emit_(std::move(emit)),
      page_(model_->config()),
      workers_(std::move(parts.workers)),
      step_(std::move(parts.step)),
      pool_(options.max_state_bytes, options.page_share),
      host_pool_(options.max_host_state_bytes, 0),
      sampler_scratch_(static_cast<size_t>(workers_->workers())) {
  thread_ = std::thread([this] { loop(); });
  pthread_setname_np(thread_.native_handle(), "decode-engine");
}

// The receiver has ended its landings by now: what they left to be done refers to this engine.
Engine::~Engine() {
  stop();
  step_->finish_landings();
}

void Engine::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Engine::handle(uint64_t owner, EngineCommand&& command) {
  if (const auto* open = std::get_if<proto::Open>(&command)) {
    const Status taken = check_open(*open);
    if (!taken.ok()) return emit_(owner, failed(open->ref, taken.error(), "queued"));
  }
  Input input;
  input.owner = owner;
  std::visit([&](auto&& m) { input.what = std::forward<decltype(m)>(m); }, std::move(command));
  push(std::move(input));
}

// What is refused before it waits for the engine's thread, so that what waits is bounded.
Status Engine::check_open(const proto::Open& open) {
  const int64_t context = model_->config().context_length;
  const auto tokens = static_cast<int64_t>(open.token_ids.size());
  if (tokens < 1 || tokens > context) {
    return make_error(
        Code::kContextLength,
        fmt::format("the prompt has {} tokens, the model's context is {}", tokens, context),
        "prompt");
  }
  std::lock_guard lock(mutex_);
  if (inputs_.size() < 2 * options_.max_queue_requests) return {};
  return make_error(Code::kResourceExhausted,
                    fmt::format("{} messages wait for the decode engine", inputs_.size()));
}

void Engine::owner_lost(uint64_t owner) { push(Input{owner, OwnerLost{}}); }

void Engine::push(Input&& input) {
  {
    std::lock_guard lock(mutex_);
    inputs_.push_back(std::move(input));
  }
  wake_.notify_all();
}

void Engine::loop() {
  while (wait_for_work()) {
    std::deque<Input> inputs;
    {
      std::lock_guard lock(mutex_);
      inputs.swap(inputs_);
    }
    for (Input& input : inputs) apply(std::move(input));
    expire();
    admit();
    step();
    end_if_lost();
    publish_levels();
  }
  for (auto& [key, session] : sessions_) {
    if (session->phase == SessionPhase::kLanding) session->incoming->cancel(receiver_);
  }
}

bool Engine::any_in(SessionPhase phase) const {
  return std::any_of(sessions_.begin(), sessions_.end(),
                     [phase](const auto& entry) { return entry.second->phase == phase; });
}

// Returns at once while a session is live; else on an input, and often enough for deadlines and for
// parked sessions, which what just ended may have made room for.
bool Engine::wait_for_work() {
  if (!any_in(SessionPhase::kLive)) {
    const int wait_ms = sessions_.empty() ? 1000 : any_in(SessionPhase::kParked) ? 5 : 50;
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, std::chrono::milliseconds(wait_ms),
                   [&] { return stop_ || !inputs_.empty(); });
    return !stop_;
  }
  std::lock_guard lock(mutex_);
  return !stop_;
}

void Engine::apply(Input&& input) {
  if (auto* open = std::get_if<proto::Open>(&input.what)) on_open(input.owner, std::move(*open));
  if (auto* start = std::get_if<proto::Start>(&input.what)) on_start(input.owner, *start);
  if (auto* close = std::get_if<proto::Close>(&input.what)) on_close(input.owner, *close);
  if (auto* ended = std::get_if<LandingEnded>(&input.what)) on_landing_ended(*ended);
  if (std::holds_alternative<OwnerLost>(input.what)) on_owner_lost(input.owner);
}

// A newer attempt of the same request takes the older one's place.
void Engine::on_open(uint64_t owner, proto::Open&& open) {
  const proto::RequestRef ref = open.ref;
  const auto old = sessions_.find(SessionKey{owner, ref.id});
  if (old != sessions_.end()) {
    if (old->second->spec.ref.attempt >= ref.attempt) return;
    end(*old->second, "replaced");
  }
  auto session = make_session(owner, std::move(open));
  if (!session.ok()) {
    emit_(owner, failed(ref, session.error(), "queued"));
    return;
  }
  queue_.push_back(session->get());
  const SessionKey key = (*session)->key;
  sessions_.emplace(key, std::move(*session));
}

Result<Engine::SessionPtr> Engine::make_session(uint64_t owner, proto::Open&& open) {
  if (draining_) return make_error(Code::kUnavailable, "the decode node is draining");
  AKV_RETURN_IF_ERROR(health());
  if (options_.max_sessions == 0) {
    return make_error(Code::kUnavailable, "the node decodes nothing (--max-sessions 0)");
  }
  if (queue_.size() >= options_.max_queue_requests) {
    return make_error(Code::kResourceExhausted,
                      fmt::format("{} requests wait for state memory", queue_.size()));
  }
  const auto& config = model_->config();
  const auto tokens = static_cast<int64_t>(open.token_ids.size());
  const auto sampling = model::sampling_params(open.sampling);
  AKV_RETURN_IF_ERROR(validate(sampling, config.vocab));
  AKV_ASSIGN_OR_RETURN(auto plan, model::plan_state(*model_, tokens, open.codec));
  uint64_t most = pool_.state_capacity();
  if (step_->has_own_memory()) most = std::min(most, host_pool_.capacity());
  if (!pool_.could_hold(plan.total_bytes, page_.bytes()) || plan.total_bytes > most) {
    return make_error(Code::kInvalidArgument,
                      fmt::format("the prompt's state takes {}, the node holds at most {}",
                                  format_bytes(plan.total_bytes), format_bytes(most)),
                      "prompt");
  }
  const TimePoint deadline = after_ms(open.deadline_ms);
  auto session = std::make_unique<Session>(SessionKey{owner, open.ref.id}, std::move(open),
                                           std::move(plan), page_, &pool_, step_->pages());
  session->arrived = SteadyClock::now();
  session->deadline = deadline;
  session->sampling = sampling;
  session->sampler.emplace(sampling, session->spec.token_ids, end_tokens_);
  return session;
}

void Engine::on_start(uint64_t owner, const proto::Start& start) {
  const auto at = sessions_.find(SessionKey{owner, start.ref.id});
  if (at == sessions_.end() || at->second->spec.ref.attempt != start.ref.attempt) return;
  Session& session = *at->second;
  if (session.started || start.tokens.empty()) return;
  const Status valid = check_start(session, start);
  if (!valid.ok()) return fail(session, valid.error(), "decode");
  session.started = true;
  session.output = start.tokens;
  for (const int32_t token : start.tokens) session.sampler->add(token);
  if (session.phase == SessionPhase::kLanded) go_live(session);
}

// Tokens index the embeddings and their positions the rotations: neither may reach beyond.
Status Engine::check_start(const Session& session, const proto::Start& start) const {
  const auto& config = model_->config();
  const auto count = static_cast<int64_t>(start.tokens.size());
  if (count >= session.spec.max_tokens || session.plan.tokens + count >= config.context_length) {
    return make_error(Code::kInvalidArgument,
                      fmt::format("START holds {} tokens and leaves none to draw", count));
  }
  const bool known = std::all_of(start.tokens.begin(), start.tokens.end(),
                                 [&](int32_t token) { return token >= 0 && token < config.vocab; });
  if (known) return {};
  return make_error(Code::kInvalidArgument, "START holds a token that the vocabulary lacks");
}

void Engine::on_close(uint64_t owner, const proto::Close& close) {
  const auto at = sessions_.find(SessionKey{owner, close.ref.id});
  if (at == sessions_.end() || at->second->spec.ref.attempt > close.ref.attempt) return;
  end(*at->second, "closed");
}

void Engine::on_owner_lost(uint64_t owner) {
  std::vector<Session*> lost;
  for (auto& [key, session] : sessions_) {
    if (key.owner == owner) lost.push_back(session.get());
  }
  for (Session* session : lost) end(*session, "owner_lost");
}

void Engine::on_landing_ended(const LandingEnded& ended) {
  const auto closing = closing_.find(ended.order);
  if (closing != closing_.end()) {
    const uint64_t bytes = closing->second->plan().total_bytes;
    pool_.release_state(bytes);
    if (step_->has_own_memory()) host_pool_.release_pages(bytes);
    closing_.erase(closing);
    return;
  }
  const auto at = sessions_.find(ended.key);
  AKV_CHECK(at != sessions_.end() && at->second->order == ended.order);
  Session& session = *at->second;
  session.phase = SessionPhase::kLanded;
  session.landed_at = SteadyClock::now();
  session.landing_ms = ended.report.landing_ms;
  session.device_records = ended.report.device_records;
  resident_bytes_ += session.plan.total_bytes;
  if (!ended.report.status.ok()) {
    const Error& error = ended.report.status.error();
    if (error.code == Code::kDataLoss || error.code == Code::kMismatch) probe_.checksum_failed();
    return fail(session, error, "landing");
  }
  const Status adopted = adopt(session);
  if (!adopted.ok()) return fail(session, adopted.error(), "landing");
  emit_(session.key.owner, proto::Landed{.ref = session.spec.ref,
                                         .state_bytes = session.plan.total_bytes,
                                         .landing_ms = session.landing_ms});
  if (session.started) go_live(session);
}

// Hands the verified bytes to the step engine; one with memory of its own has them there.
Status Engine::adopt(Session& session) {
  AKV_ASSIGN_OR_RETURN(session.prompt,
                       step_->adopt({session.incoming->bytes(), &session.plan, session.incoming,
                                     session.incoming->landing()}));
  if (step_->has_own_memory()) {
    session.incoming.reset();
    release_host(session);
  }
  return {};
}

void Engine::go_live(Session& session) {
  session.phase = session.away ? SessionPhase::kParked : SessionPhase::kLive;
  session.first_step_at = SteadyClock::now();
}

void Engine::expire() {
  const TimePoint now = SteadyClock::now();
  std::vector<Session*> late;
  for (auto& [key, session] : sessions_) {
    const bool unclaimed =
        session->phase == SessionPhase::kLanded && !session->started &&
        ms_between(session->landed_at, now) > static_cast<double>(options_.lease_ms);
    if (now > session->deadline || unclaimed) late.push_back(session.get());
  }
  for (Session* session : late) {
    fail(*session, make_error(Code::kDeadlineExceeded, "the session's deadline or lease passed"),
         session->phase == SessionPhase::kQueued    ? "queued"
         : session->phase == SessionPhase::kLanding ? "landing"
                                                    : "decode");
  }
}

// First come, first served: a large state at the head is not overtaken for ever by small ones, and
// what is freed while sessions are parked goes to them.
void Engine::admit() {
  while (!queue_.empty() && !any_in(SessionPhase::kParked)) {
    const auto holding = sessions_.size() - queue_.size() + closing_.size();
    if (holding >= options_.max_sessions) return;
    Session& session = *queue_.front();
    if (!reserve_bytes(session)) return;
    session.suffix.adopt_reservation(1);
    queue_.pop_front();
    session.order = next_order_++;
    const Status reserved = reserve(session);
    if (!reserved.ok()) {
      pool_.release_state(session.plan.total_bytes);
      release_host(session);
      session.incoming.reset();
      fail(session, reserved.error(), "queued");
    }
  }
}

// The state's bytes and a page, and host memory to land in where that is another: all or nothing.
bool Engine::reserve_bytes(const Session& session) {
  const uint64_t bytes = session.plan.total_bytes;
  if (step_->has_own_memory() && !host_pool_.reserve_page(bytes)) return false;
  if (pool_.reserve_session(bytes, page_.bytes())) return true;
  release_host(session);
  return false;
}

void Engine::release_host(const Session& session) {
  if (step_->has_own_memory()) host_pool_.release_pages(session.plan.total_bytes);
}

Status Engine::reserve(Session& session) {
  AKV_ASSIGN_OR_RETURN(
      session.incoming,
      IncomingState::create(session.plan, model::state_identity(*model_, session.spec.token_ids)));
  AKV_ASSIGN_OR_RETURN(auto own, step_->begin_landing(session.plan, session.incoming->memory()));
  session.incoming->land_in(std::move(own));
  const auto done = [this, key = session.key, order = session.order](const LandingReport& report) {
    push(Input{key.owner, LandingEnded{key, order, report}});
  };
  AKV_ASSIGN_OR_RETURN(auto landing,
                       session.incoming->expect(receiver_, options_.advertise_state,
                                                session.spec.ref.attempt, session.deadline, done));
  session.phase = SessionPhase::kLanding;
  emit_(session.key.owner, proto::Opened{.ref = session.spec.ref,
                                         .landing = std::move(landing),
                                         .state_bytes = session.plan.total_bytes,
                                         .dense_bytes = session.plan.dense_bytes,
                                         .plan_hash = model::plan_hash(session.plan),
                                         .theta = session.plan.theta,
                                         .unreachable = !session.plan.reachable});
  return {};
}

void Engine::fail(Session& session, const Error& error, const char* phase) {
  emit_(session.key.owner, failed(session.spec.ref, error, phase));
  end(session, "failed");
}

// Frees everything of the session. A landing that may still be written to keeps its bytes charged
// until its terminal event.
void Engine::end(Session& session, const char* outcome) {
  log_end(session, outcome);
  if (session.phase == SessionPhase::kQueued) std::erase(queue_, &session);
  if (session.phase == SessionPhase::kLanding) {
    closing_.emplace(session.order, session.incoming);
    session.incoming->cancel(receiver_);
  } else if (session.away) {
    release_host(session);
  } else if (session.incoming || session.prompt) {
    // A state that failed its checks still lies where it landed.
    if (!session.prompt) release_host(session);
    resident_bytes_ -= session.plan.total_bytes;
    pool_.release_state(session.plan.total_bytes);
  }
  const SessionKey key = session.key;
  sessions_.erase(key);
}

void Engine::log_end(const Session& session, const char* outcome) const {
  const TimePoint now = SteadyClock::now();
  const bool live = session.first_step_at != TimePoint{};
  log_.request(session.spec.request_id)
      .info("session ended", {{"attempt", session.spec.ref.attempt},
                              {"prompt_tokens", session.plan.tokens},
                              {"output_tokens", session.output.size()},
                              {"state_bytes", session.plan.total_bytes},
                              {"landing_ms", session.landing_ms},
                              {"device_records", session.device_records},
                              {"decode_ms", live ? ms_between(session.first_step_at, now) : 0.0},
                              {"parked_times", session.parked_times},
                              {"total_ms", ms_between(session.arrived, now)},
                              {"outcome", outcome}});
}

void Engine::publish_levels() {
  sessions_count_ = sessions_.size();
  queued_count_ = queue_.size();
  uint64_t tokens = 0;
  for (const Session* session : queue_) tokens += static_cast<uint64_t>(session->plan.tokens);
  queued_tokens_ = tokens;
  uint64_t parked = 0;
  for (const auto& [key, session] : sessions_) parked += session->phase == SessionPhase::kParked;
  parked_count_ = parked;
}

proto::Load Engine::load() const {
  proto::Load load;
  load.queue_requests = queued_count_;
  load.queue_tokens = queued_tokens_;
  load.sessions = sessions_count_;
  load.resident_bytes = resident_bytes_;
  load.reserved_bytes = pool_.state_bytes() - std::min(pool_.state_bytes(), resident_bytes_.load());
  load.suffix_bytes = pool_.page_bytes();
  load.draining = draining_;
  load.ready = !draining_ && options_.max_sessions > 0 && health().ok();
  return load;
}

EngineLevels Engine::levels() const {
  const auto level = [this](uint64_t proto::Load::*field) {
    return [this, field] { return static_cast<double>(load().*field); };
  };
  return {.sessions = level(&proto::Load::sessions),
          .parked = [this] { return static_cast<double>(parked_count_.load()); },
          .resident_bytes = level(&proto::Load::resident_bytes),
          .reserved_bytes = level(&proto::Load::reserved_bytes),
          .suffix_bytes = level(&proto::Load::suffix_bytes),
          .max_sessions = [this] { return static_cast<double>(options_.max_sessions); },
          .max_state_bytes = [this] { return static_cast<double>(pool_.capacity()); },
          .used_share = [this] { return pool_.used_share(); }};
}

}  // namespace akv::decode
