// The NCCL coats over inproc and over UCX, with a stand-in of NCCL.
#include <gtest/gtest.h>

#include <thread>

#include "tests/transport/nccl_stand_in.h"
#include "tests/transport/rig.h"
#include "transport/nccl/messages.h"
#include "transport/nccl/nccl_transport.h"

namespace akv::transport {
namespace {

const std::vector<size_t> kSizes{176, 70000, 1, 300000, 4096, 65536, 12345};

// A sender and a receiver with NCCL between them.
class NcclRig {
 public:
  explicit NcclRig(Kind kind) : rig_(kind), config_(config_for(kind)) {
    config_.heartbeat_lost_ms = 1500;  // an operation that does not end
    config_.connect_timeout_ms = 1500;
    receiver = make_nccl_receiver(std::move(rig_.receiver), nccl, config_);
    sender = make_nccl_sender(std::move(rig_.sender), nccl, config_);
  }
  // A state and its landing; the address as the control plane carries it.
  struct Transfer {
    Transfer(Receiver& receiver, uint32_t seed, int64_t deadline_ms = 60000)
        : state(kSizes, seed), landing(receiver, kSizes, deadline_ms) {
      landing.address.extension = receiver.extension();
      landing.address.sizes.assign(kSizes.begin(), kSizes.end());
    }
    bool arrived() const { return landing.memory.bytes == state.bytes; }
    State state;
    Expected landing;
    SendRecorder sent;
    ChannelId channel;
  };
  void open(Transfer& t, int64_t deadline_ms = 60000) {
    auto opened = sender->open(t.landing.address, after_ms(deadline_ms), t.sent.fn());
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    t.channel = *opened;
  }
  void ship(Transfer& t) {
    open(t);
    post_all(*sender, t.channel, t.state);
  }

 private:
  Rig rig_;

