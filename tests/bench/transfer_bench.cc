// How fast a state crosses loopback between two processes, against the ucx_perftest of the same
// UCX in the same run, with the same transports, devices and error mode; twice with our segment
// sizes as well (messages as large as our records; one of the whole state), once as it comes.
//
//   transfer_bench [--transports tcp|tcp,posix,sysv] [--mib 64] [--record-kib 2048] [--rounds 15]
//
// One JSON object; status 1 where either side gave no figure. Ours counts from open() on a warm
// connection to the moment when the receiving process has checked the XXH3 of every record;
// perftest's rate knows neither records nor checksums.
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "common/base/bounded_queue.h"
#include "common/base/checksum.h"
#include "transport/ucx/ucx_transport.h"

namespace akv::transport {
namespace {

struct Options {
  std::string transports = "tcp";
  size_t mib = 64;
  size_t record_kib = 2048;
  int rounds = 15;
  size_t records() const { return (mib << 10) / record_kib; }
  size_t record_bytes() const { return record_kib << 10; }
};

TransportConfig config_of(const Options& options) {
  TransportConfig config;
  config.ucx_transports = options.transports;
  config.ucx_devices = "lo";
  return config;
}

int64_t now_ns() { return SteadyClock::now().time_since_epoch().count(); }  // same in all processes

// The fixed key of round r, so that the two processes need not talk about it.
Id128 id_of(int round) { return {7, static_cast<uint64_t>(round) + 1}; }

std::vector<std::byte> make_state(const Options& options) {
  std::vector<std::byte> state(options.records() * options.record_bytes());
  uint64_t x = 88172645463325252ull;
  for (size_t i = 0; i < state.size(); i += 8) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    std::memcpy(&state[i], &x, 8);
  }
  return state;
}

// Child: lands each round into the same memory, checks it, prints "done ROUND TIME_NS".
int run_receiver(const Options& options) {
  const std::vector<std::byte> truth = make_state(options);
  const size_t records = options.records(), bytes = options.record_bytes();
  std::vector<uint64_t> sums;
  for (size_t i = 0; i < records; ++i) sums.push_back(xxh3_64({&truth[i * bytes], bytes}));
  std::vector<std::byte> memory(truth.size());
  std::vector<std::span<std::byte>> spans;
  for (size_t i = 0; i < records; ++i) spans.emplace_back(&memory[i * bytes], bytes);
  auto receiver = make_ucx_receiver(config_of(options), HostPort{"127.0.0.1", 0});
  if (!receiver.ok()) return 1;
  std::printf("listening %u\n", (*receiver)->address().port);
  for (int round = 0; round <= options.rounds; ++round) {
    std::memset(memory.data(), 0, memory.size());
    BoundedQueue<uint32_t> landed(records + 1);
    LandingSpec spec;
    spec.transfer = id_of(round);
    spec.token = {1, 1};
    spec.destinations = spans;
    spec.deadline = after_ms(60000);
    spec.on_event = [&](const LandEvent& event) {
      if (const auto* record = std::get_if<RecordLanded>(&event)) {
        (void)landed.try_push(uint32_t{record->record});
      } else {
        landed.close();
      }
    };
    if (!(*receiver)->expect(std::move(spec)).ok()) return 1;
    std::printf("ready %d\n", round);
    std::fflush(stdout);
    size_t good = 0;
    while (auto record = landed.pop_until(after_ms(60000))) {
      good += xxh3_64({&memory[*record * bytes], bytes}) == sums[*record];
    }
    if (good != records) return 1;
    std::printf("done %lld\n", static_cast<long long>(now_ns()));
    std::fflush(stdout);
  }
  return 0;
}

// A child process whose standard output is read by lines.
class Child {
 public:
  Child(std::vector<std::string> args, std::vector<std::string> extra_env) {
    int out[2];
    if (pipe2(out, O_CLOEXEC) != 0) std::abort();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    std::vector<char*> argv, env;
    for (auto& arg : args) argv.push_back(arg.data());
    for (char** e = environ; *e != nullptr; ++e) env.push_back(*e);
    for (auto& e : extra_env) env.insert(env.begin(), e.data());
    argv.push_back(nullptr);
    env.push_back(nullptr);
    if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), env.data()) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    file_ = fdopen(out[0], "r");
  }
  ~Child() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    std::fclose(file_);
  }
  // The rest of the next line that starts with `prefix`; empty at the end of output.
  std::string line(const std::string& prefix) {
    char text[1024];
    while (std::fgets(text, sizeof(text), file_) != nullptr) {
      if (std::strncmp(text, prefix.c_str(), prefix.size()) == 0) return text + prefix.size();
    }
    return {};
  }

 private:
  pid_t pid_ = -1;
  FILE* file_ = nullptr;
};

struct Rates {
  double best = 0;
  double median = 0;
};

Rates rates_of(std::vector<double> mb_per_s) {
  if (mb_per_s.empty()) return {};
  std::sort(mb_per_s.begin(), mb_per_s.end());
  return {mb_per_s.back(), mb_per_s[mb_per_s.size() / 2]};
}

