// A GenerationService that does what the test says, when it says so.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "common/model/chat_template.h"
#include "decode_node/api/api_server.h"
#include "tests/model/text_fixture.h"

namespace akv::decode::api {

class FakeService final : public GenerationService {
 public:
  struct Session {
    GenerationRequest request;
    std::shared_ptr<GenerationSink> sink;
    bool finished = false;
    std::string cancelled;  // the reason
  };

  FakeService()
      : tokenizer_(model::make_tokenizer(model::small_vocab("gpt-2"))),
        template_(std::move(*model::ChatTemplate::parse(
            "{% for m in messages %}<|begin|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"))) {
    info_.name = "tiny";
    info_.created = 1700000000;
    info_.context_length = 200;
    info_.vocab = tokenizer_.vocab_size();
    info_.tokenizer = &tokenizer_;
    info_.chat_template = &template_;
    readiness_.ready = true;
  }

  std::optional<GenerationError> submit(GenerationRequest request,
                                        std::shared_ptr<GenerationSink> sink,
                                        Handle* handle) override {
    const std::lock_guard lock(mutex_);
    if (refusal && sessions_.size() >= accept) return refusal;
    *handle = sessions_.size() + 1;
    Session& session = sessions_[*handle];
    session.request = std::move(request);
    session.sink = std::move(sink);
    changed_.notify_all();
    return std::nullopt;
  }

  void finish(Handle handle) override {
    std::shared_ptr<GenerationSink> sink;
    {
      const std::lock_guard lock(mutex_);
      sessions_.at(handle).finished = true;
      if (answer_finish) sink = std::move(sessions_.at(handle).sink);
      changed_.notify_all();
    }
    if (sink) sink->on_done(result("stop", 99));
  }

  void cancel(Handle handle, std::string_view reason) override {
    std::shared_ptr<GenerationSink> dropped;
    const std::lock_guard lock(mutex_);
    sessions_.at(handle).cancelled = reason;
    dropped = std::move(sessions_.at(handle).sink);
    changed_.notify_all();
  }

  const ModelInfo& model() const override { return info_; }
  Readiness readiness() const override {
    const std::lock_guard lock(mutex_);
    return readiness_;
  }

  // ---- the test's side; handles count from 1 --------------------------------------------------
  bool wait_session(Handle handle) {
    return wait_for([&] { return sessions_.count(handle) > 0; });
  }
  bool wait_cancelled(Handle handle, const std::string& reason) {
    return wait_for([&] { return sessions_.at(handle).cancelled == reason; });
  }
  bool wait_finished(Handle handle) {
    return wait_for([&] { return sessions_.at(handle).finished; });
  }
  template <class P>
  bool wait_for(P predicate) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(5), predicate);
  }
  GenerationRequest request(Handle handle) {
    EXPECT_TRUE(wait_session(handle));
    const std::lock_guard lock(mutex_);
    return sessions_.at(handle).request;
  }
  std::shared_ptr<GenerationSink> sink(Handle handle) {
    EXPECT_TRUE(wait_session(handle));
    const std::lock_guard lock(mutex_);
    return sessions_.at(handle).sink;
  }
  std::string cancelled(Handle handle) {
    const std::lock_guard lock(mutex_);
    return sessions_.at(handle).cancelled;
  }

  std::vector<int32_t> ids(const std::string& text, bool special = false) const {
    return tokenizer_.encode(text, false, special);
  }
  // One token for each byte of text.
  std::vector<proto::TokenOut> byte_tokens(const std::string& text) const {
    std::vector<proto::TokenOut> tokens;
    for (const char c : text) {
      const std::vector<int32_t> id = ids(std::string(1, c));
      EXPECT_EQ(id.size(), 1u);
      proto::TokenOut token;
      token.id = id.at(0);
      token.logprob = -0.5f;
      token.top = {{id[0], -0.5f}, {ids("z").at(0), -2.0f}};
      tokens.push_back(std::move(token));
    }
    return tokens;
  }
  void say(Handle handle, const std::string& text) {
    const auto to = sink(handle);
    for (const proto::TokenOut& token : byte_tokens(text)) to->on_tokens({&token, 1});
  }
  void done(Handle handle, const std::string& reason, int64_t tokens) {
    std::shared_ptr<GenerationSink> to;
    {
      const std::lock_guard lock(mutex_);
      to = std::move(sessions_.at(handle).sink);
    }
    to->on_done(result(reason, tokens));
  }
  static GenerationResult result(const std::string& reason, int64_t tokens) {
    GenerationResult result;
    result.finish_reason = reason;
    result.completion_tokens = tokens;
    result.kv.codec = "anchorkv";
    result.kv.profile = "pooled";
    result.kv.theta = 0.0625;
    result.kv.theta_requested = 0.05;
    result.kv.prompt_tokens = 100;
    result.kv.dense_bytes = 4000;
    result.kv.state_bytes = 200;
    result.kv.prefill_node = "p-0";
    return result;
  }

  ModelInfo info_;
  std::optional<GenerationError> refusal;
  size_t accept = 0;  // so many sessions before refusing
  bool answer_finish = true;
  Readiness readiness_;
  mutable std::mutex mutex_;

 private:
  model::Tokenizer tokenizer_;
  model::ChatTemplate template_;
  std::condition_variable changed_;
  std::map<Handle, Session> sessions_;  // guarded by mutex_
};

// Keeps records.
class Observer final : public ApiObserver {
 public:
  void on_first_token(double) override { ++first_tokens; }
  void on_inter_token(double) override { ++gaps; }
  void on_finished(const RequestRecord& record) override {
    const std::lock_guard lock(mutex_);
    records_.push_back(record);
    changed_.notify_all();
  }
  RequestRecord wait_record(size_t n = 0) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(5), [&] { return records_.size() > n; });
    EXPECT_GT(records_.size(), n);
    return records_.size() > n ? records_[n] : RequestRecord{};
  }
  size_t count() {
    const std::lock_guard lock(mutex_);
    return records_.size();
  }
  std::atomic<int> first_tokens = 0;
  std::atomic<int> gaps = 0;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<RequestRecord> records_;
};

}  // namespace akv::decode::api
