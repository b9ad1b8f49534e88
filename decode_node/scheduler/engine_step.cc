// Batching, parking, steps and sampling of the decode engine.
#include <algorithm>

#include "common/model/wire.h"
#include "decode_node/scheduler/engine.h"

namespace akv::decode {
namespace {

constexpr int64_t kReplayRows = 64;  // tokens of one session's replay in one step

// Of the token that a session draws next.
uint64_t draw_position(const Session& session) {
  return static_cast<uint64_t>(session.plan.tokens) + session.output.size();
}

}  // namespace

std::vector<Session*> Engine::live_oldest_first() {
  std::vector<Session*> live;
  for (auto& [key, session] : sessions_) {
    if (session->phase == SessionPhase::kLive) live.push_back(session.get());
  }
  std::sort(live.begin(), live.end(),
            [](const Session* a, const Session* b) { return a->order < b->order; });
  return live;
}

void Engine::park(Session& session) {
  session.suffix.clear();
  session.phase = SessionPhase::kParked;
  ++session.parked_times;
  log_.request(session.spec.request_id)
      .info("session parked", {{"output_tokens", session.output.size()}});
}

// The oldest parked session comes back when its whole output fits again, one at a time, so that it
// is not parked at once a second time. Younger live ones make room for it, so that the oldest
// always goes on.
void Engine::unpark() {
  Session* oldest = nullptr;
  for (auto& [key, session] : sessions_) {
    if (session->phase != SessionPhase::kParked) continue;
    if (oldest == nullptr || session->order < oldest->order) oldest = session.get();
  }
  if (oldest == nullptr) return;
  const auto tokens = static_cast<int64_t>(oldest->output.size()) + 1;
  while ((oldest->away && !bring_back(*oldest)) || !oldest->suffix.grow(tokens)) {
    if (!oldest->away && park_younger(*oldest, tokens)) continue;
    if (any_in(SessionPhase::kLive) || any_in(SessionPhase::kLanded) || room_is_to_come()) return;
    // Nothing but states of parked sessions holds the rest of the memory.
    Session* youngest = youngest_idle();
    if (youngest == nullptr || youngest == oldest) return fail_out_of_memory(*oldest);
    shed(*youngest);
  }
  oldest->phase = SessionPhase::kLive;
}

// Parks one live session younger than `oldest`, if all of those hold enough for its `tokens`.
bool Engine::park_younger(const Session& oldest, int64_t tokens) {
  uint64_t bytes = pool_.free_bytes();
  Session* youngest = nullptr;
  for (auto& [key, session] : sessions_) {
    if (session->phase != SessionPhase::kLive || session->order < oldest.order) continue;
    bytes += session->suffix.charged_bytes();
    if (youngest == nullptr || session->order > youngest->order) youngest = session.get();
  }
  if (youngest == nullptr || bytes < oldest.suffix.bytes_to_grow(tokens)) return false;
  park(*youngest);
  return true;
}

// Grows a session's suffix, parking younger live ones for it. False: it was parked itself, or
// nothing could be freed.
bool Engine::make_room(std::vector<Session*>& batch, Session& session, int64_t tokens) {
  while (!session.suffix.grow(tokens)) {
    Session* youngest = batch.back();
    if (youngest != &session) {
      park(*youngest);
      batch.pop_back();
      continue;
    }
    // Alone, and still no room: states of idle sessions hold the rest. The youngest of them gives
    // its state up; its front door has it sent again when there is room, and no token is lost.
    Session* idle = youngest_idle();
    if (batch.size() == 1 && idle != nullptr && idle->order > session.order) {
      shed(*idle);
      continue;
    }
    const bool others = batch.size() > 1 || idle != nullptr || room_is_to_come();
    batch.pop_back();
    if (others) {
      park(session);
    } else {
      fail_out_of_memory(session);
    }
    return false;
  }
  return true;
}

// States on their way in hold memory, too; they land, and take their turns.
bool Engine::room_is_to_come() const { return any_in(SessionPhase::kLanding) || !closing_.empty(); }

// Of those that hold a state and are not in the batch; null if there is none.
Session* Engine::youngest_idle() const {
  Session* youngest = nullptr;
  for (const auto& [key, session] : sessions_) {
    const bool idle =
        session->phase == SessionPhase::kParked || session->phase == SessionPhase::kLanded;
    if (!idle || session->away) continue;
    if (youngest == nullptr || session->order > youngest->order) youngest = session.get();
  }
  return youngest;
}

void Engine::shed(Session& session) {
  if (send_away(session)) return;
  fail(session,
       make_error(Code::kUnavailable,
                  "the node gave this session's state up for an older one; it can be sent again"),
       "decode");
}

void Engine::fail_out_of_memory(Session& session) {
  fail(session,
       make_error(Code::kResourceExhausted,
                  "the state memory cannot hold the output of this request"),
       "decode");
}

// Parks the state in host memory, where its engine has memory of its own and there is room.
bool Engine::send_away(Session& session) {
  const uint64_t bytes = session.plan.total_bytes;
  if (!step_->has_own_memory() || !host_pool_.reserve_page(bytes)) return false;
  if (!step_->park(*session.prompt).ok()) {
    host_pool_.release_pages(bytes);
    return false;
  }
  session.away = true;
  resident_bytes_ -= bytes;
  pool_.release_state(bytes);
  log_.request(session.spec.request_id).info("state sent away", {{"state_bytes", bytes}});
  return true;
}

bool Engine::bring_back(Session& session) {
  const uint64_t bytes = session.plan.total_bytes;
  if (!pool_.reserve_state(bytes)) return false;
  if (!step_->restore(*session.prompt).ok()) {
    pool_.release_state(bytes);
    return false;
  }
  session.away = false;
  resident_bytes_ += bytes;
  host_pool_.release_pages(bytes);
  log_.request(session.spec.request_id).info("state brought back", {{"state_bytes", bytes}});
  return true;
}

// Every session ends when the device is lost; the front doors go on elsewhere from the outboxes.
void Engine::end_if_lost() {
  const Status health = step_->health();
  if (health.ok() || lost_) return;
  lost_ = true;
  log_.error("device lost", health.error());
  std::vector<Session*> all;
  for (auto& [key, session] : sessions_) all.push_back(session.get());
  for (Session* session : all) fail(*session, health.error(), "decode");
}

void Engine::step() {
  unpark();
  std::vector<Session*> batch = live_oldest_first();
  if (batch.empty()) return;
  std::vector<StepEntry> entries;
  int64_t rows = 0;
  for (size_t i = 0; i < batch.size() && rows < options_.max_step_rows; ++i) {
    Session& session = *batch[i];
    const int64_t count = std::min({session.pending(), kReplayRows, options_.max_step_rows - rows});
    if (!make_room(batch, session, session.suffix.tokens() + count)) break;
    StepEntry entry;
    entry.prompt = session.prompt.get();
    entry.suffix = &session.suffix;
    entry.tokens =
        std::span(session.output)
            .subspan(static_cast<size_t>(session.suffix.tokens()), static_cast<size_t>(count));
    entry.position = session.position();
    entry.want = count == session.pending() ? StepEntry::Want::kLast : StepEntry::Want::kNone;
    entry.draw = Draw{&session.sampling, &*session.sampler, draw_position(session)};
    entries.push_back(entry);
    rows += count;
  }
  batch.resize(std::min(batch.size(), entries.size()));
  entries.resize(batch.size());
  if (batch.empty()) return;
  probe_.stepped(batch.size());
  const Status ran = step_->forward(entries);
  if (!ran.ok()) return step_failed(batch, ran.error());
  sample_all(batch, entries);
}

// Out of the device's memory, the youngest goes and the others try again without it; nothing has
// grown. Any other error is of them all.
void Engine::step_failed(std::vector<Session*>& batch, const Error& error) {
  if (error.code == Code::kResourceExhausted) {
    const bool alone = batch.size() == 1;
    return fail(*batch.back(), alone ? error : make_error(Code::kUnavailable, error.message),
                "decode");
  }
  for (Session* session : batch) fail(*session, error, "decode");
}

// Draws for all sessions side by side; each draw depends on its own logits and counter alone.
void Engine::sample_all(std::vector<Session*>& batch, std::vector<StepEntry>& entries) {
  std::vector<Result<model::Sampled>> drawn(batch.size(), model::Sampled{});
  const auto vocab = static_cast<size_t>(model_->config().vocab);
  workers_->run(static_cast<int>(batch.size()), [&](int task, int worker) {
    const auto i = static_cast<size_t>(task);
    if (entries[i].logits == nullptr) return;
    Session& session = *batch[i];
    drawn[i] =
        model::sample(std::span(entries[i].logits, vocab), session.sampling, *session.sampler,
                      draw_position(session), sampler_scratch_[static_cast<size_t>(worker)]);
  });
  for (size_t i = 0; i < batch.size(); ++i) {
    if (entries[i].sampled) drawn[i] = *entries[i].sampled;
    if (entries[i].sampled || entries[i].logits != nullptr) take_token(*batch[i], drawn[i]);
  }
}

void Engine::take_token(Session& session, const Result<model::Sampled>& sampled) {
  if (!sampled.ok()) return fail(session, sampled.error(), "decode");
  const int32_t token = sampled->token;
  const auto index = static_cast<int32_t>(session.output.size());
  const auto stop = session.sampler->stops_at(token);
  session.output.push_back(token);
  session.sampler->add(token);
  if (stop != model::SamplerState::Stop::kNone) return finish(session, "stop");
  proto::Tokens tokens{.ref = session.spec.ref, .index = index, .tokens = {}};
  tokens.tokens.push_back(model::token_out(*sampled));
  emit_(session.key.owner, std::move(tokens));
  const bool context_full = session.plan.tokens + static_cast<int64_t>(session.output.size()) >=
                            model_->config().context_length;
  if (index + 1 >= session.spec.max_tokens || context_full) finish(session, "length");
}

void Engine::finish(Session& session, const char* reason) {
  emit_(session.key.owner,
        proto::Done{.ref = session.spec.ref,
                    .finish_reason = reason,
                    .completion_tokens = static_cast<int32_t>(session.output.size())});
  end(session, reason);
}

}  // namespace akv::decode
