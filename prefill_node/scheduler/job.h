// One prompt in the prefill node, from its PREFILL message to the end of its transfer.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/kv/plan.h"
#include "prefill_node/engine/prompt_engine.h"
#include "prefill_node/outbox/outbox.h"
#include "proto/control.h"

namespace akv::prefill {

// Shared by the engine thread, which works on it, and the control thread, which may cancel it.
struct Job {
  // Constant after submission.
  RequestKey key;
  proto::Prefill spec;
  kv::StatePlan plan;  // meaningless when spec.landing is absent: no state is built then
  TimePoint arrived;
  TimePoint deadline;

  std::atomic<bool> cancelled{false};

  // Engine thread only.
  TimePoint started;
  std::unique_ptr<Prompt> prompt;        // null while queued
  Status record_status;                  // why an earlier layer's record cannot be had
  std::shared_ptr<OutgoingState> state;  // null when no state is wanted

  bool wants_state() const { return spec.landing.has_value(); }
  int64_t tokens() const { return static_cast<int64_t>(spec.token_ids.size()); }
};

}  // namespace akv::prefill
