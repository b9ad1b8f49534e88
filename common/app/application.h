// What a daemon's main() is: return akv::run_application<PrefillDaemon>(argc, argv);
//
// Phases: flags -> configuration -> create -> start -> ready line -> wait -> drain -> stop.
//   SIGTERM, SIGINT  drain: no new work, what runs is finished; a second one stops at once.
//                    Before the ready line they end the process.
//   SIGHUP           reads the configuration again; log level, and what reload() takes.
// Exit status: 0 clean, 1 failure while running, 2 bad configuration or model, 3 address in use.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"

namespace akv {

// The project's version, one for --version, /version, build info and hello.
std::string_view project_version();

// The part of every daemon's configuration that the application itself reads; a daemon's Config has
// it as a member named app, and does not declare it.
struct AppConfig {
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kJson;
  std::string node_name;  // empty: the daemon gives one (its control address) by set_node
  int64_t drain_timeout_ms = 180'000;

  void declare(Schema& schema);
};

// Handed to create(); lives until the daemon is destroyed.
struct AppContext {
  Logger log;
  MetricsRegistry* metrics = nullptr;
  // Ends the process with status 1 after an orderly stop(). Thread-safe; the first call counts.
  std::function<void(Error)> fail;
};

// Keys of the ready line in order: http, control, state, metrics -> HOST:PORT.
using ReadyAddresses = std::vector<std::pair<std::string, std::string>>;

// A daemon as the application sees it. All calls come from the main thread.
template <class D>
concept DaemonType = requires(D daemon, const D& const_daemon, typename D::Config& config,
                              const typename D::Config& const_config, const AppContext& context,
                              Schema& schema) {
  // "prefill_node", and a line for --help.
  { D::kName } -> std::convertible_to<std::string_view>;
  { D::kSummary } -> std::convertible_to<std::string_view>;
  // Default-constructible; declares its items once, and says what is wrong between them
  // (kInvalidArgument, param: the item).
  { config.app } -> std::convertible_to<AppConfig>;
  {config.declare(schema)};
  { const_config.validate() } -> std::convertible_to<Status>;
  // --check: reads and checks the model too, without sockets.
  { D::check(const_config, context) } -> std::convertible_to<Status>;
  // Loads the model, makes the components. An error of input (kInvalidArgument, kNotFound, kIo,
  // kMismatch, kUnsupported, kDataLoss) exits with 2, kAddressInUse with 3, any other with 1.
  { D::create(const_config, context) } -> std::convertible_to<Result<std::unique_ptr<D>>>;
  // Binds and starts threads; the addresses as bound.
  { daemon.start() } -> std::convertible_to<Result<ReadyAddresses>>;
  // Begins to drain and returns at once: /health/ready says no, new work is refused.
  {daemon.drain()};
  // True once nothing is in work. Polled while draining.
  { const_daemon.idle() } -> std::convertible_to<bool>;
  // Ends all threads and frees everything, whatever is in work. Called once, drained or not.
  {daemon.stop()};
  // A fresh, valid configuration after SIGHUP: take peers and keys of it, leave the rest.
  {daemon.reload(const_config)};
};

namespace detail {

// The erased form: application.cc needs no template.
struct ErasedConfig {
  std::shared_ptr<void> object;
  AppConfig* app = nullptr;
  Schema schema;
  std::function<Status()> validate;
};
struct ErasedDaemon {
  std::shared_ptr<void> object;
  std::function<Result<ReadyAddresses>()> start;
  std::function<void()> drain;
  std::function<bool()> idle;
  std::function<void()> stop;
  std::function<void(const ErasedConfig&)> reload;
};
struct ErasedType {
  std::string name;
  std::string summary;
  std::function<ErasedConfig()> make_config;
  std::function<Status(const ErasedConfig&, const AppContext&)> check;
  std::function<Result<ErasedDaemon>(const ErasedConfig&, const AppContext&)> create;
};
int run(const ErasedType& type, std::span<const char* const> args);

template <DaemonType D>
ErasedConfig erase_config() {
  auto config = std::make_shared<typename D::Config>();
  ErasedConfig erased;
  erased.app = &config->app;
  config->app.declare(erased.schema);
  config->declare(erased.schema);
  erased.validate = [config]() -> Status { return config->validate(); };
  erased.object = std::move(config);
  return erased;
}

template <DaemonType D>
const typename D::Config& config_of(const ErasedConfig& erased) {
  return *static_cast<const typename D::Config*>(erased.object.get());
}

template <DaemonType D>
Result<ErasedDaemon> erase_daemon(const ErasedConfig& config, const AppContext& context) {
  Result<std::unique_ptr<D>> created = D::create(config_of<D>(config), context);
  if (!created.ok()) return std::move(created).error();
  std::shared_ptr<D> daemon = std::move(created).value();
  ErasedDaemon erased;
  erased.start = [d = daemon.get()] { return d->start(); };
  erased.drain = [d = daemon.get()] { d->drain(); };
  erased.idle = [d = daemon.get()] { return d->idle(); };
  erased.stop = [d = daemon.get()] { d->stop(); };
  erased.reload = [d = daemon.get()](const ErasedConfig& fresh) { d->reload(config_of<D>(fresh)); };
  erased.object = std::move(daemon);
  return erased;
}

}  // namespace detail

// Runs the daemon to its end; returns the exit status for main().
template <DaemonType D>
int run_application(int argc, const char* const* argv) {
  detail::ErasedType type;
  type.name = D::kName;
  type.summary = D::kSummary;
  type.make_config = [] { return detail::erase_config<D>(); };
  type.check = [](const detail::ErasedConfig& config, const AppContext& context) -> Status {
    return D::check(detail::config_of<D>(config), context);
  };
  type.create = [](const detail::ErasedConfig& config, const AppContext& context) {
    return detail::erase_daemon<D>(config, context);
  };
  return detail::run(type, {argv + 1, argv + argc});
}

}  // namespace akv
