// Structured logging: one event a line, JSON or text, to one file descriptor.
//
// A Logger is a cheap handle that is passed as context; copies share one sink. An event has a
// short constant name, and its facts are fields: log.info("prefill done", {{"tokens", n}}).
// Prompt text, generated text and keys are never logged; log counts, ids and hashes of them.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "common/base/result.h"

namespace akv {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarn, kError, kOff };
enum class LogFormat : uint8_t { kJson, kText };

// "debug", "info", "warn", "error" and "off".
std::string_view log_level_name(LogLevel level);
// kInvalidArgument for any other text.
Result<LogLevel> parse_log_level(std::string_view text);

// A key and a value of one event. Views are read during the call only.
struct LogField {
  using Value = std::variant<std::string_view, int64_t, uint64_t, double, bool>;

  LogField(std::string_view key_in, std::string_view v) : key(key_in), value(v) {}
  LogField(std::string_view key_in, const char* v) : key(key_in), value(std::string_view(v)) {}
  LogField(std::string_view key_in, const std::string& v)
      : key(key_in), value(std::string_view(v)) {}
  LogField(std::string_view key_in, bool v) : key(key_in), value(v) {}
  LogField(std::string_view key_in, std::floating_point auto v)
      : key(key_in), value(static_cast<double>(v)) {}
  LogField(std::string_view key_in, std::signed_integral auto v)
      : key(key_in), value(static_cast<int64_t>(v)) {}
  LogField(std::string_view key_in, std::unsigned_integral auto v)
      : key(key_in), value(static_cast<uint64_t>(v)) {}

  std::string_view key;
  Value value;
};

class LogSink;

// Thread-safe; copying shares the sink. A line reaches its descriptor in one write, so lines of
// several threads never mix. A value longer than kMaxValueBytes is cut; bytes that are not UTF-8
// become U+FFFD. When the descriptor refuses a line (pipe full, disk full) the line is dropped and
// the next one that passes says how many were: logging never stops a request.
class Logger {
 public:
  using Fields = std::initializer_list<LogField>;
  using Writer = std::function<void(std::string_view line)>;  // line ends with '\n'
  static constexpr size_t kMaxValueBytes = 2048;

  // Discards everything.
  Logger() = default;
  // Writes to fd (2 is stderr), which stays the caller's.
  static Logger to_fd(int fd, LogLevel level, LogFormat format);
  // Hands each line to writer, one call at a time: tests.
  static Logger to_writer(Writer writer, LogLevel level, LogFormat format);

  // A handle whose lines also carry "component".
  Logger component(std::string_view name) const;
  // A handle whose lines also carry "request_id": x-request-id of the request.
  Logger request(std::string_view request_id) const;
  // A handle whose lines also carry key.
  Logger with(const LogField& field) const;

  // Of the sink, so of every copy, at once.
  void set_level(LogLevel level) const;
  LogLevel level() const;
  // Every later line carries "node"; empty leaves it out.
  void set_node(std::string_view node) const;

  bool enabled(LogLevel level) const;
  void log(LogLevel level, std::string_view event, Fields fields = {}) const;
  void debug(std::string_view event, Fields fields = {}) const {
    log(LogLevel::kDebug, event, fields);
  }
  void info(std::string_view event, Fields fields = {}) const {
    log(LogLevel::kInfo, event, fields);
  }
  void warn(std::string_view event, Fields fields = {}) const {
    log(LogLevel::kWarn, event, fields);
  }
  void error(std::string_view event, Fields fields = {}) const {
    log(LogLevel::kError, event, fields);
  }
  // An error with its code, message and param as fields. Log it where it is first known, and
  // only there.
  void error(std::string_view event, const Error& error) const;
  void warn(std::string_view event, const Error& error) const;

 private:
  std::shared_ptr<LogSink> sink_;
  std::shared_ptr<const std::string> bound_;  // fields of with(), already in the sink's format
};

}  // namespace akv
