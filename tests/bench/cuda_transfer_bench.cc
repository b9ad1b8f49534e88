// How fast a state goes from device memory to device memory on one GPU, against the rate at which
// the GPU copies the same bytes by itself, in the same run: over UCX between two processes
// (cuda_ipc), and over NCCL by a rank that sends to itself. Contents are checked.
//
// usage: cuda_transfer_bench [record MiB, default 8] [records, default 32]
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/clock.h"
#include "common/device/device.h"
#include "common/device/memory.h"
#include "common/device/stream.h"
#include "tests/bench/cuda_bench.h"
#include "transport/nccl/nccl.h"
#include "transport/ucx/ucx_transport.h"

namespace akv::transport {
namespace {

constexpr int kRounds = 12;
constexpr int64_t kPatienceMs = 30000;

struct Shape {
  size_t record_bytes = 8 << 20;
  size_t records = 32;
  size_t bytes() const { return records * record_bytes; }
};

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

template <class T>
T must(Result<T> result, const char* what) {
  if (!result.ok()) fail(std::string(what) + ": " + result.error().message);
  return std::move(*result);
}
void must(const Status& status, const char* what) {
  if (!status.ok()) fail(std::string(what) + ": " + status.error().message);
}

std::string described(const Shape& shape) {
  return std::to_string(shape.records) + " x " + std::to_string(shape.record_bytes >> 20) + " MiB";
}

std::vector<std::byte> make_state(const Shape& shape) {
  std::vector<std::byte> state(shape.bytes());
  uint64_t x = 88172645463325252ull;
  for (size_t i = 0; i < state.size(); i += sizeof(x)) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    std::copy_n(reinterpret_cast<const std::byte*>(&x), sizeof(x), &state[i]);
  }
  return state;
}

TransportConfig config_on(const Device& device) {
  TransportConfig config;
  config.ucx_devices = "lo";
  config.device_memory = DeviceMemory::kCuda;
  config.on_thread_start = [device] { (void)use_device(device).ok(); };
  config.on_notice = [](std::string_view line) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  };
  return config;
}

// A state in device memory, and in host memory beside it. A prefill node sends from memory that can
// be exported; a decode node lands in that of a stream-ordered pool.
struct Memory {
  enum class Kind { kExported, kPooled };
  Memory(const Device& device, const Shape& shape, Kind kind)
      : stream(must(Stream::create(device), "stream")), on_host(shape.bytes()) {
    if (kind == Kind::kExported) {
      on_device = must(DeviceBuffer::allocate(device, shape.bytes()), "device memory");
      return;
    }
    pool = must(DevicePool::create(device, device.memory_bytes), "pool");
    on_device = must(pool->allocate(shape.bytes(), stream), "device memory");
    must(stream.synchronize(), "device memory");
  }
  void upload(std::span<const std::byte> from) {
    must(stream.copy_to_device(on_device.data(), from), "upload");
    must(stream.synchronize(), "upload");
  }
  std::vector<std::byte> download() {
    std::vector<std::byte> out(on_host.size());
    must(stream.copy_to_host(out, on_device.data()), "download");
    must(stream.synchronize(), "download");
    return out;
  }
  Stream stream;
  std::shared_ptr<DevicePool> pool;
  DeviceBuffer on_device;
  std::vector<std::byte> on_host;
};

// The fixed key of a round, so that the two processes need not talk about it.
Id128 id_of(int round) { return {7, static_cast<uint64_t>(round) + 1}; }

// What the receiving process says, over a pipe: its port and offer once, then after each round.
struct Offer {
  uint16_t port = 0;
  char extension[64] = {};
};
struct Landed {
  bool ok = false;
  uint64_t device_records = 0;
};

template <class T>
void put(int fd, const T& value) {
  if (write(fd, &value, sizeof(value)) != sizeof(value)) fail("the sending process is gone");
}
template <class T>
T get(int fd) {
  T value;
  if (read(fd, &value, sizeof(value)) != sizeof(value)) fail("the receiving process is gone");
  return value;
}

