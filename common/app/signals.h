// Signals as events to wait for, instead of handlers that run anywhere.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "common/base/result.h"

namespace akv {

enum class AppEvent { kTerminate, kReload, kFailed, kTimeout };

// Blocks SIGTERM, SIGINT and SIGHUP for the process and ignores SIGPIPE. REQUIRES: made on the main
// thread before any other thread, so that all inherit the mask. Throws std::system_error.
class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  // The next event; kTimeout after timeout_ms (-1 waits without end). SIGTERM and SIGINT are
  // kTerminate, SIGHUP kReload; kFailed once after fail().
  AppEvent wait(int timeout_ms);

  // From any thread: wakes wait() with kFailed. The first error counts.
  void fail(Error error);
  // The error of fail().
  std::optional<Error> failure() const;

 private:
  const int signal_fd_;
  const int event_fd_;
  mutable std::mutex mutex_;
  std::optional<Error> failure_;  // guarded by mutex_
};

// While it lives, kTerminate ends the process with status 0 by on_terminate and _exit: during
// start-up nothing is in work that could be lost, and loading a model may take long. kReload is
// kept for later; has_reload() tells.
class StartupWatch {
 public:
  StartupWatch(SignalQueue& signals, std::function<void()> on_terminate);
  ~StartupWatch();  // joins within 50 ms

  bool has_reload() const { return reload_; }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<bool> reload_{false};
  std::thread thread_;
};

}  // namespace akv