 public:
  std::shared_ptr<NcclStandIn> nccl = std::make_shared<NcclStandIn>();
  TransportConfig config_;
  std::unique_ptr<Receiver> receiver;
  std::unique_ptr<Sender> sender;
};

class NcclTransport : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Over, NcclTransport, testing::Values(Kind::kInproc, Kind::kUcxTcp),
                         [](const auto& test) { return kind_name(test.param); });

TEST_P(NcclTransport, RecordsPassOverNcclAlone) {
  NcclRig rig(GetParam());
  NcclRig::Transfer t(*rig.receiver, 1);
  rig.ship(t);
  EXPECT_TRUE(t.sent.complete());
  EXPECT_TRUE(t.landing.events.complete());
  EXPECT_TRUE(t.arrived());
  EXPECT_EQ(t.landing.events.records(), kSizes.size());
  EXPECT_EQ(t.sent.records(), kSizes.size());
  EXPECT_EQ(rig.nccl->messages, kSizes.size());
  EXPECT_EQ(rig.sender->stats().bytes, t.state.bytes.size());
  EXPECT_EQ(rig.receiver->stats().transfers_completed, 1u);
}

TEST_P(NcclTransport, TransfersShareOneCommunicator) {
  NcclRig rig(GetParam());
  std::vector<std::unique_ptr<NcclRig::Transfer>> all;
  for (uint32_t i = 0; i < 8; ++i) {
    all.push_back(std::make_unique<NcclRig::Transfer>(*rig.receiver, i));
    rig.open(*all.back());
  }
  for (size_t record = 0; record < kSizes.size(); ++record) {  // interleaved
    for (auto& t : all) {
      const auto index = static_cast<uint32_t>(record);
      EXPECT_TRUE(rig.sender->post(t->channel, index, payload(t->state.record(record))).ok());
    }
  }
  for (auto& t : all) EXPECT_TRUE(rig.sender->finish(t->channel).ok());
  for (auto& t : all) {
    EXPECT_TRUE(t->sent.complete());
    EXPECT_TRUE(t->landing.events.complete());
    EXPECT_TRUE(t->arrived());
  }
  EXPECT_EQ(rig.nccl->joined, 2u);
}

TEST_P(NcclTransport, DeviceMemoryIsSentFromAndLandedIn) {
  NcclRig rig(GetParam());
  State state(kSizes, 1);
  ExpectedOnDevice landing(*rig.receiver, kSizes);
  ASSERT_TRUE(landing.status.ok());
  EXPECT_TRUE(rig.sender->reads_device(landing.landing.address));
  SendRecorder sent;
  ship_from_device(*rig.sender, landing.landing.address, state, sent);
  EXPECT_TRUE(landing.events.complete());
  EXPECT_TRUE(landing.arrived(state));
  EXPECT_EQ(landing.on_device, kSizes.size());
  EXPECT_TRUE(sent.complete());
  EXPECT_EQ(rig.nccl->device_sends, kSizes.size());
  EXPECT_EQ(rig.nccl->device_receives, kSizes.size());
  EXPECT_EQ(rig.sender->stats().device_records, kSizes.size());
  EXPECT_EQ(rig.receiver->stats().device_records, kSizes.size());
}

// A pair that fails and falls back: what an aborted receive leaves in device memory comes before
// the record is said to be there, never after.
TEST_P(NcclTransport, AnAbortedReceiveSpoilsNoRecordThatCamePlain) {
  NcclRig rig(GetParam());
  rig.nccl->fail_after = 0;
  rig.nccl->spoil = true;
  State state(kSizes, 2);
  ExpectedOnDevice landing(*rig.receiver, kSizes);
  ASSERT_TRUE(landing.status.ok());
  SendRecorder sent;
  ship_from_device(*rig.sender, landing.landing.address, state, sent);
  EXPECT_TRUE(sent.complete());
  EXPECT_TRUE(landing.events.complete());
  EXPECT_EQ(landing.on_device, 0u);
  EXPECT_TRUE(landing.arrived(state));
}

// A sender whose network fails after all was received: the records come plain as well, and each is
// announced again once that way has written it too, so that the owner verifies what it will read.
TEST_P(NcclTransport, ARecordWrittenOnceMoreIsAnnouncedOnceMore) {
  NcclRig rig(GetParam());
  rig.nccl->fail_sender = true;
  State state(kSizes, 3);
  ExpectedOnDevice landing(*rig.receiver, kSizes);
  ASSERT_TRUE(landing.status.ok());
  landing.brings = false;
  SendRecorder sent;
  ship_from_device(*rig.sender, landing.landing.address, state, sent);
  EXPECT_TRUE(sent.complete());
  ASSERT_TRUE(landing.events.complete());
  EXPECT_GE(landing.on_device, 1u);
  EXPECT_EQ(landing.host.bytes, state.bytes);
  EXPECT_EQ(landing.on_host, kSizes.size());
  EXPECT_EQ(landing.events.records(), landing.on_device + landing.on_host);
}

// NCCL may refuse the call itself (a peer that cannot be connected, no memory to stage): an
// operation that never began is no success.
TEST_P(NcclTransport, ACallThatFailsIsNoSuccess) {
  for (const bool of_sender : {true, false}) {
    for (const bool first_passes : {true, false}) {
      NcclRig rig(GetParam());
      NcclRig::Transfer t(*rig.receiver, 14);
      rig.open(t);
      const uint32_t passed = first_passes ? 1 : 0;
      if (first_passes) {
        ASSERT_TRUE(rig.sender->post(t.channel, 0, payload(t.state.record(0))).ok());
        ASSERT_TRUE(t.sent.wait_records(1));
        ASSERT_TRUE(t.landing.events.wait_records(1));
      }
      (of_sender ? rig.nccl->refuse_sends : rig.nccl->refuse_receives) = true;
      for (uint32_t i = passed; i < kSizes.size(); ++i) {
        (void)rig.sender->post(t.channel, i, payload(t.state.record(i))).ok();
      }
      (void)rig.sender->finish(t.channel).ok();
      ASSERT_TRUE(t.sent.wait_end());
      ASSERT_TRUE(t.landing.events.wait_end());
      EXPECT_EQ(rig.nccl->messages, passed);
      if (first_passes) {
        EXPECT_TRUE(t.sent.failure().has_value());
        EXPECT_TRUE(t.landing.events.failure().has_value());
        EXPECT_EQ(t.sent.records(), 1u);
        EXPECT_EQ(t.landing.events.records(), 1u);
      } else {  // nothing was sent yet, so all of it came plain
        EXPECT_TRUE(t.sent.complete());
        EXPECT_TRUE(t.landing.events.complete());
        EXPECT_TRUE(t.arrived());
      }
    }
  }
}

TEST_P(NcclTransport, AnEndWithoutNcclIsServedPlain) {
  NcclRig rig(GetParam());
  NcclRig::Transfer other(*rig.receiver, 1);
  other.landing.address.extension.clear();  // what a sender without NCCL sees of it
  rig.ship(other);
  EXPECT_TRUE(other.sent.complete());
  EXPECT_TRUE(other.landing.events.complete());
  EXPECT_TRUE(other.arrived());
  EXPECT_EQ(rig.nccl->messages, 0u);

  NcclRig::Transfer version(*rig.receiver, 2);
  version.landing.address.extension = nccl::encode(nccl::Capability{1, Id128::random()});
  rig.ship(version);
  EXPECT_TRUE(version.landing.events.complete());
  EXPECT_TRUE(version.arrived());
  EXPECT_EQ(rig.nccl->messages, 0u);
}

TEST_P(NcclTransport, APairThatCannotFormFallsBackWithinTheTransfer) {
  for (const bool refused : {true, false}) {
    NcclRig rig(GetParam());
    (refused ? rig.nccl->refuse : rig.nccl->nobody_joins) = true;
    NcclRig::Transfer t(*rig.receiver, 3);
    rig.ship(t);
    EXPECT_TRUE(t.sent.complete()) << refused;
    EXPECT_TRUE(t.landing.events.complete()) << refused;
    EXPECT_TRUE(t.arrived()) << refused;
    EXPECT_EQ(rig.nccl->messages, 0u);
  }
}

TEST_P(NcclTransport, AFailureBeforeTheFirstRecordFallsBack) {
  NcclRig rig(GetParam());
  rig.nccl->fail_after = 0;
  NcclRig::Transfer t(*rig.receiver, 4);
  rig.ship(t);
  EXPECT_TRUE(t.sent.complete());
  EXPECT_TRUE(t.landing.events.complete());
  EXPECT_TRUE(t.arrived());
}

TEST_P(NcclTransport, AFailureHalfWayFailsBothAndTheNextGoesPlain) {
  NcclRig rig(GetParam());
  NcclRig::Transfer t(*rig.receiver, 5);
  rig.open(t);
  ASSERT_TRUE(rig.sender->post(t.channel, 0, payload(t.state.record(0))).ok());
  ASSERT_TRUE(t.sent.wait_records(1));
  ASSERT_TRUE(t.landing.events.wait_records(1));
  rig.nccl->fail_after = 1;
  for (uint32_t i = 1; i < kSizes.size(); ++i) {
    (void)rig.sender->post(t.channel, i, payload(t.state.record(i))).ok();
  }
  (void)rig.sender->finish(t.channel).ok();
  // Whichever end finds out first tells the other, which cannot tell why.
  EXPECT_TRUE(t.sent.failure().has_value());
  EXPECT_EQ(t.landing.events.failure(), Code::kUnavailable);
  rig.nccl->fail_after = -1;
  NcclRig::Transfer again(*rig.receiver, 5);
  rig.ship(again);
  EXPECT_TRUE(again.sent.complete());
  EXPECT_TRUE(again.landing.events.complete());
  EXPECT_TRUE(again.arrived());
  EXPECT_EQ(rig.nccl->messages, 1u);  // the pair is not made anew at once
}

// A network that fails somewhere in the middle: whatever each end saw of it, a landing that
// completes has the right bytes, and both ends end.
TEST_P(NcclTransport, AFailureAnywhereEndsBothEnds) {
  for (int64_t after = 0; after <= static_cast<int64_t>(kSizes.size()); ++after) {
    NcclRig rig(GetParam());
    rig.nccl->fail_after = after;
    NcclRig::Transfer t(*rig.receiver, 13);
    rig.ship(t);
    EXPECT_TRUE(t.sent.wait_end()) << after;
    ASSERT_TRUE(t.landing.events.wait_end()) << after;
    EXPECT_TRUE(t.landing.events.failure().has_value() || t.arrived()) << after;
  }
}

TEST_P(NcclTransport, APeerThatHangsIsCutOff) {
  NcclRig rig(GetParam());
  rig.nccl->hang = true;
  NcclRig::Transfer t(*rig.receiver, 6);
  rig.ship(t);  // nothing passed, so it comes plain in the end
  EXPECT_TRUE(t.sent.complete());
  EXPECT_TRUE(t.landing.events.complete());
  EXPECT_TRUE(t.arrived());
}

TEST_P(NcclTransport, CancelOfEitherEndFreesBoth) {
  for (const bool by_sender : {true, false}) {
    NcclRig rig(GetParam());
    NcclRig::Transfer t(*rig.receiver, 7);
    rig.open(t);
    ASSERT_TRUE(rig.sender->post(t.channel, 0, payload(t.state.record(0))).ok());
    ASSERT_TRUE(t.landing.events.wait_records(1));
    if (by_sender) {
      rig.sender->cancel(t.channel);
    } else {
      rig.receiver->cancel(t.landing.address.transfer);
    }
    EXPECT_EQ(t.sent.failure(), Code::kCancelled);
    EXPECT_EQ(t.landing.events.failure(), Code::kCancelled);
    // The pair is whole: the next transfer uses it.
    NcclRig::Transfer next(*rig.receiver, 8);
    rig.ship(next);
    EXPECT_TRUE(next.landing.events.complete());
    EXPECT_TRUE(next.arrived());
    EXPECT_EQ(rig.nccl->joined, 2u);
  }
}

TEST_P(NcclTransport, CancelWithRecordsInFlightNeverWritesAfterwards) {
  NcclRig rig(GetParam());
  rig.nccl->delay_ms = 50;
  NcclRig::Transfer t(*rig.receiver, 9);
  rig.ship(t);
  rig.receiver->cancel(t.landing.address.transfer);
  ASSERT_TRUE(t.landing.events.wait_end());
  t.landing.memory.fill(0x55);
  ASSERT_TRUE(t.sent.wait_end());
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_TRUE(t.landing.memory.all(0x55));
}

TEST_P(NcclTransport, DeadlinesEndBothEnds) {
  NcclRig rig(GetParam());
  NcclRig::Transfer t(*rig.receiver, 10, 300);
  rig.open(t, 300);
  EXPECT_TRUE(t.sent.wait_end());
  EXPECT_TRUE(t.landing.events.wait_end());
  EXPECT_EQ(t.landing.events.failure(), Code::kDeadlineExceeded);
}

TEST_P(NcclTransport, ClosingAnEndEndsItsTransfers) {
  for (const bool sender_first : {true, false}) {
    NcclRig rig(GetParam());
    NcclRig::Transfer t(*rig.receiver, 11);
    rig.open(t);
    ASSERT_TRUE(rig.sender->post(t.channel, 0, payload(t.state.record(0))).ok());
    ASSERT_TRUE(t.landing.events.wait_records(1));
    if (sender_first) {
      rig.sender.reset();
      EXPECT_TRUE(t.sent.ended());
    } else {
      rig.receiver.reset();
      EXPECT_TRUE(t.landing.events.ended());
    }
    EXPECT_TRUE(t.sent.wait_end());
    EXPECT_TRUE(t.landing.events.wait_end());
  }
}

TEST_P(NcclTransport, AMissingRecordIsDataLoss) {
  NcclRig rig(GetParam());
  NcclRig::Transfer t(*rig.receiver, 12);
  rig.open(t);
  ASSERT_TRUE(rig.sender->post(t.channel, 0, payload(t.state.record(0))).ok());
  ASSERT_TRUE(rig.sender->finish(t.channel).ok());
  EXPECT_EQ(t.sent.failure(), Code::kDataLoss);
  EXPECT_EQ(t.landing.events.failure(), Code::kDataLoss);
}

TEST(NcclMessages, RoundTripAndRefuseWhatTheyAreNot) {
  nccl::Hello hello;
  hello.nccl_version = 22809;
  hello.sender = Id128::random();
  hello.generation = 7;
  hello.id.bytes.fill(std::byte{0x5a});
  auto bytes = encode(hello);
  const auto back = nccl::decode_hello(bytes);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->sender, hello.sender);
  EXPECT_EQ(back->generation, 7u);
  EXPECT_EQ(back->id.bytes, hello.id.bytes);
  bytes[0] = std::byte{0};
  EXPECT_FALSE(nccl::decode_hello(bytes).ok());

  const nccl::Capability here{22809, Id128::random()};
  const auto text = nccl::encode(here);
  ASSERT_TRUE(nccl::decode_capability(text).has_value());
  EXPECT_EQ(nccl::decode_capability(text)->receiver, here.receiver);
  for (const char* bad : {"", "nccl", "nccl/", "nccl/1", "nccl/1/", "nccl/x/00", "ucx/1/2",
                          "nccl/1/0123456789abcdef0123456789abcde"}) {
    EXPECT_FALSE(nccl::decode_capability(bad).has_value()) << bad;
  }
}

}  // namespace
}  // namespace akv::transport