void run_receiver(const Shape& shape, int fd) {
  const Device device = must(choose_device("cuda"), "device").device;
  Memory memory(device, shape, Memory::Kind::kPooled);
  const uint64_t truth = xxh3_64(make_state(shape));
  auto receiver = must(make_ucx_receiver(config_on(device), HostPort{"127.0.0.1", 0}), "receiver");
  Offer offer;
  offer.port = receiver->address().port;
  receiver->extension().copy(offer.extension, sizeof(offer.extension) - 1);
  put(fd, offer);
  for (int round = 0; round <= kRounds; ++round) {
    must(memory.stream.fill(memory.on_device.data(), 0, shape.bytes()), "clear");
    must(memory.stream.synchronize(), "clear");
    std::promise<bool> ended;
    LandingSpec spec;
    spec.transfer = id_of(round);
    spec.token = {1, 1};
    for (size_t i = 0; i < shape.records; ++i) {
      spec.destinations.emplace_back(&memory.on_host[i * shape.record_bytes], shape.record_bytes);
      spec.device_destinations.push_back(memory.on_device.data() + i * shape.record_bytes);
    }
    spec.deadline = after_ms(kPatienceMs);
    spec.on_event = [&](const LandEvent& event) {
      if (std::holds_alternative<RecordLanded>(event)) return;
      ended.set_value(std::holds_alternative<Complete>(event));
    };
    must(receiver->expect(std::move(spec)), "expect");
    put(fd, Landed{});  // ready
    const bool complete = ended.get_future().get();
    const uint64_t on_device = receiver->stats().device_records;
    const bool same = on_device == 0 || xxh3_64(memory.download()) == truth;
    put(fd, Landed{complete && same, on_device});
  }
}

// Bytes a second that the device copies from one place of its own to another.
double copy_rate(const Device& device, const Shape& shape) {
  Memory memory(device, shape, Memory::Kind::kExported);
  const auto other = must(DeviceBuffer::allocate(device, shape.bytes()), "device memory");
  const auto begin = must(Event::create(device, true), "event");
  const auto end = must(Event::create(device, true), "event");
  double best = 0;
  for (int round = 0; round <= kRounds; ++round) {
    must(begin.record(memory.stream), "event");
    must(memory.stream.copy_on_device(other.data(), memory.on_device.data(), shape.bytes()),
         "copy");
    must(end.record(memory.stream), "event");
    must(end.synchronize(), "event");
    const double seconds = must(Event::seconds_between(begin, end), "event");
    best = std::max(best, static_cast<double>(shape.bytes()) / seconds);
  }
  return best;
}

// Lines of one way: its rate, and what that is of the device's own.
void report_rate(const bench::Report& report, const std::string& config, double rate, double copy) {
  report.figure(
      {.config = config, .metric = "state transfer", .value = rate / 1e9, .unit = "GB/s"});
  report.figure({.config = config,
                 .metric = "state transfer over the device's copy",
                 .value = rate / copy,
                 .unit = "x",
                 .reach = 0.90,
                 .aim = 0.97});
}

double send_state(Sender& sender, const LandingAddress& to, const Shape& shape, Memory& memory) {
  std::promise<bool> ended;
  const TimePoint begin = SteadyClock::now();
  const auto channel = must(sender.open(to, after_ms(kPatienceMs),
                                        [&](const SendEvent& event) {
                                          if (std::holds_alternative<RecordSent>(event)) return;
                                          ended.set_value(std::holds_alternative<Complete>(event));
                                        }),
                            "open");
  for (size_t i = 0; i < shape.records; ++i) {
    Payload payload;
    payload.bytes = {&memory.on_host[i * shape.record_bytes], shape.record_bytes};
    payload.device = memory.on_device.data() + i * shape.record_bytes;
    must(sender.post(channel, static_cast<uint32_t>(i), std::move(payload)), "post");
  }
  must(sender.finish(channel), "finish");
  if (!ended.get_future().get()) fail("a state did not arrive over UCX");
  return ms_since(begin) / 1000;
}

void bench_ucx(const bench::Report& report, const Device& device, const Shape& shape, double copy,
               int from_receiver) {
  const Offer offer = get<Offer>(from_receiver);
  Memory memory(device, shape, Memory::Kind::kExported);
  memory.on_host = make_state(shape);
  memory.upload(memory.on_host);
  auto sender = must(make_ucx_sender(config_on(device)), "sender");
  double best = 0;
  uint64_t on_device = 0;
  for (int round = 0; round <= kRounds; ++round) {
    (void)get<Landed>(from_receiver);
    LandingAddress to;
    to.state_address = HostPort{"127.0.0.1", offer.port};
    to.transfer = id_of(round);
    to.token = {1, 1};
    to.transport = "ucx";
    to.version = ucx_version();
    to.extension = offer.extension;
    const double seconds = send_state(*sender, to, shape, memory);
    const Landed landed = get<Landed>(from_receiver);
    if (!landed.ok) fail("a state arrived changed over UCX");
    on_device = landed.device_records;
    // The first round connects and maps.
    if (round > 0) best = std::max(best, static_cast<double>(shape.bytes()) / seconds);
  }
  if (on_device == 0) fail("UCX moves no device memory here");
  report_rate(report, "UCX, two processes, " + described(shape), best, copy);
}

