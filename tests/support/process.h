// A child process under test: its output by line, its signals, its exit.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace akv::testing {

// Killed and reaped when destroyed. Its methods come from one thread.
class ChildProcess {
 public:
  using Variables = std::vector<std::pair<std::string, std::string>>;
  // argv[0] is the program's path; variables are added to this process's environment.
  explicit ChildProcess(std::vector<std::string> argv, const Variables& variables = {});
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  // The first line of stdout that starts with prefix, waited for up to timeout_ms.
  std::optional<std::string> wait_stdout(const std::string& prefix, int timeout_ms = 10'000);
  // The same for any line of stderr that contains text.
  std::optional<std::string> wait_stderr(const std::string& text, int timeout_ms = 10'000);
  void signal(int number) const;
  // Exit status, or 128 + signal; nothing where it still runs after timeout_ms.
  std::optional<int> wait_exit(int timeout_ms = 10'000);
  // Everything read so far; complete after wait_exit.
  std::string stdout_text() const;
  std::string stderr_text() const;

 private:
  struct Stream {
    int fd = -1;
    std::string text;  // guarded by mutex_
    bool closed = false;
    std::thread reader;
  };
  void read_all(Stream& stream);
  template <class Match>
  std::optional<std::string> wait_line(const Stream& stream, int timeout_ms, const Match& match);

  pid_t pid_ = -1;
  std::optional<int> status_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Stream out_;
  Stream err_;
};

}  // namespace akv::testing
