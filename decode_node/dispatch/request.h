// One generation as the front door follows it over engines, prefill peers and attempts.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/kv/plan.h"
#include "decode_node/api/service.h"
#include "decode_node/dispatch/peers.h"
#include "proto/control.h"

namespace akv::decode {

struct Request {
  // Constant after submission.
  api::GenerationService::Handle handle = 0;
  std::string id;  // unique, on the wire
  api::GenerationRequest spec;
  std::shared_ptr<api::GenerationSink> sink;
  std::shared_ptr<std::atomic<bool>> cancelled;  // set by cancel(): the sink is not called any more
  proto::CodecChoice codec;
  kv::StatePlan plan;
  TimePoint arrived;

  // Control thread only.
  enum class Stage {
    kWaiting,   // for a retry
    kOpening,   // OPEN sent, memory not reserved yet
    kPrefill,   // reserved (or no state wanted); waits for the first token or a resent state
    kDecoding,  // the engine has started or will as soon as the state has landed
    kEnding,    // output complete; waits a moment for the report of the transfer
  };
  Stage stage = Stage::kWaiting;
  uint32_t attempt = 0;
  net::PeerId engine = kLocalPeer;
  net::PeerId prefill = kLocalPeer;
  bool has_engine = false;             // OPEN was sent to `engine` in this attempt
  bool has_prefill = false;            // `prefill` works on it or holds its state
  std::optional<Error> prefill_error;  // of the last attempt whose prefill failed
  bool prefilling = false;             // counted in the peer's outstanding tokens
  bool landed = false;                 // in this attempt
  bool sent = false;
  int prefills = 0;
  uint32_t prefill_attempt = 0;  // the attempt of the last PREFILL
  std::vector<int32_t> output;   // given to the client
  std::string finish_reason;     // of kEnding
  proto::Opened opened;
  double queue_ms = 0;
  double first_token_ms = -1;
  proto::KvReport report;

  bool wants_state() const { return spec.max_tokens > 1; }
  proto::RequestRef ref() const { return {id, attempt}; }
  int64_t remaining_ms() const {
    return static_cast<int64_t>(ms_between(SteadyClock::now(), spec.deadline));
  }
};

}  // namespace akv::decode
