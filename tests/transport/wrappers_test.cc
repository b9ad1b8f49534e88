#include "transport/wrappers/wrappers.h"

#include <gtest/gtest.h>

#include "tests/transport/rig.h"

namespace akv::transport {
namespace {

// Sends one state through a coat around the rig's sender.
class WrappersTest : public testing::Test {
 protected:
  void send(std::unique_ptr<Sender>& sender, int64_t deadline_ms = 20000) {
    auto channel = sender->open(expected.address, after_ms(deadline_ms), events.fn());
    ASSERT_TRUE(channel.ok());
    post_all(*sender, *channel, state);
  }
  Rig rig{Kind::kInproc};
  std::vector<size_t> sizes{1000, 2000, 3000};
  State state{sizes};
  Expected expected{*rig.receiver, sizes};
  SendRecorder events;
};

TEST_F(WrappersTest, FlippedBitPassesTheTransportUnnoticed) {
  // Content is not the transport's business: the record's checksum above it finds this.
  auto sender = corrupt_record(std::move(rig.sender), 1, 8 * 500 + 3);
  const std::vector<std::byte> before = state.bytes;
  send(sender);
  EXPECT_TRUE(events.complete()) << events.message();
  EXPECT_TRUE(expected.events.complete()) << expected.events.message();
  EXPECT_TRUE(state.bytes == before);
  size_t different = 0;
  for (size_t i = 0; i < state.bytes.size(); ++i) {
    if (state.bytes[i] == expected.memory.bytes[i]) continue;
    ++different;
    EXPECT_EQ(i, 1500u);
    EXPECT_EQ(state.bytes[i] ^ expected.memory.bytes[i], std::byte{8});
  }
  EXPECT_EQ(different, 1u);
}

TEST_F(WrappersTest, CutAfterRecordsWithCancelFailsBothEnds) {
  auto sender = cut_after_records(std::move(rig.sender), 2, Cut::kCancel);
  send(sender);
  EXPECT_EQ(events.failure(), Code::kCancelled);
  EXPECT_EQ(expected.events.failure(), Code::kCancelled);
  EXPECT_EQ(expected.events.records(), 2u);
}

TEST_F(WrappersTest, SilentCutIsFoundByTheDeadline) {
  auto sender = cut_after_records(std::move(rig.sender), 2, Cut::kSilent);
  send(sender, 150);
  EXPECT_EQ(events.failure(), Code::kDeadlineExceeded);
  EXPECT_EQ(expected.events.failure(), Code::kDeadlineExceeded);
  EXPECT_EQ(expected.events.records(), 2u);
}

TEST_F(WrappersTest, CutInsideARecordIsRefusedForItsLength) {
  auto sender = cut_after_bytes(std::move(rig.sender), 1500, Cut::kSilent);
  send(sender);
  EXPECT_EQ(events.failure(), Code::kDataLoss);
  EXPECT_EQ(expected.events.failure(), Code::kDataLoss);
  EXPECT_EQ(expected.events.records(), 1u);
}

TEST_F(WrappersTest, DelayHoldsBackAndKeepsOrder) {
  auto sender = delay_sends(std::move(rig.sender), 80);
  const TimePoint start = SteadyClock::now();
  send(sender);
  EXPECT_TRUE(events.complete()) << events.message();
  EXPECT_TRUE(expected.events.complete()) << expected.events.message();
  EXPECT_GE(ms_between(start, events.ended_at()), 79.0);
  EXPECT_TRUE(state.bytes == expected.memory.bytes);
}

TEST_F(WrappersTest, DelayedChannelsCanBeCancelled) {
  auto sender = delay_sends(std::move(rig.sender), 10000);
  auto channel = sender->open(expected.address, after_ms(20000), events.fn());
  ASSERT_TRUE(channel.ok());
  post_all(*sender, *channel, state);
  sender->cancel(*channel);
  EXPECT_EQ(events.failure(), Code::kCancelled);
  EXPECT_EQ(expected.events.records(), 0u);
}

TEST_F(WrappersTest, RateIsKept) {
  // 6000 bytes at 20,000 a second: 0.3 s, of which a burst of 0.1 s is free.
  auto sender = limit_rate(std::move(rig.sender), 20000);
  const TimePoint start = SteadyClock::now();
  send(sender);
  EXPECT_TRUE(events.complete()) << events.message();
  EXPECT_GE(ms_between(start, events.ended_at()), 195.0);
}

TEST_F(WrappersTest, QueueOfHeldRecordsIsBounded) {
  auto sender = delay_sends(std::move(rig.sender), 10000, 2);
  auto channel = sender->open(expected.address, after_ms(20000), events.fn());
  ASSERT_TRUE(channel.ok());
  EXPECT_TRUE(sender->post(*channel, 0, payload(state.record(0))).ok());
  EXPECT_TRUE(sender->post(*channel, 1, payload(state.record(1))).ok());
  EXPECT_EQ(sender->post(*channel, 2, payload(state.record(2))).error().code,
            Code::kResourceExhausted);
}

TEST_F(WrappersTest, CountsWhatPassesAndCoatsNest) {
  auto counting = count_sends(delay_sends(std::move(rig.sender), 5));
  CountingSender& count = *counting;
  std::unique_ptr<Sender> sender = std::move(counting);
  send(sender);
  EXPECT_TRUE(events.complete()) << events.message();
  const SendCount seen = count.count();
  EXPECT_EQ(seen.opens, 1u);
  EXPECT_EQ(seen.posts, 3u);
  EXPECT_EQ(seen.bytes, 6000u);
  EXPECT_EQ(seen.finishes, 1u);
  EXPECT_EQ(seen.completes, 1u);
  EXPECT_EQ(seen.failures, 0u);
}

}  // namespace
}  // namespace akv::transport
