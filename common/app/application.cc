#include "common/app/application.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/app/notify.h"
#include "common/app/signals.h"
#include "common/base/clock.h"
#include "common/config/load.h"
#include "common/device/host.h"

namespace akv {

std::string_view project_version() { return AKV_VERSION; }

void AppConfig::declare(Schema& schema) {
  schema.section("Process");
  schema.text("node-name", node_name, "NAME")
      .doc("name in logs, metrics and replies")
      .default_note("the control address");
  schema
      .choice<LogLevel>("log-level", log_level,
                        {{"debug", LogLevel::kDebug},
                         {"info", LogLevel::kInfo},
                         {"warn", LogLevel::kWarn},
                         {"error", LogLevel::kError},
                         {"off", LogLevel::kOff}})
      .doc("least severe level that is logged, to stderr")
      .reloadable();
  schema
      .choice<LogFormat>("log-format", log_format,
                         {{"json", LogFormat::kJson}, {"text", LogFormat::kText}})
      .doc("one event a line");
  schema.integer("drain-timeout-ms", drain_timeout_ms)
      .unit("ms")
      .range(0, 86'400'000)
      .doc("after SIGTERM, longest wait for what is in work");
}

namespace detail {
namespace {

enum ExitStatus { kClean = 0, kFailure = 1, kBadInput = 2, kPortTaken = 3 };

constexpr int kDrainPollMs = 20;

// The status of an error before the daemon is ready.
int startup_status(const Error& error) {
  switch (error.code) {
    case Code::kAddressInUse:
      return kPortTaken;
    case Code::kInvalidArgument:
    case Code::kNotFound:
    case Code::kIo:
    case Code::kMismatch:
    case Code::kUnsupported:
    case Code::kDataLoss:
    case Code::kContextLength:
      return kBadInput;
    default:
      return kFailure;
  }
}

void print_help(const ErasedType& type, const Schema& schema) {
  fmt::print("{}: {}\n\nusage: {} [--config FILE] [--FLAG VALUE]…\n", type.name, type.summary,
             type.name);
  fmt::print("\n  {:<32}{}\n", "--config FILE", "JSON object with the same keys (AKV_CONFIG)");
  fmt::print("  {:<32}{}\n", "--check", "validate the configuration and the model, then exit");
  fmt::print("  {:<32}{}\n", "--dump-config", "print the configuration as JSON, then exit");
  fmt::print("  {:<32}{}\n", "--version, --help", "print it, then exit");
  fmt::print("{}", schema.help());
  fmt::print(
      "\nA flag beats the environment (AKV_ and the name in upper case with underscores), which\n"
      "beats the file. Exit status: 0 clean, 1 failure while running, 2 bad configuration or\n"
      "model, 3 address in use.\n");
}

Status check_values(const ErasedConfig& config) {
  AKV_RETURN_IF_ERROR(config.schema.check_required());
  return config.validate();
}

std::string ready_line(const ReadyAddresses& addresses) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [key, address] : addresses) json[key] = address;
  return "ready " + json.dump() + "\n";
}

// One run of a daemon, phase by phase. Members are destroyed last to first.
class Application {
 public:
  Application(const ErasedType& type, CommandLine command_line, ErasedConfig config)
      : type_(type), command_line_(std::move(command_line)), config_(std::move(config)) {
    context_.log = Logger::to_fd(STDERR_FILENO, config_.app->log_level, config_.app->log_format);
    context_.log.set_node(config_.app->node_name);
    context_.metrics = &metrics_;
    context_.fail = [this](Error error) { signals_.fail(std::move(error)); };
    metrics_.set_node(config_.app->node_name);
    resident_ =
        metrics_.gauge_callback("akv_resident_memory_bytes", "Resident set of the process.", {},
                                [] { return static_cast<double>(resident_memory_bytes()); });
  }

  int check() {
    const Status status = type_.check(config_, context_);
    if (!status.ok()) return refuse(status.error());
    fmt::print("{}: configuration and model are good\n", type_.name);
    return kClean;
  }

  int run() {
    const TimePoint begin = SteadyClock::now();
    bool reload_pending = false;
    {
      StartupWatch watch(signals_, [this] { log().info("ended while starting"); });
      if (const int status = create_and_start(); status != kClean) return status;
      reload_pending = watch.has_reload();
    }
    // After the watch: from this line on, SIGTERM drains. One write, so that a reader of the pipe
    // gets the whole line.
    std::fwrite(ready_line_.data(), 1, ready_line_.size(), stdout);
    std::fflush(stdout);
    log().info("ready", {{"version", project_version()}, {"start_ms", ms_since(begin)}});
    notify_service_manager("READY=1");
    if (reload_pending) reload();
    return serve();
  }

