#include "tests/support/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <stdexcept>

namespace akv::testing {
namespace {

using Clock = std::chrono::steady_clock;

std::array<int, 2> make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  return ends;
}

// Between fork and exec: only calls that are safe there.
[[noreturn]] void exec_child(int out, int err, char* const* argv, char* const* environment) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  execve(argv[0], argv, environment);
  _exit(127);
}

}  // namespace

ChildProcess::ChildProcess(std::vector<std::string> argv, const Variables& variables) {
  std::vector<std::string> storage;
  for (const auto& [name, value] : variables) storage.push_back(name + "=" + value);
  std::vector<char*> environment;
  for (std::string& variable : storage) environment.push_back(variable.data());
  for (char** variable = environ; *variable != nullptr; ++variable)
    environment.push_back(*variable);
  environment.push_back(nullptr);
  std::vector<char*> words;
  for (std::string& word : argv) words.push_back(word.data());
  words.push_back(nullptr);

  const std::array<int, 2> out = make_pipe();
  const std::array<int, 2> err = make_pipe();
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork");
  if (pid_ == 0) exec_child(out[1], err[1], words.data(), environment.data());
  close(out[1]);
  close(err[1]);
  out_.fd = out[0];
  err_.fd = err[0];
  out_.reader = std::thread([this] { read_all(out_); });
  err_.reader = std::thread([this] { read_all(err_); });
}

ChildProcess::~ChildProcess() {
  if (!status_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  out_.reader.join();
  err_.reader.join();
  close(out_.fd);
  close(err_.fd);
}

void ChildProcess::read_all(Stream& stream) {
  std::array<char, 4096> buffer{};
  while (true) {
    const ssize_t count = read(stream.fd, buffer.data(), buffer.size());
    std::lock_guard lock(mutex_);
    if (count > 0) stream.text.append(buffer.data(), static_cast<size_t>(count));
    stream.closed = count <= 0;
    changed_.notify_all();
    if (stream.closed) return;
  }
}

template <class Match>
std::optional<std::string> ChildProcess::wait_line(const Stream& stream, int timeout_ms,
                                                   const Match& match) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  std::unique_lock lock(mutex_);
  while (true) {
    size_t begin = 0;
    for (size_t end = 0; (end = stream.text.find('\n', begin)) != std::string::npos;
         begin = end + 1) {
      std::string line = stream.text.substr(begin, end - begin);
      if (match(line)) return line;
    }
    if (stream.closed || changed_.wait_until(lock, deadline) == std::cv_status::timeout) {
      return std::nullopt;
    }
  }
}

std::optional<std::string> ChildProcess::wait_stdout(const std::string& prefix, int timeout_ms) {
  return wait_line(out_, timeout_ms,
                   [&](const std::string& line) { return line.starts_with(prefix); });
}

std::optional<std::string> ChildProcess::wait_stderr(const std::string& text, int timeout_ms) {
  return wait_line(err_, timeout_ms,
                   [&](const std::string& line) { return line.find(text) != std::string::npos; });
}

void ChildProcess::signal(int number) const { kill(pid_, number); }

std::optional<int> ChildProcess::wait_exit(int timeout_ms) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!status_) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      break;
    }
    if (Clock::now() >= deadline) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return out_.closed && err_.closed; });
  return status_;
}

std::string ChildProcess::stdout_text() const {
  std::lock_guard lock(mutex_);
  return out_.text;
}

std::string ChildProcess::stderr_text() const {
  std::lock_guard lock(mutex_);
  return err_.text;
}

}  // namespace akv::testing
