// What the transport tests share: a pair of ends by kind, a recorder of events, made-up states.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "transport/inproc/inproc_transport.h"
#include "transport/transport.h"
#include "transport/ucx/ucx_transport.h"

namespace akv::transport {

enum class Kind { kInproc, kUcxTcp, kUcxShm };
inline std::string kind_name(Kind kind) {
  return kind == Kind::kInproc ? "inproc" : kind == Kind::kUcxTcp ? "ucx_tcp" : "ucx_shm";
}
inline const HostPort kAnyPort{"127.0.0.1", 0};

inline TransportConfig config_for(Kind kind) {
  TransportConfig config;
  config.ucx_transports = kind == Kind::kUcxShm ? "tcp,posix,sysv" : "tcp";
  config.ucx_devices = "lo";
  config.heartbeat_interval_ms = 100;
  // The tests share a busy machine: only those that stop a peer count on finding it soon.
  config.heartbeat_lost_ms = 20000;
  config.connect_timeout_ms = 30000;
  config.drain_ms = 300;
  return config;
}
inline TransportConfig quick_to_lose(Kind kind) {
  TransportConfig config = config_for(kind);
  config.heartbeat_lost_ms = 1500;
  return config;
}

// Collects a transfer's events; waits for the last. The handler may outlive the recorder.
template <class Event>
class Recorder {
 public:
  auto fn() {
    return [log = log_](const Event& event) {
      std::lock_guard lock(log->mutex);
      EXPECT_FALSE(log->ended) << "an event after the terminal one";
      if (const auto* failed = std::get_if<Failed>(&event)) log->error = failed->error;
      if (std::holds_alternative<Complete>(event) || log->error) {
        log->ended = true;
        log->ended_at = SteadyClock::now();
      } else {
        ++log->records;
      }
      log->changed.notify_all();
    };
  }
  bool wait_end(int64_t ms = 60000) {
    std::unique_lock lock(log_->mutex);
    return log_->changed.wait_for(lock, std::chrono::milliseconds(ms), [&] { return log_->ended; });
  }
  bool wait_records(size_t count, int64_t ms = 60000) {
    std::unique_lock lock(log_->mutex);
    return log_->changed.wait_for(lock, std::chrono::milliseconds(ms), [&] {
      return log_->records >= count || log_->ended;
    }) && log_->records >= count;
  }
  bool ended() const {
    std::lock_guard lock(log_->mutex);
    return log_->ended;
  }
  size_t records() const {
    std::lock_guard lock(log_->mutex);
    return log_->records;
  }
  bool complete() { return wait_end() && !log_->error; }
  // The code it failed with; nothing when it completed or has not ended.
  std::optional<Code> failure() {
    if (!wait_end() || !log_->error) return std::nullopt;
    return log_->error->code;
  }
  // After the end.
  std::string message() const { return log_->error ? log_->error->message : "complete"; }
  TimePoint ended_at() const { return log_->ended_at; }

 private:
  struct Log {
    std::mutex mutex;
    std::condition_variable changed;
    size_t records = 0;
    bool ended = false;
    TimePoint ended_at{};
    std::optional<Error> error;
  };
  std::shared_ptr<Log> log_ = std::make_shared<Log>();
};
using SendRecorder = Recorder<SendEvent>;
using LandRecorder = Recorder<LandEvent>;

// A state: records of the sizes given, filled from the seed, in one buffer.
struct State {
  explicit State(std::vector<size_t> record_sizes, uint32_t seed = 1)
      : sizes(std::move(record_sizes)) {
    size_t total = 0;
    for (size_t size : sizes) total += size;
    bytes.resize(total);
    uint64_t x = 0x9e3779b97f4a7c15ull * (seed + 1);  // xorshift: quick, and no byte repeats
    for (size_t i = 0; i < total; i += 8) {
      x ^= x << 13, x ^= x >> 7, x ^= x << 17;
      std::memcpy(&bytes[i], &x, std::min<size_t>(8, total - i));
    }
  }
  std::span<std::byte> record(size_t index) {
    size_t at = 0;
    for (size_t i = 0; i < index; ++i) at += sizes[i];
    return {bytes.data() + at, sizes[index]};
  }
  std::vector<std::span<std::byte>> records() {
    std::vector<std::span<std::byte>> out;
    for (size_t i = 0; i < sizes.size(); ++i) out.push_back(record(i));
    return out;
  }
  void fill(int value) { std::fill(bytes.begin(), bytes.end(), static_cast<std::byte>(value)); }
  bool all(int value) const {
    return bytes.empty() || (bytes[0] == static_cast<std::byte>(value) &&
                             std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
  }
  std::vector<size_t> sizes;
  std::vector<std::byte> bytes;
};

// One expected landing with its memory, and the address that its sender gets.
struct Expected {
  Expected(Receiver& receiver, std::vector<size_t> sizes, int64_t deadline_ms = 60000)
      : memory(std::move(sizes)) {
    memory.fill(0xaa);
    address.state_address = receiver.address();
    address.transfer = Id128::random();
    address.token = Id128::random();
    address.attempt = 1;
    address.transport = receiver.name();
    address.version = receiver.version();
    LandingSpec spec;
    spec.transfer = address.transfer;
    spec.token = address.token;
    spec.attempt = address.attempt;
    spec.destinations = memory.records();
    spec.deadline = after_ms(deadline_ms);
    spec.on_event = events.fn();
    status = receiver.expect(std::move(spec));
  }
  State memory;
  LandingAddress address;
  LandRecorder events;
  Status status;
};

// The same with device memory beside it (the host's, here). As a decode engine does, each record is
// brought to the side that it did not land in as soon as it is said to be there.
struct ExpectedOnDevice {
  ExpectedOnDevice(Receiver& receiver, std::vector<size_t> sizes)
      : landing(receiver, {}), host(sizes), device(std::move(sizes)) {
    host.fill(0xaa);
    device.fill(0xbb);
    LandingSpec spec;
    landing.address.transfer = spec.transfer = Id128::random();
    landing.address.token = spec.token = Id128::random();
    landing.address.extension = receiver.extension();
    spec.attempt = landing.address.attempt;
    spec.destinations = host.records();
    for (const auto& record : device.records()) spec.device_destinations.push_back(record.data());
    spec.deadline = after_ms(60000);
    spec.on_event = [this, record = events.fn()](const LandEvent& event) {
      if (const auto* landed = std::get_if<RecordLanded>(&event)) bring(*landed);
      record(event);
    };
    status = receiver.expect(std::move(spec));
  }
  bool arrived(const State& state) const {
    return host.bytes == state.bytes && device.bytes == state.bytes;
  }

