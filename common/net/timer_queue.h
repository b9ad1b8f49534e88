// Internal to net: functions to be run later, on one thread.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "common/base/clock.h"

namespace akv::net {

// Not thread-safe. A function may add and cancel timers, its own too.
class TimerQueue {
 public:
  uint64_t add(TimePoint when, int64_t period_ms, std::function<void()> fn) {
    const uint64_t id = ++last_id_;
    insert(id, when, Timer{period_ms, std::move(fn)});
    return id;
  }

  void cancel(uint64_t id) {
    const auto it = when_.find(id);
    if (it == when_.end()) return;
    timers_.erase({it->second, id});
    when_.erase(it);
  }

  std::optional<TimePoint> next() const {
    if (timers_.empty()) return std::nullopt;
    return timers_.begin()->first.first;
  }

  // Runs what is due at now, in order of time; what becomes due meanwhile waits for the next call.
  void run_due(TimePoint now) {
    while (!timers_.empty() && timers_.begin()->first.first <= now) {
      const auto [when, id] = timers_.begin()->first;
      Timer timer = std::move(timers_.begin()->second);
      cancel(id);
      const std::function<void()> fn = timer.fn;
      if (timer.period_ms > 0) {
        // Beats missed while the thread was late are not made up for.
        const TimePoint due = when + std::chrono::milliseconds(timer.period_ms);
        insert(id, due > now ? due : now + std::chrono::milliseconds(timer.period_ms),
               std::move(timer));
      }
      fn();
    }
  }

 private:
  struct Timer {
    int64_t period_ms = 0;  // 0: once
    std::function<void()> fn;
  };
  void insert(uint64_t id, TimePoint when, Timer timer) {
    timers_.emplace(std::pair(when, id), std::move(timer));
    when_[id] = when;
  }

  std::map<std::pair<TimePoint, uint64_t>, Timer> timers_;
  std::unordered_map<uint64_t, TimePoint> when_;
  uint64_t last_id_ = 0;
};

}  // namespace akv::net
