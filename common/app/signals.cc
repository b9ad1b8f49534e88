#include "common/app/signals.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <system_error>
#include <utility>

namespace akv {
namespace {

sigset_t handled_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
  return set;
}

int checked(int fd, const char* what) {
  if (fd < 0) throw std::system_error(errno, std::generic_category(), what);
  return fd;
}

int block_and_open() {
  const sigset_t set = handled_signals();
  const int error = pthread_sigmask(SIG_BLOCK, &set, nullptr);
  if (error != 0) throw std::system_error(error, std::generic_category(), "pthread_sigmask");
  std::signal(SIGPIPE, SIG_IGN);
  return checked(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), "signalfd");
}

}  // namespace

SignalQueue::SignalQueue()
    : signal_fd_(block_and_open()),
      event_fd_(checked(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")) {}

SignalQueue::~SignalQueue() {
  close(event_fd_);
  close(signal_fd_);
}

AppEvent SignalQueue::wait(int timeout_ms) {
  std::array<pollfd, 2> fds = {pollfd{signal_fd_, POLLIN, 0}, pollfd{event_fd_, POLLIN, 0}};
  while (true) {
    const int ready = poll(fds.data(), fds.size(), timeout_ms);
    if (ready == 0) return AppEvent::kTimeout;
    if (ready < 0) continue;  // EINTR: a signal that is not ours
    if (fds[1].revents != 0) {
      uint64_t count = 0;
      if (read(event_fd_, &count, sizeof(count)) == sizeof(count)) return AppEvent::kFailed;
    }
    signalfd_siginfo info{};
    if (fds[0].revents == 0 || read(signal_fd_, &info, sizeof(info)) != sizeof(info)) continue;
    return info.ssi_signo == SIGHUP ? AppEvent::kReload : AppEvent::kTerminate;
  }
}

void SignalQueue::fail(Error error) {
  {
    std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = std::move(error);
  }
  const uint64_t one = 1;
  // Cannot fill: only the first failure writes.
  [[maybe_unused]] const ssize_t written = write(event_fd_, &one, sizeof(one));
}

std::optional<Error> SignalQueue::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

StartupWatch::StartupWatch(SignalQueue& signals, std::function<void()> on_terminate)
    : thread_([this, &signals, on_terminate = std::move(on_terminate)] {
        while (!stop_) {
          switch (signals.wait(20)) {
            case AppEvent::kTerminate:
              on_terminate();
              _exit(0);
            case AppEvent::kReload:
              reload_ = true;
              break;
            case AppEvent::kFailed:  // the main thread asks failure() after start-up
            case AppEvent::kTimeout:
              break;
          }
        }
      }) {}

StartupWatch::~StartupWatch() {
  stop_ = true;
  thread_.join();
}

}  // namespace akv
