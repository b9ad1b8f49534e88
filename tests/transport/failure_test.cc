// Peers that die, stop and come back, as real processes.
#include <gtest/gtest.h>

#include "tests/transport/peer_process.h"
#include "tests/transport/rig.h"

namespace akv::transport {
namespace {

// Of which a process that is to be killed or stopped sends all but the last.
constexpr size_t kRecords = 4;
constexpr size_t kRecordBytes = 16 << 20;  // long enough to be caught in flight
// heartbeat_lost_ms of quick_to_lose, drain_ms, and what a loaded machine adds.
constexpr double kFoundWithin_ms = 10000;

class FailureTest : public testing::TestWithParam<Kind> {
 protected:
  std::string tls() const { return GetParam() == Kind::kUcxTcp ? "tcp" : "shm"; }
  PeerProcess sender_process(const HostPort& to, size_t bytes, size_t post) {
    return PeerProcess(AKV_PEER_PROCESS, {"sender", tls(), to.str(), std::to_string(kRecords),
                                          std::to_string(bytes), std::to_string(post)});
  }
  PeerProcess receiver_process(const HostPort& at, size_t bytes) {
    return PeerProcess(AKV_PEER_PROCESS, {"receiver", tls(), at.str(), std::to_string(kRecords),
                                          std::to_string(bytes)});
  }
  static Status expect_peer(Receiver& receiver, State& memory, LandRecorder& events) {
    memory.fill(0xaa);
    LandingSpec spec{kPeerTransfer,    kPeerToken,      kPeerAttempt,
                     memory.records(), after_ms(60000), events.fn()};
    return receiver.expect(std::move(spec));
  }
  static LandingAddress peer_address(const HostPort& at) {
    return {at, kPeerTransfer, kPeerToken, kPeerAttempt, "ucx", ucx_version(), {}};
  }
  static void expect_poison_stays(State& memory) {
    memory.fill(0x77);
    usleep(200000);
    EXPECT_TRUE(memory.all(0x77)) << "written after the terminal event";
  }
  std::vector<size_t> sizes = std::vector<size_t>(kRecords, kRecordBytes);
};

TEST_P(FailureTest, SenderKilledWithRecordsInFlight) {
  Rig rig(GetParam(), quick_to_lose(GetParam()));
  State memory(sizes);
  {
    LandRecorder events;
    ASSERT_TRUE(expect_peer(*rig.receiver, memory, events).ok());
    auto peer = sender_process(rig.receiver->address(), kRecordBytes, kRecords - 1);
    ASSERT_TRUE(events.wait_records(1));
    const TimePoint killed = SteadyClock::now();
    peer.signal(SIGKILL);
    EXPECT_EQ(events.failure(), Code::kUnavailable) << events.message();
    EXPECT_LT(ms_between(killed, events.ended_at()), kFoundWithin_ms);
    expect_poison_stays(memory);
  }
  // The dead sender may have blocked the shared queue for good: transport/ucx/README.md.
  if (GetParam() == Kind::kUcxShm) return;
  // The same transfer by another sender is a new landing.
  LandRecorder events;
  ASSERT_TRUE(expect_peer(*rig.receiver, memory, events).ok());
  State state(sizes, kPeerSeed);
  SendRecorder sent;
  auto channel =
      rig.sender->open(peer_address(rig.receiver->address()), after_ms(60000), sent.fn());
  ASSERT_TRUE(channel.ok());
  post_all(*rig.sender, *channel, state);
  EXPECT_TRUE(sent.complete()) << sent.message();
  EXPECT_TRUE(events.complete()) << events.message();
  EXPECT_TRUE(state.bytes == memory.bytes);
}

TEST_P(FailureTest, HalfSentStateOfAKilledSender) {
  Rig rig(GetParam(), quick_to_lose(GetParam()));
  State memory(std::vector<size_t>(kRecords, 5000));
  LandRecorder events;
  ASSERT_TRUE(expect_peer(*rig.receiver, memory, events).ok());
  auto peer = sender_process(rig.receiver->address(), 5000, 2);
  ASSERT_TRUE(events.wait_records(2));
  usleep(100000);
  EXPECT_FALSE(events.ended());
  peer.signal(SIGKILL);
  EXPECT_EQ(events.failure(), Code::kUnavailable) << events.message();
  EXPECT_EQ(events.records(), 2u);
}

TEST_P(FailureTest, StoppedSenderIsFoundByHeartbeatAndCannotWriteLater) {
  Rig rig(GetParam(), quick_to_lose(GetParam()));
  State memory(sizes);
  LandRecorder events;
  ASSERT_TRUE(expect_peer(*rig.receiver, memory, events).ok());
  auto peer = sender_process(rig.receiver->address(), kRecordBytes, kRecords - 1);
  ASSERT_TRUE(events.wait_records(1));
  peer.signal(SIGSTOP);
  const TimePoint stopped = SteadyClock::now();
  ASSERT_TRUE(events.wait_end());
  EXPECT_EQ(events.failure(), Code::kUnavailable) << events.message();
  EXPECT_LT(ms_between(stopped, events.ended_at()), kFoundWithin_ms);
  memory.fill(0x77);
  peer.signal(SIGCONT);
  EXPECT_EQ(peer.expect("failed "), "unavailable ");
  usleep(200000);
  EXPECT_TRUE(memory.all(0x77)) << "written after the terminal event";
}

TEST_P(FailureTest, IdleStoppedSenderIsFoundByHeartbeat) {
  Rig rig(GetParam(), quick_to_lose(GetParam()));
  State memory(std::vector<size_t>(kRecords, 5000));
  LandRecorder events;
  ASSERT_TRUE(expect_peer(*rig.receiver, memory, events).ok());
  auto peer = sender_process(rig.receiver->address(), 5000, 1);
  ASSERT_TRUE(events.wait_records(1));
  usleep(1700000);  // longer than heartbeat_lost_ms: a live peer is not lost
  EXPECT_FALSE(events.ended());
  peer.signal(SIGSTOP);
  EXPECT_EQ(events.failure(), Code::kUnavailable) << events.message();
  EXPECT_NE(events.message().find("no sign of life"), std::string::npos) << events.message();
}

TEST_P(FailureTest, CancelEndsALandingOfAStoppedSenderBeforeTheHeartbeat) {
  TransportConfig config = config_for(GetParam());
  config.heartbeat_interval_ms = 5000;
  config.heartbeat_lost_ms = 60000;
  Rig rig(GetParam(), config);
  State memory(sizes);
  LandRecorder events;
  ASSERT_TRUE(expect_peer(*rig.receiver, memory, events).ok());
  auto peer = sender_process(rig.receiver->address(), kRecordBytes, kRecords - 1);
  ASSERT_TRUE(events.wait_records(1));
  peer.signal(SIGSTOP);
  usleep(20000);
  const TimePoint cancelled = SteadyClock::now();
  rig.receiver->cancel(kPeerTransfer);
  EXPECT_EQ(events.failure(), Code::kCancelled) << events.message();
  EXPECT_LT(ms_between(cancelled, events.ended_at()), kFoundWithin_ms);
  memory.fill(0x77);
  peer.signal(SIGCONT);
  EXPECT_FALSE(peer.expect("failed ").empty());
  EXPECT_TRUE(memory.all(0x77)) << "written after the terminal event";
}

TEST_P(FailureTest, ReceiverKilledAndRestartedAtTheSameAddress) {
  Rig rig(GetParam(), quick_to_lose(GetParam()));
  State state(sizes, kPeerSeed);
  auto peer = std::make_unique<PeerProcess>(
      AKV_PEER_PROCESS,
      std::vector<std::string>{"receiver", tls(), "127.0.0.1:0", std::to_string(kRecords),
                               std::to_string(kRecordBytes)});
  std::string where = peer->expect("listening ");
  ASSERT_FALSE(where.empty());
  where.pop_back();
  const HostPort address = *parse_host_port(where);
  SendRecorder first;
  auto channel = rig.sender->open(peer_address(address), after_ms(60000), first.fn());
  ASSERT_TRUE(channel.ok());
  post_all(*rig.sender, *channel, state);
  ASSERT_TRUE(first.wait_records(1));
  peer->signal(SIGKILL);
  const TimePoint killed = SteadyClock::now();
  ASSERT_TRUE(first.wait_end());
  if (first.failure().has_value()) {
    EXPECT_EQ(first.failure(), Code::kUnavailable) << first.message();
    EXPECT_LT(ms_between(killed, first.ended_at()), kFoundWithin_ms);
  }
  peer.reset();
  auto again = receiver_process(address, kRecordBytes);
  ASSERT_FALSE(again.expect("listening ").empty());
  SendRecorder second;
  channel = rig.sender->open(peer_address(address), after_ms(60000), second.fn());
  ASSERT_TRUE(channel.ok());
  post_all(*rig.sender, *channel, state);
  EXPECT_TRUE(second.complete()) << second.message();
  EXPECT_FALSE(again.expect("complete").empty());
}

TEST_P(FailureTest, StoppedReceiverNeverCompletesWithBytesOfAReusedBuffer) {
  Rig rig(GetParam(), quick_to_lose(GetParam()));
  State state(sizes, kPeerSeed);
  auto peer = receiver_process(kAnyPort, kRecordBytes);
  std::string where = peer.expect("listening ");
  ASSERT_FALSE(where.empty());
  where.pop_back();
  SendRecorder events;
  auto channel =
      rig.sender->open(peer_address(*parse_host_port(where)), after_ms(60000), events.fn());
  ASSERT_TRUE(channel.ok());
  // All but one: the transfer cannot complete before the stop.
  for (uint32_t i = 0; i + 1 < kRecords; ++i) {
    ASSERT_TRUE(rig.sender->post(*channel, i, payload(state.record(i))).ok());
  }
  ASSERT_FALSE(peer.expect("record").empty());
  peer.signal(SIGSTOP);
  const TimePoint stopped = SteadyClock::now();
  EXPECT_EQ(events.failure(), Code::kUnavailable) << events.message();
  EXPECT_LT(ms_between(stopped, events.ended_at()), kFoundWithin_ms);
  state.fill(0x11);  // the buffers belong to the caller again
  peer.signal(SIGCONT);
  EXPECT_FALSE(peer.expect("failed ").empty());
  for (const std::string& line : peer.seen()) EXPECT_NE(line, "complete");
}

TEST_P(FailureTest, CancelTowardsAStoppedReceiverFreesTheBuffersInTime) {
  TransportConfig config = config_for(GetParam());
  config.heartbeat_interval_ms = 5000;
  config.heartbeat_lost_ms = 60000;
  Rig rig(GetParam(), config);
  State state(sizes, kPeerSeed);
  auto peer = receiver_process(kAnyPort, kRecordBytes);
  std::string where = peer.expect("listening ");
  ASSERT_FALSE(where.empty());
  where.pop_back();
  SendRecorder events;
  auto channel =
      rig.sender->open(peer_address(*parse_host_port(where)), after_ms(60000), events.fn());
  ASSERT_TRUE(channel.ok());
  ASSERT_TRUE(rig.sender->post(*channel, 0, payload(state.record(0))).ok());
  ASSERT_FALSE(peer.expect("record").empty());
  peer.signal(SIGSTOP);
  usleep(20000);
  for (uint32_t i = 1; i < kRecords; ++i) {
    ASSERT_TRUE(rig.sender->post(*channel, i, payload(state.record(i))).ok());
  }
  usleep(50000);
  const TimePoint cancelled = SteadyClock::now();
  rig.sender->cancel(*channel);
  EXPECT_EQ(events.failure(), Code::kCancelled) << events.message();
  EXPECT_LT(ms_between(cancelled, events.ended_at()), kFoundWithin_ms);
  EXPECT_EQ(rig.sender->stats().records_inflight, 0u);
}

INSTANTIATE_TEST_SUITE_P(Transports, FailureTest, testing::Values(Kind::kUcxTcp, Kind::kUcxShm),
                         [](const auto& kind) { return kind_name(kind.param); });

}  // namespace
}  // namespace akv::transport
