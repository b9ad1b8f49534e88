// A daemon of a few lines under the real application, for application_test: it can be told to fail
// in each phase, and it says on stderr (by the log) which calls it got.
#include <atomic>
#include <chrono>
#include <thread>

#include "common/app/application.h"

namespace akv {
namespace {

struct ToyConfig {
  AppConfig app;
  int load_ms = 0;      // duration of create()
  int busy_ms = 0;      // after drain(), idle() says no for that long; -1: for ever
  std::string fail_in;  // "check", "create", "start", "port", "run", "throw"
  std::string peers;
  int low = 1;
  int high = 2;

  void declare(Schema& s) {
    s.section("Toy");
    s.integer("load-ms", load_ms).unit("ms").range(0, 60'000).doc("duration of loading");
    s.integer("busy-ms", busy_ms).unit("ms").range(-1, 60'000).doc("work left at drain");
    s.text("fail-in", fail_in, "PHASE").doc("phase that fails");
    s.text("peers", peers).doc("peers").reloadable();
    s.integer("low", low).doc("lower bound");
    s.integer("high", high).doc("upper bound");
  }
  Status validate() const {
    if (low <= high) return {};
    return make_error(Code::kInvalidArgument, "--low: got more than --high", "low");
  }
};

class ToyDaemon {
 public:
  using Config = ToyConfig;
  static constexpr std::string_view kName = "toy_daemon";
  static constexpr std::string_view kSummary = "does nothing, in phases";

  static Status check(const Config& config, const AppContext&) {
    if (config.fail_in != "check") return {};
    return make_error(Code::kDataLoss, "the model is cut short");
  }

  static Result<std::unique_ptr<ToyDaemon>> create(const Config& config,
                                                   const AppContext& context) {
    std::this_thread::sleep_for(std::chrono::milliseconds(config.load_ms));
    if (config.fail_in == "throw") throw std::runtime_error("thrown while starting");
    if (config.fail_in == "create") return make_error(Code::kNotFound, "no such model");
    return std::make_unique<ToyDaemon>(config, context);
  }

  ToyDaemon(const Config& config, const AppContext& context) : config_(config), context_(context) {}

  Result<ReadyAddresses> start() {
    if (config_.fail_in == "port") return make_error(Code::kAddressInUse, "control: port taken");
    if (config_.fail_in == "start") return make_error(Code::kInternal, "cannot start");
    if (config_.fail_in == "run") {
      failing_ = std::thread([this] {
        context_.fail(make_error(Code::kIo, "a component died"));
        context_.fail(make_error(Code::kIo, "the second one does not count"));
      });
    }
    return ReadyAddresses{{"http", "127.0.0.1:8080"}, {"control", "127.0.0.1:5"}};
  }

  void drain() { drain_began_ = std::chrono::steady_clock::now(); }
  bool idle() const {
    return config_.busy_ms >= 0 && std::chrono::steady_clock::now() - drain_began_ >=
                                       std::chrono::milliseconds(config_.busy_ms);
  }
  void stop() {
    if (failing_.joinable()) failing_.join();
    context_.log.info("toy stopped");
  }
  void reload(const Config& fresh) { context_.log.debug("toy peers", {{"peers", fresh.peers}}); }

 private:
  const Config config_;
  const AppContext context_;
  std::chrono::steady_clock::time_point drain_began_;
  std::thread failing_;
};

}  // namespace
}  // namespace akv

int main(int argc, char** argv) { return akv::run_application<akv::ToyDaemon>(argc, argv); }