  Expected landing;  // refused, having no destination: only its address is used
  State host, device;
  LandRecorder events;
  std::atomic<size_t> on_device{0}, on_host{0};
  bool brings = true;  // false: each side keeps what the transport wrote there
  Status status;

 private:
  void bring(const RecordLanded& landed) {
    ++(landed.on_device ? on_device : on_host);
    if (!brings) return;
    const auto here = host.record(landed.record);
    const auto there = device.record(landed.record);
    if (landed.on_device) {
      std::copy(there.begin(), there.end(), here.begin());
    } else {
      std::copy(here.begin(), here.end(), there.begin());
    }
  }
};

// A sender and a receiver that can reach each other.
class Rig {
 public:
  explicit Rig(Kind kind) : Rig(kind, config_for(kind)) {}
  Rig(Kind kind, const TransportConfig& config) : kind_(kind), config_(config) {
    if (kind == Kind::kInproc) network_ = make_inproc_network();
    receiver = new_receiver();
    sender = new_sender();
  }
  std::unique_ptr<Sender> new_sender() { return new_sender(config_); }
  std::unique_ptr<Sender> new_sender(const TransportConfig& config) {
    auto made =
        kind_ == Kind::kInproc ? make_inproc_sender(network_, config) : make_ucx_sender(config);
    EXPECT_TRUE(made.ok()) << made.error().message;
    return std::move(*made);
  }
  std::unique_ptr<Receiver> new_receiver(const HostPort& listen = kAnyPort) {
    auto made = kind_ == Kind::kInproc ? make_inproc_receiver(network_, config_)
                                       : make_ucx_receiver(config_, listen);
    EXPECT_TRUE(made.ok()) << made.error().message;
    return std::move(*made);
  }

 private:
  Kind kind_;
  TransportConfig config_;
  std::shared_ptr<InprocNetwork> network_;

 public:
  std::unique_ptr<Receiver> receiver;
  std::unique_ptr<Sender> sender;
};

inline Payload payload(std::span<const std::byte> bytes) { return {bytes, nullptr}; }

// Posts every record of the state and finishes.
inline void post_all(Sender& sender, ChannelId channel, State& state) {
  for (size_t i = 0; i < state.sizes.size(); ++i) {
    const Status status = sender.post(channel, static_cast<uint32_t>(i), payload(state.record(i)));
    EXPECT_TRUE(status.ok()) << status.error().message;
  }
  EXPECT_TRUE(sender.finish(channel).ok());
}

// A whole transfer whose payloads lie in device memory too; waits for its end.
inline void ship_from_device(Sender& sender, const LandingAddress& to, State& state,
                             SendRecorder& sent) {
  State device = state;
  auto channel = sender.open(to, after_ms(60000), sent.fn());
  ASSERT_TRUE(channel.ok()) << channel.error().message;
  for (uint32_t i = 0; i < state.sizes.size(); ++i) {
    Payload both = payload(state.record(i));
    both.device = device.record(i).data();
    EXPECT_TRUE(sender.post(*channel, i, both).ok());
  }
  EXPECT_TRUE(sender.finish(*channel).ok());
  EXPECT_TRUE(sent.wait_end());
}

}  // namespace akv::transport