void bench_nccl(const bench::Report& report, const Device& device, const Shape& shape,
                double copy) {
  const std::string config = "NCCL, a rank to itself, " + described(shape);
  auto nccl = load_nccl(device.ordinal);
  if (!nccl.ok()) return report.missing(config, "state transfer", nccl.error().message);
  auto link = must((*nccl)->join_alone(), "NCCL");
  while (!must(link->ready(), "NCCL")) {
  }
  Memory from(device, shape, Memory::Kind::kExported);
  Memory to(device, shape, Memory::Kind::kPooled);
  from.on_host = make_state(shape);
  from.upload(from.on_host);
  const auto wait = [&](uint64_t operation) {
    while (!must(link->done(operation), "NCCL")) {
    }
  };
  double best = 0;
  for (int round = 0; round <= kRounds; ++round) {
    const TimePoint begin = SteadyClock::now();
    std::vector<uint64_t> flying;
    for (size_t i = 0; i < shape.records; ++i) {
      while (flying.size() + 2 > link->window()) {
        wait(flying.front());
        flying.erase(flying.begin());
      }
      const size_t at = i * shape.record_bytes;
      const std::span<std::byte> host(&to.on_host[at], shape.record_bytes);
      flying.push_back(must(link->send(host, from.on_device.data() + at), "NCCL"));
      flying.push_back(must(link->receive(host, to.on_device.data() + at), "NCCL"));
    }
    for (const uint64_t operation : flying) wait(operation);
    const double seconds = ms_since(begin) / 1000;
    if (round > 0) best = std::max(best, static_cast<double>(shape.bytes()) / seconds);
  }
  if (to.download() != from.on_host) fail("a state arrived changed over NCCL");
  report_rate(report, config, best, copy);
}

int measure(const Shape& shape, int from_receiver) {
  bench::Report report("cuda_transfer");
  if (const std::string why = bench::no_device(); !why.empty()) {
    report.skipped(why);
    return 0;
  }
  double copy = 0;
  const bool copied = report.attempt("device", "copy", [&] {
    copy = copy_rate(must(choose_device("cuda"), "device").device, shape);
    report.figure({.config = "device, " + described(shape),
                   .metric = "copy on the device",
                   .value = copy / 1e9,
                   .unit = "GB/s"});
  });
  if (!copied) return report.status();
  const Device device = must(choose_device("cuda"), "device").device;
  report.attempt("UCX", "state transfer",
                 [&] { bench_ucx(report, device, shape, copy, from_receiver); });
  report.attempt("NCCL", "state transfer", [&] { bench_nccl(report, device, shape, copy); });
  return report.status();
}

int run(int argc, char** argv) {
  Shape shape;
  if (argc > 1) shape.record_bytes = std::strtoul(argv[1], nullptr, 10) << 20;
  if (argc > 2) shape.records = std::strtoul(argv[2], nullptr, 10);
  int ends[2];
  if (shape.bytes() == 0 || pipe(ends) != 0) return 2;
  // Before CUDA or a thread is begun: the other process is a copy of this one.
  const pid_t receiver = fork();
  if (receiver < 0) return 2;
  if (receiver == 0) {
    close(ends[0]);
    try {
      run_receiver(shape, ends[1]);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "cuda_transfer_bench, receiving: %s\n", e.what());
      return 1;
    }
    return 0;
  }
  close(ends[1]);
  const int status = measure(shape, ends[0]);
  close(ends[0]);
  kill(receiver, SIGTERM);  // it is over, or waits for a state that will not come
  waitpid(receiver, nullptr, 0);
  return status;
}

}  // namespace
}  // namespace akv::transport

int main(int argc, char** argv) { return akv::transport::run(argc, argv); }
