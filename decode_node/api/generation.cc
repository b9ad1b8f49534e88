#include "decode_node/api/generation.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/model/tokenizer.h"

namespace akv::decode::api {
namespace {

class ChoiceSink final : public GenerationSink {
 public:
  ChoiceSink(std::shared_ptr<Generation> generation, size_t index)
      : generation_(std::move(generation)), index_(index) {}
  void on_tokens(std::span<const proto::TokenOut> tokens) override {
    generation_->on_tokens(index_, tokens);
  }
  void on_done(const GenerationResult& result) override { generation_->on_done(index_, result); }
  void on_error(const GenerationError& error) override { generation_->on_error(index_, error); }

 private:
  const std::shared_ptr<Generation> generation_;
  const size_t index_;
};

}  // namespace

Generation::Generation(GenerationSetup setup, std::unique_ptr<Call> call,
                       GenerationService& service)
    : setup_(std::move(setup)), call_(std::move(call)), service_(service) {
  choices_.resize(setup_.choices.size());
  remaining_ = choices_.size();
  usage_.prompt_tokens = setup_.prompt_tokens;
  call_->record().prompt_tokens = setup_.prompt_tokens;
  call_->record().stream = setup_.stream;
  for (size_t i = 0; i < choices_.size(); ++i) {
    choices_[i].assembler = std::make_unique<TextAssembler>(*service_.model().tokenizer,
                                                            std::move(setup_.choices[i].text));
    choices_[i].whole.index = static_cast<int>(i);
    choices_[i].whole.text = std::move(setup_.choices[i].echo);
  }
}

void Generation::start() {
  call_->exchange().on_disconnect([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->client_gone();
  });
  if (setup_.stream) call_->exchange().begin_stream_when_idle(call_->headers());
  for (size_t i = 0; i < choices_.size(); ++i)
    if (!submit(i)) return;
}

bool Generation::submit(size_t index) {
  Choice& choice = choices_[index];
  auto sink = std::make_shared<ChoiceSink>(shared_from_this(), index);
  const std::optional<GenerationError> refused =
      service_.submit(std::move(setup_.choices[index].request), std::move(sink), &choice.handle);
  if (refused) {
    fail(*refused);
    return false;
  }
  bool closed = false;
  {
    const std::lock_guard lock(lock_);
    choice.submitted = true;
    closed = closed_;
  }
  // Whoever closed meanwhile could not know this one.
  if (closed) service_.cancel(choice.handle, close_reason_);
  return !closed;
}

std::vector<GenerationService::Handle> Generation::close(std::string reason) {
  std::vector<GenerationService::Handle> open;
  if (std::exchange(closed_, true)) return open;
  close_reason_ = std::move(reason);
  for (const Choice& choice : choices_)
    if (choice.submitted && !choice.done) open.push_back(choice.handle);
  return open;
}

void Generation::cancel(const std::vector<GenerationService::Handle>& handles) {
  for (const GenerationService::Handle handle : handles) service_.cancel(handle, close_reason_);
}

void Generation::client_gone() {
  std::vector<GenerationService::Handle> open;
  {
    const std::lock_guard lock(lock_);
    if (closed_) return;
    open = close("client gone");
  }
  cancel(open);
  call_->report("client_gone", 499);
}

void Generation::fail(const GenerationError& error) {
  std::vector<GenerationService::Handle> open;
  {
    const std::lock_guard lock(lock_);
    if (closed_) return;
    open = close("another choice failed");
  }
  cancel(open);
  const proto::ApiError api = api_error(error.error);
  if (!call_->fail(api, retry_headers(error.error, error.retry_after_ms))) {
    // The status line is out: an event has to say it, and the stream ends without [DONE].
    write(proto::error_json(api));
    call_->exchange().end_stream();
  }
  call_->report(outcome_of(api.status), api.status);
}

void Generation::on_error(size_t index, const GenerationError& error) {
  {
    const std::lock_guard lock(lock_);
    choices_[index].done = true;
  }
  fail(error);
}

void Generation::observe_tokens(Choice& choice) {
  const TimePoint now = SteadyClock::now();
  ApiObserver* observer = call_->observer();
  RequestRecord& record = call_->record();
  if (record.ttft_ms < 0) {
    record.ttft_ms = call_->ms();
    if (observer != nullptr) observer->on_first_token(record.ttft_ms / 1000);
  }
  if (choice.last_token != TimePoint{} && observer != nullptr)
    observer->on_inter_token(ms_between(choice.last_token, now) / 1000);
  choice.last_token = now;
}

bool Generation::begin_stream() { return call_->exchange().begin_stream(call_->headers()); }

void Generation::on_tokens(size_t index, std::span<const proto::TokenOut> tokens) {
  GenerationService::Handle finished = 0;
  {
    const std::lock_guard lock(lock_);
    Choice& choice = choices_[index];
    if (closed_ || choice.done || choice.assembler->stopped() || tokens.empty()) return;
    observe_tokens(choice);
    TextAssembler::Piece piece = choice.assembler->push(tokens);
    if (choice.assembler->stopped()) finished = choice.handle;
    send_piece(choice, index, std::move(piece));
  }
  if (finished != 0) service_.finish(finished);
}

// Streams the piece, or keeps it for the plain answer.
void Generation::send_piece(Choice& choice, size_t index, TextAssembler::Piece&& piece) {
  if (setup_.stream && !choice.role_sent) {
    begin_stream();
    choice.role_sent = true;
    if (setup_.chat)
      write(proto::chat_role_chunk(setup_.head, static_cast<int>(index), setup_.include_usage));
  }
  proto::Choice& whole = choice.whole;
  whole.text += piece.text;
  if (setup_.logprobs) {
    if (!whole.logprobs) whole.logprobs.emplace();
    std::move(piece.logprobs.begin(), piece.logprobs.end(), std::back_inserter(*whole.logprobs));
    if (setup_.offsets)
      whole.text_offsets.insert(whole.text_offsets.end(), piece.text_offsets.begin(),
                                piece.text_offsets.end());
  }
  if (setup_.token_ids) {
    if (!whole.token_ids) whole.token_ids.emplace();
    whole.token_ids->insert(whole.token_ids->end(), piece.token_ids.begin(), piece.token_ids.end());
  }
  const bool tokens_left = (whole.logprobs && !whole.logprobs->empty()) ||
                           (whole.token_ids && !whole.token_ids->empty());
  if (!setup_.stream || (whole.text.empty() && !(choice.done && tokens_left))) return;
  write(setup_.chat ? proto::chat_chunk(setup_.head, whole, setup_.include_usage)
                    : proto::completion_chunk(setup_.head, whole, setup_.include_usage));
  proto::Choice next;
  next.index = whole.index;
  whole = std::move(next);
}

void Generation::send_finish(size_t index, const std::string& reason) {
  proto::Choice last;
  last.index = static_cast<int>(index);
  last.finish_reason = reason;
  write(setup_.chat ? proto::chat_chunk(setup_.head, last, setup_.include_usage)
                    : proto::completion_chunk(setup_.head, last, setup_.include_usage));
}

void Generation::on_done(size_t index, const GenerationResult& result) {
  const std::lock_guard lock(lock_);
  Choice& choice = choices_[index];
  if (closed_ || choice.done) return;
  choice.done = true;
  TextAssembler::Piece rest = choice.assembler->finish();
  const std::string reason = choice.assembler->stopped() ? "stop" : result.finish_reason;
  send_piece(choice, index, std::move(rest));
  if (setup_.stream)
    send_finish(index, reason);
  else
    choice.whole.finish_reason = reason;
  // Tokens behind a stop string were drawn, but are nobody's output.
  usage_.completion_tokens += choice.assembler->stopped()
                                  ? choice.assembler->tokens()
                                  : std::max(result.completion_tokens, choice.assembler->tokens());
  if (index == 0) kv_ = result.kv;
  if (--remaining_ == 0) complete();
}

// Under lock_; calls the exchange and the observer, never the service.
void Generation::complete() {
  closed_ = true;
  call_->record().completion_tokens = usage_.completion_tokens;
  bool sent = true;
  if (setup_.stream) {
    if (setup_.include_usage)
      write(setup_.chat ? proto::chat_usage_chunk(setup_.head, usage_, kv_)
                        : proto::completion_usage_chunk(setup_.head, usage_, kv_));
    sent = call_->exchange().write_event("[DONE]");
    call_->exchange().end_stream();
  } else {
    std::vector<proto::Choice> wholes;
    for (Choice& choice : choices_) wholes.push_back(std::move(choice.whole));
    sent = call_->respond(setup_.chat ? proto::chat_reply(setup_.head, wholes, usage_, kv_)
                                      : proto::completion_reply(setup_.head, wholes, usage_, kv_));
  }
  call_->report(sent ? "ok" : "client_gone", sent ? 200 : 499);
}

}  // namespace akv::decode::api
