#include "common/log/log.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <utility>

#include "common/log/format.h"

namespace akv {
namespace {

constexpr std::array<std::string_view, 5> kLevelNames = {"debug", "info", "warn", "error", "off"};

// One write for the whole line; what a signal or a full pipe cuts short is finished or given up.
bool write_line(int fd, std::string_view line) {
  while (!line.empty()) {
    const ssize_t written = ::write(fd, line.data(), line.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    line.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

std::string_view log_level_name(LogLevel level) { return kLevelNames[static_cast<size_t>(level)]; }

Result<LogLevel> parse_log_level(std::string_view text) {
  for (size_t i = 0; i < kLevelNames.size(); ++i) {
    if (kLevelNames[i] == text) return static_cast<LogLevel>(i);
  }
  return make_error(Code::kInvalidArgument, "not a log level: " + std::string(text));
}

// What all copies of a logger share.
class LogSink {
 public:
  LogSink(std::function<bool(std::string_view)> write, LogLevel level, LogFormat format)
      : format_(format), write_(std::move(write)), level_(level) {}

  LogFormat format() const { return format_; }
  LogLevel level() const { return level_.load(std::memory_order_relaxed); }
  void set_level(LogLevel level) { level_.store(level, std::memory_order_relaxed); }

  void set_node(std::string_view node) {
    std::string field;
    if (!node.empty()) log_format::append_field(field, {"node", node}, format_);
    std::lock_guard lock(mutex_);
    node_ = std::move(field);
  }

  std::string node() const {
    std::lock_guard lock(mutex_);
    return node_;
  }

  // line: everything up to the end of the event, without the closing brace and newline.
  void put(std::string line) {
    std::lock_guard lock(mutex_);
    if (dropped_ > 0) log_format::append_field(line, {"lines_dropped_before", dropped_}, format_);
    line += format_ == LogFormat::kJson ? "}\n" : "\n";
    if (write_(line)) {
      dropped_ = 0;
    } else {
      ++dropped_;
    }
  }

 private:
  const LogFormat format_;
  const std::function<bool(std::string_view)> write_;  // called under mutex_
  std::atomic<LogLevel> level_;
  mutable std::mutex mutex_;
  std::string node_;      // guarded by mutex_; the rendered field
  uint64_t dropped_ = 0;  // guarded by mutex_
};

Logger Logger::to_fd(int fd, LogLevel level, LogFormat format) {
  Logger logger;
  logger.sink_ = std::make_shared<LogSink>(
      [fd](std::string_view line) { return write_line(fd, line); }, level, format);
  return logger;
}

Logger Logger::to_writer(Writer writer, LogLevel level, LogFormat format) {
  Logger logger;
  logger.sink_ = std::make_shared<LogSink>(
      [writer = std::move(writer)](std::string_view line) {
        writer(line);
        return true;
      },
      level, format);
  return logger;
}

Logger Logger::component(std::string_view name) const { return with({"component", name}); }

Logger Logger::request(std::string_view request_id) const {
  return with({"request_id", request_id});
}

Logger Logger::with(const LogField& field) const {
  Logger copy = *this;
  if (!sink_) return copy;
  std::string bound = bound_ ? *bound_ : std::string();
  log_format::append_field(bound, field, sink_->format());
  copy.bound_ = std::make_shared<const std::string>(std::move(bound));
  return copy;
}

void Logger::set_level(LogLevel level) const {
  if (sink_) sink_->set_level(level);
}

LogLevel Logger::level() const { return sink_ ? sink_->level() : LogLevel::kOff; }

void Logger::set_node(std::string_view node) const {
  if (sink_) sink_->set_node(node);
}

bool Logger::enabled(LogLevel level) const {
  return sink_ && level != LogLevel::kOff && level >= sink_->level();
}

void Logger::log(LogLevel level, std::string_view event, Fields fields) const {
  if (!enabled(level)) return;
  const LogFormat format = sink_->format();
  std::string line;
  line.reserve(256);
  if (format == LogFormat::kJson) {
    line += "{\"ts\":\"";
    log_format::append_timestamp(line);
    line += '"';
    log_format::append_field(line, {"level", log_level_name(level)}, format);
    log_format::append_field(line, {"event", event}, format);
  } else {
    log_format::append_timestamp(line);
    line += ' ';
    line += log_level_name(level);
    line += ' ';
    log_format::append_json_string(line, event, kMaxValueBytes);
  }
  line += sink_->node();
  if (bound_) line += *bound_;
  for (const LogField& field : fields) log_format::append_field(line, field, format);
  sink_->put(std::move(line));
}

void Logger::error(std::string_view event, const Error& error) const {
  log(LogLevel::kError, event,
      {{"code", code_name(error.code)}, {"error", error.message}, {"param", error.param}});
}

void Logger::warn(std::string_view event, const Error& error) const {
  log(LogLevel::kWarn, event,
      {{"code", code_name(error.code)}, {"error", error.message}, {"param", error.param}});
}

}  // namespace akv
