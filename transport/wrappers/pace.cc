// Delay and rate limit: both hold posts back on a thread of their own, in order.
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "transport/wrappers/coat.h"
#include "transport/wrappers/wrappers.h"

namespace akv::transport {
namespace {

// When may `bytes` more leave, if they were posted at `now`? Called with the queue's lock.
class Pace {
 public:
  virtual ~Pace() = default;
  virtual TimePoint due(TimePoint now, uint64_t bytes) = 0;
};

class DelayPace final : public Pace {
 public:
  explicit DelayPace(int64_t delay_ms) : delay_(delay_ms) {}
  TimePoint due(TimePoint now, uint64_t) override { return now + delay_; }

 private:
  const std::chrono::milliseconds delay_;
};

// A token bucket kept as the time when it will have refilled what was taken.
class RatePace final : public Pace {
 public:
  explicit RatePace(uint64_t bytes_per_s) : bytes_per_s_(std::max<uint64_t>(bytes_per_s, 1)) {}
  TimePoint due(TimePoint now, uint64_t bytes) override {
    constexpr auto kBurst = std::chrono::milliseconds(100);
    const TimePoint start = std::max(spent_until_, now - kBurst);
    spent_until_ =
        start + std::chrono::duration_cast<SteadyClock::duration>(std::chrono::duration<double>(
                    static_cast<double>(bytes) / static_cast<double>(bytes_per_s_)));
    return std::max(spent_until_, now);
  }

 private:
  const uint64_t bytes_per_s_;
  TimePoint spent_until_{};
};

class PacedSender final : public SenderCoat {
 public:
  PacedSender(std::unique_ptr<Sender> inner, std::unique_ptr<Pace> pace, size_t queue_max)
      : SenderCoat(std::move(inner)),
        queue_max_(queue_max),
        pace_(std::move(pace)),
        thread_([this] { loop(); }) {}

  ~PacedSender() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  Status post(ChannelId channel, uint32_t record, Payload payload) override {
    const uint64_t bytes = payload.bytes.size();
    return hold({channel, record, std::move(payload), false, {}}, bytes);
  }
  Status finish(ChannelId channel) override { return hold({channel, 0, {}, true, {}}, 0); }
  void cancel(ChannelId channel) override {
    {
      std::lock_guard lock(mutex_);
      std::erase_if(held_, [&](const Held& h) { return h.channel == channel; });
    }
    SenderCoat::cancel(channel);
  }

 private:
  struct Held {
    ChannelId channel;
    uint32_t record = 0;
    Payload payload;
    bool finish = false;
    TimePoint due;
  };

  Status hold(Held held, uint64_t bytes) {
    {
      std::lock_guard lock(mutex_);
      if (held_.size() >= queue_max_) {
        return make_error(Code::kResourceExhausted,
                          std::to_string(queue_max_) + " records are held back already");
      }
      held.due = pace_->due(SteadyClock::now(), bytes);
      held_.push_back(std::move(held));
    }
    wake_.notify_one();
    return {};
  }

  void loop() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      if (held_.empty()) {
        wake_.wait(lock);
        continue;
      }
      const TimePoint due = held_.front().due;
      if (SteadyClock::now() < due) {
        wake_.wait_until(lock, due);
        continue;
      }
      Held next = std::move(held_.front());
      held_.pop_front();
      lock.unlock();
      pass_on(std::move(next));
      lock.lock();
    }
  }

  // What the inner sender would have told the caller of post() comes too late for that: it ends
  // the channel.
  void pass_on(Held next) {
    Status status = next.finish ? inner().finish(next.channel)
                                : inner().post(next.channel, next.record, std::move(next.payload));
    if (!status.ok()) inner().cancel(next.channel);
  }

  const size_t queue_max_;
  std::mutex mutex_;
  std::condition_variable wake_;
  const std::unique_ptr<Pace> pace_;  // guarded by mutex_
  std::deque<Held> held_;             // guarded by mutex_
  bool stop_ = false;                 // guarded by mutex_
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Sender> delay_sends(std::unique_ptr<Sender> inner, int64_t delay_ms,
                                    size_t queue_max) {
  return std::make_unique<PacedSender>(std::move(inner), std::make_unique<DelayPace>(delay_ms),
                                       queue_max);
}

std::unique_ptr<Sender> limit_rate(std::unique_ptr<Sender> inner, uint64_t bytes_per_s,
                                   size_t queue_max) {
  return std::make_unique<PacedSender>(std::move(inner), std::make_unique<RatePace>(bytes_per_s),
                                       queue_max);
}

}  // namespace akv::transport
