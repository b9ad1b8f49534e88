// One request in a decode engine, from its OPEN to its end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "common/base/clock.h"
#include "common/model/sampler.h"
#include "decode_node/cache/suffix.h"
#include "decode_node/engine/step.h"
#include "decode_node/receive/incoming_state.h"
#include "proto/control.h"

namespace akv::decode {

// Who asked (a peer id, or 0 for the front door in this process), and its id of the request.
struct SessionKey {
  uint64_t owner = 0;
  std::string id;
  bool operator<(const SessionKey& other) const {
    return std::tie(owner, id) < std::tie(other.owner, other.id);
  }
};

enum class SessionPhase {
  kQueued,   // waits for bytes; holds nothing
  kLanding,  // bytes reserved; the state is on its way
  kLanded,   // state verified; waits for START
  kLive,     // in the batch of every step
  kParked,   // state held, perhaps away; suffix pages given up; waits to be replayed
};

// Engine thread only.
struct Session {
  Session(SessionKey key_in, proto::Open spec_in, kv::StatePlan plan_in, const PageShape& page,
          BytePool* pool, PageMemory& memory)
      : key(std::move(key_in)),
        spec(std::move(spec_in)),
        plan(std::move(plan_in)),
        suffix(page, pool, memory) {}

  const SessionKey key;
  const proto::Open spec;
  const kv::StatePlan plan;
  TimePoint arrived;
  TimePoint deadline;
  TimePoint landed_at;
  TimePoint first_step_at;
  double landing_ms = 0;
  uint32_t device_records = 0;  // of the state: came from device memory to device memory
  uint64_t order = 0;           // of admission: the lowest is the oldest

  SessionPhase phase = SessionPhase::kQueued;
  std::shared_ptr<IncomingState> incoming;  // from kLanding on; until adopted by own memory
  bool away = false;                        // the state waits in host memory (has_own_memory)
  std::unique_ptr<PromptState> prompt;      // of incoming, once verified

  // Tokens of the output so far, those of START included. The first suffix.tokens() of them have
  // been through the model; the rest run in the next step (a replay when there are several).
  std::vector<int32_t> output;
  bool started = false;
  Suffix suffix;
  model::SamplingParams sampling;
  std::optional<model::SamplerState> sampler;
  int parked_times = 0;

  int64_t pending() const { return static_cast<int64_t>(output.size()) - suffix.tokens(); }
  int64_t position() const { return plan.tokens + suffix.tokens(); }
};

}  // namespace akv::decode
