// A thread that runs commands in the order they come and looks after deadlines.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "common/base/clock.h"

namespace akv::transport {

class Loop {
 public:
  // `look(now)` runs on the thread after commands and when its last answer, a time, has come.
  explicit Loop(std::function<TimePoint(TimePoint now)> look) : look_(std::move(look)) {
    thread_ = std::thread([this] { run(); });
  }
  ~Loop() { stop(); }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Any thread; after stop() the command is dropped.
  void submit(std::function<void()> command) {
    {
      std::lock_guard lock(mutex_);
      if (stopped_) return;
      commands_.push_back(std::move(command));
    }
    wake_.notify_all();
  }

  // Runs what was submitted and joins. Not on the thread itself; repeatable.
  void stop() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void run() {
    TimePoint next = TimePoint::max();
    std::vector<std::function<void()>> commands;
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        const auto ready = [this] { return stopping_ || !commands_.empty(); };
        if (next == TimePoint::max()) {
          wake_.wait(lock, ready);
        } else {
          wake_.wait_until(lock, next, ready);
        }
        if (stopping_ && commands_.empty()) {
          stopped_ = true;
          return;
        }
        commands.swap(commands_);
      }
      for (auto& command : commands) command();
      commands.clear();
      next = look_(SteadyClock::now());
    }
  }

  const std::function<TimePoint(TimePoint)> look_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::function<void()>> commands_;  // guarded by mutex_
  bool stopping_ = false;                        // guarded by mutex_
  bool stopped_ = false;                         // guarded by mutex_
  std::thread thread_;
};

}  // namespace akv::transport
