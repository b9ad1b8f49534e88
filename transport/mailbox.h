// Work handed to a progress thread by the threads that call open, post, cancel.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <vector>

namespace akv::transport {

// Thread-safe. Bounded by its users: at most one command per open, record, finish, cancel.
class Mailbox {
 public:
  void push(std::function<void()> command) {
    std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
    pending_.store(true, std::memory_order_release);
  }

  bool pending() const { return pending_.load(std::memory_order_acquire); }

  // Runs what was pushed, in order, without the lock. Progress thread only.
  void run() {
    if (!pending()) return;
    {
      std::lock_guard lock(mutex_);
      commands_.swap(running_);
      pending_.store(false, std::memory_order_release);
    }
    for (auto& command : running_) command();
    running_.clear();
  }

 private:
  std::mutex mutex_;
  std::vector<std::function<void()>> commands_;  // guarded by mutex_
  std::atomic<bool> pending_{false};
  std::vector<std::function<void()>> running_;  // progress thread
};

}  // namespace akv::transport
