// What a test and its peer_process agree on, and the handle of such a process.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"

namespace akv::transport {

inline constexpr Id128 kPeerTransfer{1, 2};
inline constexpr Id128 kPeerToken{3, 4};
inline constexpr uint32_t kPeerAttempt = 5;
inline constexpr uint32_t kPeerSeed = 6;

// Runs `path` with `args`; talks to it by lines. Killed and reaped at the end.
class PeerProcess {
 public:
  PeerProcess(const char* path, std::vector<std::string> args) {
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) return;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    std::vector<char*> argv = {const_cast<char*>(path)};
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    if (posix_spawn(&pid_, path, &actions, nullptr, argv.data(), environ) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    input_ = in[1];
    output_ = out[0];
  }
  ~PeerProcess() {
    signal(SIGKILL);
    close(input_);
    close(output_);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
  }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  void signal(int number) {
    if (pid_ > 0) kill(pid_, number);
  }
  // The next line that starts with `prefix`, without it; empty after `ms`. Others are skipped.
  std::string expect(const std::string& prefix, int64_t ms = 60000) {
    const TimePoint until = after_ms(ms);
    while (true) {
      const size_t end = buffer_.find('\n');
      if (end != std::string::npos) {
        const std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        seen_.push_back(line);
        if (line.rfind(prefix, 0) == 0) return line.substr(prefix.size()) + " ";
        continue;
      }
      const auto left = static_cast<int>(-ms_since(until));
      pollfd fd{output_, POLLIN, 0};
      if (left <= 0 || poll(&fd, 1, left) <= 0) return {};
      char chunk[512];
      const ssize_t got = read(output_, chunk, sizeof(chunk));
      if (got <= 0) return {};
      buffer_.append(chunk, static_cast<size_t>(got));
    }
  }
  // Lines read so far.
  const std::vector<std::string>& seen() const { return seen_; }

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  int output_ = -1;
  std::string buffer_;
  std::vector<std::string> seen_;
};

}  // namespace akv::transport
