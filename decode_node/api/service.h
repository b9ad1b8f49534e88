// What the front door needs of the node behind it: submit, finish, cancel, and facts. The HTTP side
// (this folder) owns text: templates, tokens to text, stop strings, JSON. The service owns tokens:
// admission, prefill peers, transfer, decoding.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "proto/api.h"
#include "proto/sampling.h"

namespace akv::model {
class Tokenizer;
class ChatTemplate;
}  // namespace akv::model

namespace akv::decode::api {

struct GenerationRequest {
  std::string request_id;  // x-request-id, for logs; choices of one request share it
  int choice = 0;
  std::vector<int32_t> prompt_ids;  // at least one
  proto::Sampling sampling;         // seed is set
  int32_t max_tokens = 1;           // >= 1, prompt + max_tokens <= context
  proto::KvOptions kv;
  TimePoint deadline;
};

struct GenerationResult {
  std::string finish_reason;  // "stop" (eos, stop id, finish()) or "length"
  int64_t completion_tokens = 0;
  proto::KvReport kv;
};

struct GenerationError {
  Error error;
  int64_t retry_after_ms = 0;  // > 0 for kUnavailable and kResourceExhausted
  std::string phase;           // "queued", "prefill", "transfer", "decode"
};

// Receives one generation's output, from the service's threads, one call at a time. on_done or
// on_error is the last call; neither comes after cancel() returned unless it was under way. Calls
// must not block; the sink may call finish() and cancel() from inside them.
class GenerationSink {
 public:
  virtual ~GenerationSink() = default;
  // Tokens in order, the first one as soon as prefill has drawn it. An eos that ends the output
  // is not among them.
  virtual void on_tokens(std::span<const proto::TokenOut> tokens) = 0;
  virtual void on_done(const GenerationResult& result) = 0;
  virtual void on_error(const GenerationError& error) = 0;
};

struct ModelInfo {
  std::string name;     // of /v1/models
  int64_t created = 0;  // seconds since 1970
  int64_t context_length = 0;
  int64_t vocab = 0;
  const model::Tokenizer* tokenizer = nullptr;         // outlive the service's users
  const model::ChatTemplate* chat_template = nullptr;  // null: the model has none
};

struct Readiness {
  bool ready = false;
  bool draining = false;
  std::string reason;  // why not ready: "no prefill peer", "peer HOST:PORT refused: model ..."
};

// [thread-safe]
class GenerationService {
 public:
  using Handle = uint64_t;  // unique for the service, never 0
  virtual ~GenerationService() = default;

  // Takes a request, or says at once why not (GenerationError has the advice for Retry-After).
  // Output may reach the sink before submit returns: `handle` is written before the first call.
  // The service drops its reference to the sink after the last call.
  virtual std::optional<GenerationError> submit(GenerationRequest request,
                                                std::shared_ptr<GenerationSink> sink,
                                                Handle* handle) = 0;
  // The text is complete (stop string): no more tokens are wanted. on_done("stop") follows soon.
  virtual void finish(Handle handle) = 0;
  // Nobody wants the answer: frees everything, at any phase. Unknown handles are ignored.
  virtual void cancel(Handle handle, std::string_view reason) = 0;

  virtual const ModelInfo& model() const = 0;
  virtual Readiness readiness() const = 0;
};

}  // namespace akv::decode::api
