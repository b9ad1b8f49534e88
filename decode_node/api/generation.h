// One completion request in work: its choices at the service on one side, its client on the other.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "decode_node/api/call.h"
#include "decode_node/api/service.h"
#include "decode_node/api/text_assembler.h"
#include "proto/api_reply.h"

namespace akv::decode::api {

struct GenerationSetup {
  bool chat = false;
  bool stream = false;
  bool include_usage = false;
  bool token_ids = false;
  bool logprobs = false;
  bool offsets = false;       // text_offset of the completions dialect
  int64_t prompt_tokens = 0;  // each prompt once
  proto::ReplyHead head;
  struct ChoiceSetup {
    GenerationRequest request;
    TextOptions text;
    std::string echo;  // goes before the text
  };
  std::vector<ChoiceSetup> choices;
};

// Kept alive by the sinks that the service holds and by nothing else; [thread-safe]. Never calls
// the service with its lock held.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(GenerationSetup setup, std::unique_ptr<Call> call, GenerationService& service);

  // Submits all choices. What goes wrong is answered; the caller has nothing more to do.
  void start();
  // The client is gone: cancels everything, at any phase.
  void client_gone();

  // From the sinks.
  void on_tokens(size_t index, std::span<const proto::TokenOut> tokens);
  void on_done(size_t index, const GenerationResult& result);
  void on_error(size_t index, const GenerationError& error);

 private:
  struct Choice {
    std::unique_ptr<TextAssembler> assembler;
    GenerationService::Handle handle = 0;
    bool submitted = false;  // submit() returned: others may cancel it
    bool role_sent = false;
    bool done = false;
    proto::Choice whole;  // of a plain answer, or what is not streamed yet
    TimePoint last_token;
  };

  bool submit(size_t index);
  // Under lock_: no more calls are taken; returns what is to be cancelled outside of it.
  std::vector<GenerationService::Handle> close(std::string reason);
  void cancel(const std::vector<GenerationService::Handle>& handles);
  void fail(const GenerationError& error);
  void observe_tokens(Choice& choice);
  void send_piece(Choice& choice, size_t index, TextAssembler::Piece&& piece);
  void send_finish(size_t index, const std::string& reason);
  void complete();
  bool begin_stream();
  void write(const std::string& chunk) { call_->exchange().write_event(chunk); }

  GenerationSetup setup_;
  const std::unique_ptr<Call> call_;
  GenerationService& service_;
  std::mutex lock_;
  // Guarded by lock_.
  std::vector<Choice> choices_;
  size_t remaining_ = 0;
  bool closed_ = false;       // answered, failed or gone: late calls of the service are dropped
  std::string close_reason_;  // constant once closed_
  proto::Usage usage_;
  std::optional<proto::KvReport> kv_;
};

}  // namespace akv::decode::api
