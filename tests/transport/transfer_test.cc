// The contract of transport.h, one body for every implementation.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "tests/transport/rig.h"

namespace akv::transport {
namespace {

class TransferTest : public testing::TestWithParam<Kind> {
 protected:
  ChannelId open(Rig& rig, const LandingAddress& to, SendRecorder& events,
                 int64_t deadline_ms = 60000) {
    auto channel = rig.sender->open(to, after_ms(deadline_ms), events.fn());
    EXPECT_TRUE(channel.ok()) << channel.error().message;
    return channel.ok() ? *channel : ChannelId{};
  }
};

TEST_P(TransferTest, RecordsOfManySizesArriveUnchanged) {
  Rig rig(GetParam());
  const std::vector<size_t> sizes = {1,     2,      63,      4096,    32768,   32769,
                                     65537, 524288, 1000003, 3 << 20, 8 << 20, 17};
  State state(sizes);
  Expected expected(*rig.receiver, sizes);
  ASSERT_TRUE(expected.status.ok());
  SendRecorder events;
  post_all(*rig.sender, open(rig, expected.address, events), state);
  EXPECT_TRUE(events.complete()) << events.message();
  EXPECT_TRUE(expected.events.complete()) << expected.events.message();
  EXPECT_EQ(events.records(), sizes.size());
  EXPECT_EQ(expected.events.records(), sizes.size());
  EXPECT_TRUE(state.bytes == expected.memory.bytes);
  EXPECT_EQ(rig.sender->stats().bytes, state.bytes.size());
  EXPECT_EQ(rig.receiver->stats().bytes, state.bytes.size());
}

TEST_P(TransferTest, RecordsMayComeInAnyOrderAndAsTheyGetReady) {
  Rig rig(GetParam());
  const std::vector<size_t> sizes = {100, 200000, 300, 400000};
  State state(sizes);
  Expected expected(*rig.receiver, sizes);
  SendRecorder events;
  const ChannelId channel = open(rig, expected.address, events);
  size_t posted = 0;
  for (uint32_t record : {2u, 3u, 0u, 1u}) {
    ASSERT_TRUE(rig.sender->post(channel, record, payload(state.record(record))).ok());
    ASSERT_TRUE(expected.events.wait_records(++posted));
  }
  // All has landed, and the sender has not said that it is done: only the receiver completes.
  EXPECT_TRUE(expected.events.complete()) << expected.events.message();
  EXPECT_FALSE(events.ended());
  ASSERT_TRUE(rig.sender->finish(channel).ok());
  EXPECT_TRUE(events.complete()) << events.message();
  EXPECT_TRUE(state.bytes == expected.memory.bytes);
  EXPECT_FALSE(rig.sender->post(channel, 0, payload(state.record(0))).ok());
}

TEST_P(TransferTest, KeepaliveIsHeldUntilSentAndNoLonger) {
  Rig rig(GetParam());
  Expected expected(*rig.receiver, {2 << 20});
  SendRecorder events;
  const ChannelId channel = open(rig, expected.address, events);
  auto owner = std::make_shared<State>(std::vector<size_t>{2 << 20});
  const std::vector<std::byte> copy = owner->bytes;
  std::weak_ptr<State> watch = owner;
  ASSERT_TRUE(rig.sender->post(channel, 0, Payload{owner->record(0), owner}).ok());
  owner.reset();
  ASSERT_TRUE(rig.sender->finish(channel).ok());
  EXPECT_TRUE(events.complete()) << events.message();
  EXPECT_TRUE(expected.events.complete())
      << expected.events.message();  // orders the landing before the comparison
  for (int i = 0; i < 2000 && !watch.expired(); ++i) usleep(1000);
  EXPECT_TRUE(watch.expired());
  EXPECT_TRUE(copy == expected.memory.bytes);
}

TEST_P(TransferTest, WrongTokenOrAttemptOrIdIsRefusedAndTheLandingLives) {
  Rig rig(GetParam());
  const std::vector<size_t> sizes = {1000, 100000};
  State state(sizes);
  Expected expected(*rig.receiver, sizes);
  const LandingAddress good = expected.address;
  LandingAddress token = good, attempt = good, id = good;
  token.token.lo ^= 1;
  attempt.attempt = 2;
  id.transfer = Id128::random();
  for (auto [address, code] :
       {std::pair(token, Code::kMismatch), std::pair(attempt, Code::kMismatch),
        std::pair(id, Code::kNotFound)}) {
    SendRecorder events;
    const ChannelId channel = open(rig, address, events);
    // They race with the refusal, so they may fail; they must not land.
    (void)rig.sender->post(channel, 0, payload(state.record(0)));
    (void)rig.sender->post(channel, 1, payload(state.record(1)));
    EXPECT_EQ(events.failure(), code) << events.message();
  }
  EXPECT_TRUE(expected.memory.all(0xaa));
  EXPECT_FALSE(expected.events.ended());
  EXPECT_GE(rig.receiver->stats().messages_refused, 3u);
  SendRecorder events;
  post_all(*rig.sender, open(rig, good, events), state);
  EXPECT_TRUE(events.complete()) << events.message();
  EXPECT_TRUE(expected.events.complete()) << expected.events.message();
  EXPECT_TRUE(state.bytes == expected.memory.bytes);
}

TEST_P(TransferTest, OtherTransportOrVersionIsRefusedAtOnce) {
  Rig rig(GetParam());
  Expected expected(*rig.receiver, {10});
  LandingAddress address = expected.address;
  address.version = "0.0.1";
  auto refused = rig.sender->open(address, after_ms(1000), [](const SendEvent&) {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kMismatch);
  EXPECT_NE(refused.error().message.find("0.0.1"), std::string::npos);
  address = expected.address;
  address.transport = "pigeon";
  refused = rig.sender->open(address, after_ms(1000), [](const SendEvent&) {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kMismatch);
}

struct Violation {
  const char* name;
  uint32_t record;
  size_t bytes;
};

TEST_P(TransferTest, WrongLengthOrIndexFailsBothEndsAndWritesNothing) {
  Rig rig(GetParam());
  const std::vector<size_t> sizes = {1000, 100000};
  State state({200000});
  for (const Violation& v : {Violation{"short", 1, 99999}, Violation{"long", 1, 100001},
                             Violation{"longer than small", 0, 1001}, Violation{"index", 2, 1000},
                             Violation{"huge index", 0xffffffffu, 1000}}) {
    Expected expected(*rig.receiver, sizes);
    SendRecorder events;
    const ChannelId channel = open(rig, expected.address, events);
    ASSERT_TRUE(rig.sender->post(channel, v.record, payload(state.record(0).first(v.bytes))).ok());
    EXPECT_EQ(events.failure(), Code::kDataLoss) << v.name << ": " << events.message();
    EXPECT_EQ(expected.events.failure(), Code::kDataLoss) << v.name;
    EXPECT_TRUE(expected.memory.all(0xaa)) << v.name;
  }
}

TEST_P(TransferTest, SizesInTheAddressAreCheckedAtPost) {
  Rig rig(GetParam());
  Expected expected(*rig.receiver, {1000, 2000});
  expected.address.sizes = {1000, 2000};
  State state({3000});
  SendRecorder events;
  const ChannelId channel = open(rig, expected.address, events);
  EXPECT_EQ(rig.sender->post(channel, 1, payload(state.record(0).first(1000))).error().code,
            Code::kInvalidArgument);
  EXPECT_EQ(rig.sender->post(channel, 2, payload(state.record(0).first(1000))).error().code,
            Code::kInvalidArgument);
  EXPECT_EQ(rig.sender->post(channel, 0, Payload{}).error().code, Code::kInvalidArgument);
  ASSERT_TRUE(rig.sender->post(channel, 0, payload(state.record(0).first(1000))).ok());
  ASSERT_TRUE(rig.sender->post(channel, 1, payload(state.record(0).first(2000))).ok());
  ASSERT_TRUE(rig.sender->finish(channel).ok());
  EXPECT_TRUE(events.complete()) << events.message();
}

TEST_P(TransferTest, RepeatedRecordFailsBothEnds) {
  Rig rig(GetParam());
  for (size_t bytes : {size_t{100}, size_t{1} << 20}) {
    Expected expected(*rig.receiver, {bytes, bytes});
    State first({bytes}, 1), second({bytes}, 2);
    SendRecorder events;
    const ChannelId channel = open(rig, expected.address, events);
    ASSERT_TRUE(rig.sender->post(channel, 0, payload(first.record(0))).ok());
    ASSERT_TRUE(expected.events.wait_records(1));
    ASSERT_TRUE(rig.sender->post(channel, 0, payload(second.record(0))).ok());
    EXPECT_EQ(events.failure(), Code::kDataLoss) << events.message();
    EXPECT_EQ(expected.events.failure(), Code::kDataLoss);
    EXPECT_EQ(std::memcmp(expected.memory.record(0).data(), first.bytes.data(), bytes), 0);
  }
}

TEST_P(TransferTest, FinishingEarlyIsDataLossAtBothEnds) {
  Rig rig(GetParam());
  const std::vector<size_t> sizes = {1000, 100000, 1000};
  State state(sizes);
  Expected expected(*rig.receiver, sizes);
  SendRecorder events;
  const ChannelId channel = open(rig, expected.address, events);
  ASSERT_TRUE(rig.sender->post(channel, 0, payload(state.record(0))).ok());
  ASSERT_TRUE(rig.sender->post(channel, 1, payload(state.record(1))).ok());
  ASSERT_TRUE(rig.sender->finish(channel).ok());
  EXPECT_EQ(events.failure(), Code::kDataLoss);
  EXPECT_EQ(expected.events.failure(), Code::kDataLoss);
}

// --- cancel and deadline at every phase, from both ends ---

enum class Phase { kExpected, kOpened, kHalf, kPosted };

TEST_P(TransferTest, CancelAtEachPhaseLeavesMemoryAlone) {
  Rig rig(GetParam());
  const std::vector<size_t> sizes = {1 << 20, 1 << 20, 4 << 20, 1 << 20, 100};
  State state(sizes);
  for (bool by_receiver : {false, true}) {
    for (Phase phase : {Phase::kExpected, Phase::kOpened, Phase::kHalf, Phase::kPosted}) {
      if (phase == Phase::kExpected && !by_receiver) continue;
      const std::string where = std::string(by_receiver ? "receiver" : "sender") + " phase " +
                                std::to_string(static_cast<int>(phase));
      Expected expected(*rig.receiver, sizes);
      SendRecorder events;
      State source = state;
      if (phase != Phase::kExpected) {
        const ChannelId channel = open(rig, expected.address, events);
        if (phase == Phase::kHalf) {
          ASSERT_TRUE(rig.sender->post(channel, 0, payload(source.record(0))).ok());
          ASSERT_TRUE(expected.events.wait_records(1)) << where;
        }
        if (phase >= Phase::kHalf) {
          for (uint32_t i = phase == Phase::kHalf; i + 1 < sizes.size(); ++i) {
            ASSERT_TRUE(rig.sender->post(channel, i, payload(source.record(i))).ok());
          }
        }
        if (!by_receiver) rig.sender->cancel(channel);
      }
      if (by_receiver) rig.receiver->cancel(expected.address.transfer);
      // A sender that is cancelled before its landing heard of it leaves the landing waiting.
      if (!by_receiver && phase == Phase::kOpened) {
        EXPECT_EQ(events.failure(), Code::kCancelled) << where;
        source.fill(0x11);
        rig.receiver->cancel(expected.address.transfer);
      } else if (phase != Phase::kExpected) {
        // The receiver may have cancelled before the sender's first message.
        const auto code = events.failure();
        EXPECT_TRUE(code == Code::kCancelled || code == Code::kNotFound) << where;
        source.fill(0x11);  // nothing may read the payloads any more
      }
      EXPECT_EQ(expected.events.failure(), Code::kCancelled) << where;
      expected.memory.fill(0x77);
      usleep(20000);
      EXPECT_TRUE(expected.memory.all(0x77)) << where;
    }
  }
  EXPECT_EQ(rig.receiver->stats().transfers_open, 0u);
  EXPECT_EQ(rig.receiver->stats().records_inflight, 0u);
  EXPECT_EQ(rig.sender->stats().transfers_open, 0u);
  EXPECT_EQ(rig.sender->stats().records_inflight, 0u);
  // And the connection still works.
  Expected expected(*rig.receiver, sizes);
  SendRecorder events;
  post_all(*rig.sender, open(rig, expected.address, events), state);
  EXPECT_TRUE(events.complete()) << events.message();
  EXPECT_TRUE(expected.events.complete()) << expected.events.message();
  EXPECT_TRUE(state.bytes == expected.memory.bytes);
}

TEST_P(TransferTest, CancelOfEndedOrUnknownDoesNothing) {
  Rig rig(GetParam());
  State state({1000});
  Expected expected(*rig.receiver, {1000});
  SendRecorder events;
  const ChannelId channel = open(rig, expected.address, events);
  post_all(*rig.sender, channel, state);
  EXPECT_TRUE(events.complete()) << events.message();
  EXPECT_TRUE(expected.events.complete()) << expected.events.message();
  rig.sender->cancel(channel);
  rig.sender->cancel(ChannelId{999});
  rig.receiver->cancel(expected.address.transfer);
  rig.receiver->cancel(Id128::random());
  usleep(20000);
  EXPECT_EQ(rig.sender->stats().transfers_cancelled, 0u);
  EXPECT_EQ(rig.receiver->stats().transfers_cancelled, 0u);
}

TEST_P(TransferTest, DeadlineOfEitherEndEndsBoth) {
  Rig rig(GetParam());
  const std::vector<size_t> sizes = {1000, 100000};
  State state(sizes);
  {  // nobody comes
    Expected expected(*rig.receiver, sizes, 50);
    EXPECT_EQ(expected.events.failure(), Code::kDeadlineExceeded);
  }
  {  // half a state
    Expected expected(*rig.receiver, sizes, 200);
    SendRecorder events;
    const ChannelId channel = open(rig, expected.address, events);
    ASSERT_TRUE(rig.sender->post(channel, 0, payload(state.record(0))).ok());
    EXPECT_EQ(expected.events.failure(), Code::kDeadlineExceeded);
    // On a machine so busy that the first message comes later than that, there is no landing.
    const auto code = events.failure();
    EXPECT_TRUE(code == Code::kDeadlineExceeded || code == Code::kNotFound) << events.message();
    expected.memory.fill(0x77);
    EXPECT_FALSE(rig.sender->post(channel, 1, payload(state.record(1))).ok());
    usleep(20000);
    EXPECT_TRUE(expected.memory.all(0x77));
  }
  {  // the sender's own
    Expected expected(*rig.receiver, sizes);
    SendRecorder events;
    const ChannelId channel = open(rig, expected.address, events, 200);
    ASSERT_TRUE(rig.sender->post(channel, 0, payload(state.record(0))).ok());
    const bool opened = expected.events.wait_records(1, 200);
    EXPECT_EQ(events.failure(), Code::kDeadlineExceeded);
    if (!opened) rig.receiver->cancel(expected.address.transfer);  // it never heard of the sender
    const auto code = expected.events.failure();
    EXPECT_TRUE(code == Code::kDeadlineExceeded || (!opened && code == Code::kCancelled))
        << expected.events.message();
  }
}

TEST_P(TransferTest, NobodyThereIsUnavailable) {
  Rig rig(GetParam());
  Expected expected(*rig.receiver, {1000});
  const LandingAddress address = expected.address;
  rig.receiver.reset();
  EXPECT_EQ(expected.events.failure(), Code::kCancelled);
  SendRecorder events;
  (void)open(rig, address, events);
  EXPECT_EQ(events.failure(), Code::kUnavailable) << events.message();
}

// --- life of the ends ---

TEST_P(TransferTest, ReceiverClosingMidTransferFailsTheSenderAndANewOneTakesOver) {
  Rig rig(GetParam());
  const std::vector<size_t> sizes = {1000, 1 << 20};
  State state(sizes);
  auto expected = std::make_unique<Expected>(*rig.receiver, sizes);
  const HostPort where = rig.receiver->address();
  SendRecorder events;
  const ChannelId channel = open(rig, expected->address, events);
  ASSERT_TRUE(rig.sender->post(channel, 0, payload(state.record(0))).ok());
  ASSERT_TRUE(expected->events.wait_records(1));
  rig.receiver.reset();
  EXPECT_EQ(expected->events.failure(), Code::kCancelled);
  const auto code = events.failure();
  EXPECT_TRUE(code == Code::kCancelled || code == Code::kUnavailable) << events.message();
  rig.receiver = rig.new_receiver(where);  // the same port, at once
  Expected again(*rig.receiver, sizes);
  SendRecorder second;
  post_all(*rig.sender, open(rig, again.address, second), state);
  EXPECT_TRUE(second.complete()) << second.message();
  EXPECT_TRUE(again.events.complete()) << again.events.message();
  EXPECT_TRUE(state.bytes == again.memory.bytes);
}

TEST_P(TransferTest, SenderClosingMidTransferFailsTheLanding) {
  Rig rig(GetParam());
  const std::vector<size_t> sizes = {1000, 1 << 20};
  State state(sizes);
  Expected expected(*rig.receiver, sizes);
  SendRecorder events;
  const ChannelId channel = open(rig, expected.address, events);
  ASSERT_TRUE(rig.sender->post(channel, 0, payload(state.record(0))).ok());
  ASSERT_TRUE(expected.events.wait_records(1));
  rig.sender.reset();
  EXPECT_EQ(events.failure(), Code::kCancelled);
  EXPECT_EQ(expected.events.failure(), Code::kCancelled) << expected.events.message();
}

TEST_P(TransferTest, TwoSendersAtOnceKeepTheirStatesApart) {
  Rig rig(GetParam());
  auto other = rig.new_sender();
  const std::vector<size_t> sizes = {1000, 1 << 20, 300, 2 << 20};
  constexpr int kEach = 6;
  auto drive = [&](Sender& sender, uint32_t seed) {
    for (int i = 0; i < kEach; ++i) {
      State state(sizes, seed + static_cast<uint32_t>(i));
      Expected expected(*rig.receiver, sizes);
      SendRecorder events;
      auto channel = sender.open(expected.address, after_ms(60000), events.fn());
      ASSERT_TRUE(channel.ok());
      post_all(sender, *channel, state);
      ASSERT_TRUE(events.complete()) << events.message();
      ASSERT_TRUE(expected.events.complete()) << expected.events.message();
      ASSERT_TRUE(state.bytes == expected.memory.bytes);
    }
  };
  std::thread first([&] { drive(*rig.sender, 100); });
  std::thread second([&] { drive(*other, 200); });
  first.join();
  second.join();
  EXPECT_EQ(rig.receiver->stats().transfers_completed, 2u * kEach);
}

TEST_P(TransferTest, ManyTransfersInterleavedOnOneSender) {
  Rig rig(GetParam());
  const std::vector<size_t> sizes = {100, 200000, 300};
  constexpr size_t kTransfers = 16;
  std::vector<std::unique_ptr<Expected>> expected;
  std::vector<std::unique_ptr<SendRecorder>> events;
  std::vector<std::unique_ptr<State>> states;
  std::vector<ChannelId> channels;
  for (size_t i = 0; i < kTransfers; ++i) {
    expected.push_back(std::make_unique<Expected>(*rig.receiver, sizes));
    events.push_back(std::make_unique<SendRecorder>());
    states.push_back(std::make_unique<State>(sizes, static_cast<uint32_t>(i)));
    channels.push_back(open(rig, expected[i]->address, *events[i]));
  }
  for (uint32_t r = 0; r < sizes.size(); ++r) {
    for (size_t i = 0; i < kTransfers; ++i) {
      ASSERT_TRUE(rig.sender->post(channels[i], r, payload(states[i]->record(r))).ok());
    }
  }
  for (size_t i = 0; i < kTransfers; ++i) {
    ASSERT_TRUE(rig.sender->finish(channels[i]).ok());
    EXPECT_TRUE(events[i]->complete()) << events[i]->message();
    EXPECT_TRUE(expected[i]->events.complete()) << expected[i]->events.message();
    EXPECT_TRUE(states[i]->bytes == expected[i]->memory.bytes);
  }
}

size_t resident_kib() {
  std::ifstream file("/proc/self/statm");
  size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE)) / 1024;
}

TEST_P(TransferTest, TwoHundredTransfersLeakNothing) {
  Rig rig(GetParam());
  const std::vector<size_t> sizes = {200, 300000, 70000};
  State state(sizes);
  [[maybe_unused]] size_t warm_kib = 0;
  for (int i = 0; i < 200; ++i) {
    Expected expected(*rig.receiver, sizes);
    SendRecorder events;
    const ChannelId channel = open(rig, expected.address, events);
    if (i % 5 == 4) {
      ASSERT_TRUE(rig.sender->post(channel, 1, payload(state.record(1))).ok());
      i % 2 == 0 ? rig.sender->cancel(channel) : rig.receiver->cancel(expected.address.transfer);
      ASSERT_TRUE(events.wait_end());
      rig.receiver->cancel(expected.address.transfer);
      ASSERT_TRUE(expected.events.wait_end());
    } else {
      post_all(*rig.sender, channel, state);
      ASSERT_TRUE(events.complete()) << i << " " << events.message();
      ASSERT_TRUE(expected.events.complete()) << expected.events.message();
    }
    if (i == 50) warm_kib = resident_kib();
  }
  const TransportStats sent = rig.sender->stats(), landed = rig.receiver->stats();
  EXPECT_EQ(sent.transfers_started, 200u);
  EXPECT_EQ(sent.transfers_completed, 160u);
  EXPECT_EQ(sent.transfers_open + sent.records_inflight, 0u);
  EXPECT_EQ(landed.transfers_open + landed.records_inflight, 0u);
  EXPECT_LE(sent.connections_opened, 1u);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(resident_kib(), warm_kib + 4096) << "resident memory grows";
#endif
}

// --- bounds ---

TEST_P(TransferTest, BoundsOfTransfersAndRecordsHold) {
  TransportConfig config = config_for(GetParam());
  config.transfers_max = 2;
  config.records_max = 3;
  config.record_bytes_max = 1000;
  Rig rig(GetParam(), config);
  Expected one(*rig.receiver, {10}), two(*rig.receiver, {10}), three(*rig.receiver, {10});
  EXPECT_TRUE(two.status.ok());
  EXPECT_EQ(three.status.error().code, Code::kResourceExhausted);
  EXPECT_EQ(Expected(*rig.receiver, {1, 1, 1, 1}).status.error().code, Code::kInvalidArgument);
  EXPECT_EQ(Expected(*rig.receiver, {1001}).status.error().code, Code::kInvalidArgument);
  EXPECT_EQ(Expected(*rig.receiver, {}).status.error().code, Code::kInvalidArgument);
  SendRecorder a, b;
  (void)open(rig, one.address, a);
  const ChannelId channel = open(rig, two.address, b);
  EXPECT_EQ(rig.sender->open(one.address, after_ms(1000), [](const SendEvent&) {}).error().code,
            Code::kResourceExhausted);
  State state({1001});
  EXPECT_EQ(rig.sender->post(channel, 0, payload(state.record(0))).error().code,
            Code::kInvalidArgument);
}

TEST_P(TransferTest, SameTransferTwiceIsRefused) {
  Rig rig(GetParam());
  Expected one(*rig.receiver, {10});
  LandingSpec spec;
  State memory({10});
  spec.transfer = one.address.transfer;
  spec.token = Id128::random();
  spec.destinations = memory.records();
  spec.deadline = after_ms(1000);
  spec.on_event = [](const LandEvent&) {};
  EXPECT_EQ(rig.receiver->expect(std::move(spec)).error().code, Code::kInvalidArgument);
}

TEST_P(TransferTest, HandlersMayCallBack) {
  // A landing's handler expects the next one, a sender's handler opens it: a chain of ten.
  Rig rig(GetParam());
  State state({5000}), memory({5000});
  std::mutex mutex;
  std::condition_variable done;
  int left = 10;
  std::function<void()> next = [&] {
    LandingAddress address;
    address.state_address = rig.receiver->address();
    address.transfer = Id128::random();
    address.token = Id128::random();
    address.transport = rig.receiver->name();
    address.version = rig.receiver->version();
    LandingSpec spec{address.transfer, address.token,  0,
                     memory.records(), after_ms(5000), [](const LandEvent&) {}};
    ASSERT_TRUE(rig.receiver->expect(std::move(spec)).ok());
    auto channel = rig.sender->open(address, after_ms(5000), [&](const SendEvent& event) {
      if (std::holds_alternative<RecordSent>(event)) return;
      EXPECT_TRUE(std::holds_alternative<Complete>(event));
      bool more = false;
      {
        std::lock_guard lock(mutex);
        more = --left > 0;
        done.notify_all();
      }
      if (more) next();
    });
    ASSERT_TRUE(channel.ok());
    post_all(*rig.sender, *channel, state);
  };
  next();
  std::unique_lock lock(mutex);
  EXPECT_TRUE(done.wait_for(lock, std::chrono::seconds(20), [&] { return left == 0; }));
}

INSTANTIATE_TEST_SUITE_P(Transports, TransferTest,
                         testing::Values(Kind::kInproc, Kind::kUcxTcp, Kind::kUcxShm),
                         [](const auto& kind) { return kind_name(kind.param); });

}  // namespace
}  // namespace akv::transport