Rates run_ours(const Options& o, const char* self) {
  Child child({self, "--receive", "--transports", o.transports, "--mib", std::to_string(o.mib),
               "--record-kib", std::to_string(o.record_kib), "--rounds", std::to_string(o.rounds)},
              {});
  const HostPort to{"127.0.0.1",
                    static_cast<uint16_t>(std::atoi(child.line("listening ").c_str()))};
  const std::vector<std::byte> state = make_state(o);
  auto sender = make_ucx_sender(config_of(o));
  if (!sender.ok() || to.port == 0) return {};
  std::vector<double> rates;
  for (int round = 0; round <= o.rounds; ++round) {
    if (child.line("ready ").empty()) return {};
    std::promise<bool> ended;
    const int64_t start = now_ns();
    LandingAddress address;
    address.state_address = to;
    address.transfer = id_of(round);
    address.token = {1, 1};
    address.transport = "ucx";
    address.version = ucx_version();
    auto channel = (*sender)->open(address, after_ms(60000), [&](const SendEvent& event) {
      if (std::holds_alternative<RecordSent>(event)) return;
      ended.set_value(std::holds_alternative<Complete>(event));
    });
    if (!channel.ok()) return {};
    for (size_t i = 0; i < o.records(); ++i) {
      (void)(*sender)->post(*channel, static_cast<uint32_t>(i),
                            {{&state[i * o.record_bytes()], o.record_bytes()}, nullptr});
    }
    (void)(*sender)->finish(*channel);
    if (!ended.get_future().get()) return {};
    const std::string done = child.line("done ");
    if (done.empty()) return {};
    const auto ns = static_cast<double>(std::atoll(done.c_str()) - start);
    if (round > 0) rates.push_back(static_cast<double>(state.size()) / 1e6 / (ns / 1e9));
  }
  return rates_of(std::move(rates));
}

// Three runs of the wheel's own tool; its "Final:" row has the average MB/s (of 2^20) in column 5.
// Messages of `bytes`; it sends and receives one buffer again and again. `ours`: with the segment
// sizes that the transport sets, not UCX's own.
Rates run_perftest(const Options& o, size_t bytes, bool ours) {
  std::vector<std::string> env = {
      "UCX_TLS=" + o.transports,    "UCX_NET_DEVICES=lo",
      "UCX_POSIX_ERROR_HANDLING=y", "UCX_SYSV_ERROR_HANDLING=y",
      "UCX_TCP_CM_REUSEADDR=y",     "LD_LIBRARY_PATH=" AKV_UCX_PREFIX "/lib"};
  if (ours) {
    env.emplace_back("UCX_TCP_RX_SEG_SIZE=512K");
    env.emplace_back("UCX_TCP_TX_SEG_SIZE=512K");
  }
  static int runs = 0;
  const std::string tool = AKV_UCX_PREFIX "/bin/ucx_perftest";
  std::vector<double> rates;
  for (int run = 0; run < 3; ++run) {
    const std::string port = std::to_string(23000 + getpid() % 10000 + runs++);
    const std::vector<std::string> common = {
        tool,        "-t",
        "ucp_am_bw", "-e",
        "-s",        std::to_string(bytes),
        "-n",        std::to_string((o.mib << 20) * 10 / bytes),
        "-w",        "32",
        "-p",        port};
    Child server(common, env);
    usleep(1000000);  // its listener comes up silently
    std::vector<std::string> args = common;
    args.insert(args.begin() + 1, "127.0.0.1");
    Child client(args, env);
    const std::string row = client.line("Final:");
    double value[6] = {};
    if (std::sscanf(row.c_str(), "%lf %lf %lf %lf %lf %lf", &value[0], &value[1], &value[2],
                    &value[3], &value[4], &value[5]) >= 5) {
      rates.push_back(value[4] * 1.048576);
    }
  }
  return rates_of(std::move(rates));
}

int run(int argc, char** argv) {
  Options options;
  bool receive = false;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--receive") {
      receive = true;
      continue;
    }
    if (i + 1 >= argc) return 2;
    const char* value = argv[++i];
    if (flag == "--transports") options.transports = value;
    if (flag == "--mib") options.mib = std::strtoul(value, nullptr, 10);
    if (flag == "--record-kib") options.record_kib = std::strtoul(value, nullptr, 10);
    if (flag == "--rounds") options.rounds = std::atoi(value);
  }
  if (options.mib == 0 || options.record_kib == 0 || options.records() == 0) return 2;
  if (receive) return run_receiver(options);
  const Rates ours = run_ours(options, argv[0]);
  const Rates peer = run_perftest(options, options.record_bytes(), true);
  const Rates whole = run_perftest(options, options.mib << 20, true);
  const Rates plain = run_perftest(options, options.mib << 20, false);
  if (ours.best <= 0) std::fprintf(stderr, "transfer_bench: no state arrived\n");
  if (peer.best <= 0) std::fprintf(stderr, "transfer_bench: ucx_perftest gave no figure\n");
  if (ours.best <= 0 || peer.best <= 0) return 1;
  std::printf(
      "{\"what\":\"transfer\",\"transports\":\"%s\",\"mib\":%zu,\"record_kib\":%zu,"
      "\"best_mb_per_s\":%.0f,\"median_mb_per_s\":%.0f,\"perftest_best_mb_per_s\":%.0f,"
      "\"perftest_median_mb_per_s\":%.0f,\"ratio_best\":%.3f,\"ratio_median\":%.3f,"
      "\"perftest_whole_best_mb_per_s\":%.0f,\"perftest_whole_median_mb_per_s\":%.0f,"
      "\"perftest_plain_best_mb_per_s\":%.0f,\"perftest_plain_median_mb_per_s\":%.0f}\n",
      options.transports.c_str(), options.mib, options.record_kib, ours.best, ours.median,
      peer.best, peer.median, ours.best / peer.best, ours.median / peer.median, whole.best,
      whole.median, plain.best, plain.median);
  return 0;
}

}  // namespace
}  // namespace akv::transport

int main(int argc, char** argv) { return akv::transport::run(argc, argv); }
