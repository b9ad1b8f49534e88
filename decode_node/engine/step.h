// One decode step: a single batched forward over the new tokens of all live sessions, on whichever
// device holds the weights, the landed states and the suffix pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "common/base/result.h"
#include "common/kv/plan.h"
#include "common/model/sampler.h"
#include "decode_node/cache/landing_memory.h"
#include "decode_node/cache/page_memory.h"
#include "decode_node/cache/suffix.h"

namespace akv::decode {

// A landed prompt as its engine reads it. Engine thread only; it must not outlive the engine.
class PromptState {
 public:
  virtual ~PromptState() = default;
};

// A landed state: bytes that were verified, and what keeps them alive.
struct LandedState {
  std::span<const std::byte> bytes;
  const kv::StatePlan* plan = nullptr;
  std::shared_ptr<const void> owner;  // of bytes and plan; null where the caller outlives the state
  // Of begin_landing(), where the state landed in the engine's own memory.
  LandingMemory* landing = nullptr;
};

// How a session's next token is drawn.
struct Draw {
  const model::SamplingParams* params = nullptr;
  const model::SamplerState* state = nullptr;
  uint64_t position = 0;  // prompt tokens + tokens generated before
};

// The new tokens of one session in this step.
struct StepEntry {
  const PromptState* prompt = nullptr;
  Suffix* suffix = nullptr;         // room for suffix->tokens() + tokens.size() was made
  std::span<const int32_t> tokens;  // at positions position, position + 1, ...
  int64_t position = 0;
  int window_drop = 0;  // newest prompt entries left out (the last prompt token run again)
  enum class Want { kNone, kLast, kAll } want = Want::kLast;
  // With kLast: an engine that can draw this way where the logits are does, and fills `sampled` in
  // place of `logits`.
  std::optional<Draw> draw;
  // Out: logits of the last token or of all, [1 or tokens.size(), vocab], null if none. The caller
  // may overwrite them; valid until the next forward().
  float* logits = nullptr;
  std::optional<model::Sampled> sampled;
};

// Used by one thread (the engine's). A session's results do not depend on the rest of the batch.
class StepEngine {
 public:
  virtual ~StepEngine() = default;

  // Where the pages of suffixes come from; lives as long as the engine.
  virtual PageMemory& pages() = 0;

  // Memory of the engine's own for a state that is about to land in `host` (plan.total_bytes); null
  // where states are read where they land. kResourceExhausted: its memory is short.
  virtual Result<std::shared_ptr<LandingMemory>> begin_landing(const kv::StatePlan& plan,
                                                               std::span<std::byte> host) {
    (void)plan, (void)host;
    return std::shared_ptr<LandingMemory>{};
  }
  // [thread-safe] Brings all that landings were asked for to its end; what is asked later happens
  // within the calls. Before whatever their callbacks refer to goes.
  virtual void finish_landings() {}

  // Makes a verified state readable for forward(). An engine with memory of its own has the bytes
  // there by then (begin_landing) or copies them, and lets the owner go. kResourceExhausted: its
  // memory is short.
  virtual Result<std::unique_ptr<PromptState>> adopt(const LandedState& landed) = 0;

  // True where states are copied out of host memory: then they can be parked there and brought
  // back.
  virtual bool has_own_memory() const { return false; }
  // Moves the state's bytes to host memory and frees its own. kResourceExhausted: there is no host
  // memory; nothing has changed then. REQUIRES: has_own_memory().
  virtual Status park(PromptState& state);
  // Brings a parked state back. kResourceExhausted: the engine's memory is short; it stays parked.
  virtual Status restore(PromptState& state);

  // Runs all entries through the model; their suffixes grow by their tokens. kInvalidArgument when
  // a token id is outside the vocabulary: no suffix has grown then.
  virtual Status forward(std::span<StepEntry> entries) = 0;

  // [thread-safe] Not ok once the device is lost: nothing can be computed any more.
  virtual Status health() const { return {}; }
};

}  // namespace akv::decode