 private:
  const Logger& log() const { return context_.log; }

  // An error of start-up: one line for a person, whatever the log level.
  int refuse(const Error& error) const {
    fmt::print(stderr, "{}: {}\n", type_.name, error.message);
    return startup_status(error);
  }

  int create_and_start() {
    Result<ErasedDaemon> created = type_.create(config_, context_);
    if (!created.ok()) return refuse(created.error());
    daemon_ = std::move(created).value();
    Result<ReadyAddresses> addresses = daemon_->start();
    if (!addresses.ok()) {
      daemon_->stop();
      return refuse(addresses.error());
    }
    ready_line_ = ready_line(*addresses);
    return kClean;
  }

  int serve() {
    while (true) {
      switch (signals_.failure() ? AppEvent::kFailed : signals_.wait(-1)) {
        case AppEvent::kTerminate:
          return drain_and_stop();
        case AppEvent::kReload:
          reload();
          break;
        case AppEvent::kFailed:
          log().error("failed", *signals_.failure());
          return stop(kFailure);
        case AppEvent::kTimeout:
          break;
      }
    }
  }

  int drain_and_stop() {
    const TimePoint deadline = after_ms(config_.app->drain_timeout_ms);
    log().info("draining", {{"timeout_ms", config_.app->drain_timeout_ms}});
    notify_service_manager("STOPPING=1");
    daemon_->drain();
    std::string_view outcome = "drained";
    while (!daemon_->idle()) {
      if (SteadyClock::now() >= deadline) {
        outcome = "deadline";
        break;
      }
      const AppEvent event = signals_.wait(kDrainPollMs);
      if (event == AppEvent::kTerminate) {
        outcome = "second signal";
        break;
      }
      if (event == AppEvent::kFailed) {
        log().error("failed while draining", *signals_.failure());
        return stop(kFailure);
      }
    }
    log().info("stopping", {{"drain", outcome}});
    return stop(kClean);
  }

  int stop(int status) {
    daemon_->stop();
    log().info("stopped", {{"status", status}});
    return status;
  }

  // A configuration that does not hold changes nothing: the daemon goes on with the old one.
  void reload() {
    notify_service_manager("RELOADING=1");
    ErasedConfig fresh = type_.make_config();
    Status status = apply_configuration(fresh.schema, command_line_, ::getenv);
    if (status.ok()) status = check_values(fresh);
    if (status.ok()) {
      log().set_level(fresh.app->log_level);
      daemon_->reload(fresh);
      log().info("reloaded", {{"log_level", log_level_name(fresh.app->log_level)}});
    } else {
      log().error("configuration not reloaded", status.error());
    }
    notify_service_manager("READY=1");
  }

  const ErasedType& type_;
  const CommandLine command_line_;
  SignalQueue signals_;
  ErasedConfig config_;
  MetricsRegistry metrics_;
  MetricsRegistry::Callback resident_;
  AppContext context_;
  std::string ready_line_;
  std::optional<ErasedDaemon> daemon_;
};

int run_phases(const ErasedType& type, std::span<const char* const> args) {
  ErasedConfig config = type.make_config();
  const auto bad = [&](const Error& error) {
    fmt::print(stderr, "{}: {}\n", type.name, error.message);
    return static_cast<int>(kBadInput);
  };
  Result<CommandLine> parsed = parse_command_line(config.schema, args);
  if (!parsed.ok()) return bad(parsed.error());
  if (parsed->action == Action::kHelp) {
    print_help(type, config.schema);
    return kClean;
  }
  if (parsed->action == Action::kVersion) {
    fmt::print("{} {}\n", type.name, project_version());
    return kClean;
  }
  Status status = apply_configuration(config.schema, *parsed, ::getenv);
  if (!status.ok()) return bad(status.error());
  if (parsed->action == Action::kDumpConfig) {
    fmt::print("{}", config.schema.dump_json());
    return kClean;
  }
  status = check_values(config);
  if (!status.ok()) return bad(status.error());
  const Action action = parsed->action;
  Application application(type, std::move(parsed).value(), std::move(config));
  return action == Action::kCheck ? application.check() : application.run();
}

}  // namespace

int run(const ErasedType& type, std::span<const char* const> args) {
  try {
    return run_phases(type, args);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", type.name, error.what());
    return kFailure;
  }
}

}  // namespace detail
}  // namespace akv
