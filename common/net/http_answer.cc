#include "common/net/http_answer.h"

#include <utility>

#include "common/net/http_router.h"

namespace akv::net {
namespace {

class Exchange final : public HttpExchange {
 public:
  explicit Exchange(std::shared_ptr<HttpAnswer> answer) : answer_(std::move(answer)) {}
  ~Exchange() override { answer_->abandon(); }
  bool respond(HttpResponse response) override { return answer_->respond(std::move(response)); }
  bool begin_stream(HttpHeaders headers) override {
    return answer_->begin_stream(std::move(headers));
  }
  void begin_stream_when_idle(HttpHeaders headers) override {
    answer_->begin_stream_when_idle(std::move(headers));
  }
  bool write_event(std::string_view data) override { return answer_->write_event(data); }
  void end_stream() override { answer_->end_stream(); }
  void on_disconnect(std::function<void()> fn) override { answer_->on_disconnect(std::move(fn)); }
  bool disconnected() const override { return answer_->disconnected(); }

 private:
  const std::shared_ptr<HttpAnswer> answer_;
};

}  // namespace

std::shared_ptr<HttpExchange> make_exchange(std::shared_ptr<HttpAnswer> answer) {
  return std::make_shared<Exchange>(std::move(answer));
}

HttpAnswer::HttpAnswer(size_t max_queued_bytes, std::function<void()> wake,
                       std::function<void(std::function<void()>)> run_later)
    : max_queued_bytes_(max_queued_bytes),
      wake_(std::move(wake)),
      run_later_(std::move(run_later)) {}

void HttpAnswer::wake_if_waiting(std::unique_lock<std::mutex>& lock) {
  const bool waiting = std::exchange(waiting_, false);
  lock.unlock();
  if (waiting) wake_();
}

bool HttpAnswer::respond(HttpResponse response) {
  std::unique_lock lock(mutex_);
  if (gone_ || streaming_ || response_ || finished_) return false;
  response_ = std::move(response);
  wake_if_waiting(lock);
  return true;
}

bool HttpAnswer::begin_stream(HttpHeaders headers) {
  std::unique_lock lock(mutex_);
  if (gone_ || response_ || finished_) return false;
  if (streaming_) return true;
  streaming_ = true;
  headers_ = headers.empty() && idle_headers_ ? std::move(*idle_headers_) : std::move(headers);
  wake_if_waiting(lock);
  return true;
}

void HttpAnswer::begin_stream_when_idle(HttpHeaders headers) {
  std::unique_lock lock(mutex_);
  if (gone_ || response_ || streaming_ || finished_) return;
  idle_headers_ = std::move(headers);
  wake_if_waiting(lock);
}

bool HttpAnswer::write_event(std::string_view data) {
  std::unique_lock lock(mutex_);
  if (gone_ || cut_ || !streaming_ || ended_) return false;
  if (events_.size() + data.size() + 8 > max_queued_bytes_) {
    cut_ = true;
    wake_if_waiting(lock);
    return false;
  }
  events_.append("data: ").append(data).append("\n\n");
  wake_if_waiting(lock);
  return true;
}

void HttpAnswer::end_stream() {
  std::unique_lock lock(mutex_);
  ended_ = true;
  wake_if_waiting(lock);
}

void HttpAnswer::on_disconnect(std::function<void()> fn) {
  const std::lock_guard lock(mutex_);
  if (finished_) return;
  if (!gone_)
    on_gone_ = std::move(fn);
  else if (fn)
    run_later_(std::move(fn));
}

bool HttpAnswer::disconnected() const {
  const std::lock_guard lock(mutex_);
  return gone_;
}

void HttpAnswer::abandon() {
  std::unique_lock lock(mutex_);
  if (gone_ || finished_ || response_ || (streaming_ && ended_)) return;
  if (streaming_)
    cut_ = true;
  else
    response_ =
        HttpResponse{500, {}, "application/json", default_error_body(500, "no answer was made")};
  wake_if_waiting(lock);
}

HttpAnswer::Step HttpAnswer::next() {
  const std::lock_guard lock(mutex_);
  Step step;
  if (cut_) {
    step.kind = Step::Kind::kCut;
  } else if (streaming_ && !head_taken_) {
    head_taken_ = true;
    step.kind = Step::Kind::kHead;
    step.headers = std::move(headers_);
  } else if (!events_.empty()) {
    step.kind = Step::Kind::kEvents;
    step.events.swap(events_);
  } else if (streaming_ && ended_) {
    step.kind = Step::Kind::kEnd;
  } else if (response_) {
    step.kind = Step::Kind::kResponse;
    step.response = std::move(*response_);
  } else {
    waiting_ = true;
  }
  return step;
}

bool HttpAnswer::streaming() const {
  const std::lock_guard lock(mutex_);
  return streaming_;
}

bool HttpAnswer::may_begin_stream() const {
  const std::lock_guard lock(mutex_);
  return idle_headers_.has_value() && !streaming_ && !response_;
}

void HttpAnswer::finish() {
  std::function<void()> dropped;
  const std::lock_guard lock(mutex_);
  finished_ = true;
  dropped.swap(on_gone_);
}

void HttpAnswer::set_gone() {
  std::function<void()> fn;
  {
    const std::lock_guard lock(mutex_);
    if (gone_ || finished_) return;
    gone_ = true;
    events_.clear();
    fn.swap(on_gone_);
  }
  if (fn) fn();
}

}  // namespace akv::net
