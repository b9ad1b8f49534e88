#include "prefill_node/outbox/outbox.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <future>

#include "transport/inproc/inproc_transport.h"
#include "transport/wrappers/coat.h"

namespace akv::prefill {
namespace {

kv::StatePlan dense_plan(int64_t tokens) {
  kv::PlanRequest request;
  request.codec = kv::Codec::kNone;
  auto plan = kv::plan_state(kv::KvShape{.layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 64},
                             tokens, request);
  EXPECT_TRUE(plan.ok());
  return std::move(*plan);
}

RequestKey key(const char* id, uint64_t owner = 1) { return RequestKey{owner, id}; }

void fill(OutgoingState& state) {
  for (int layer = 0; layer < 2; ++layer) {
    auto record = state.record(layer);
    std::memset(record.data(), layer + 1, record.size());
    state.publish(layer);
  }
}

TEST(Outbox, EvictsTheLeastRecentlyUsedCompleteState) {
  const uint64_t bytes = dense_plan(100).total_bytes;
  Outbox outbox(3 * bytes);
  for (const char* id : {"a", "b", "c"}) {
    auto state = outbox.create(key(id), dense_plan(100), {});
    ASSERT_TRUE(state.ok());
    fill(**state);
  }
  EXPECT_EQ(outbox.bytes(), 3 * bytes);
  ASSERT_NE(outbox.find(key("a")), nullptr);
  ASSERT_TRUE(outbox.create(key("d"), dense_plan(100), {}).ok());
  EXPECT_EQ(outbox.find(key("b")), nullptr);
  EXPECT_NE(outbox.find(key("a")), nullptr);
  EXPECT_EQ(outbox.bytes(), 3 * bytes);
  EXPECT_EQ(outbox.evictions(), 1u);
}

TEST(Outbox, NeverEvictsWhatIsBeingBuiltAndSaysWhenNothingFits) {
  const uint64_t bytes = dense_plan(100).total_bytes;
  Outbox outbox(bytes + 10);
  ASSERT_TRUE(outbox.create(key("a"), dense_plan(100), {}).ok());
  const auto wait = outbox.create(key("b"), dense_plan(100), {});
  ASSERT_FALSE(wait.ok());
  EXPECT_EQ(wait.error().code, Code::kResourceExhausted);
  EXPECT_TRUE(wait.error().param.empty());
  EXPECT_EQ(outbox.create(key("c"), dense_plan(500), {}).error().param, "outbox-bytes");
  EXPECT_TRUE(outbox.release(key("a")));
  EXPECT_FALSE(outbox.release(key("a")));
  EXPECT_EQ(outbox.bytes(), 0u);
  EXPECT_TRUE(outbox.create(key("b"), dense_plan(100), {}).ok());
}

TEST(Outbox, ReleasesByOwnerAndOnlyTheAttemptThatAsks) {
  Outbox outbox(1 << 30);
  auto mine = outbox.create(key("a", 1), dense_plan(10), {});
  ASSERT_TRUE(outbox.create(key("b", 1), dense_plan(10), {}).ok());
  ASSERT_TRUE(outbox.create(key("a", 2), dense_plan(10), {}).ok());
  outbox.release_owner(1);
  EXPECT_EQ(outbox.size(), 1u);
  EXPECT_NE(outbox.find(key("a", 2)), nullptr);
  EXPECT_FALSE(outbox.release(key("a", 2), mine->get()));
  EXPECT_EQ(outbox.size(), 1u);
}

class Shipping : public testing::Test {
 protected:
  void SetUp() override {
    receiver_ = *transport::make_inproc_receiver(network_, {});
    sender_ = *transport::make_inproc_sender(network_, {});
  }

  // A landing for the plan's records; `landed` is set at its end.
  transport::LandingAddress expect(const kv::StatePlan& plan, std::vector<std::byte>& memory,
                                   std::promise<bool>& landed) {
    memory.resize(plan.total_bytes);
    transport::LandingSpec spec;
    spec.transfer = Id128::random();
    spec.token = Id128::random();
    spec.deadline = after_ms(5000);
    const std::span<std::byte> all(memory);
    spec.destinations.push_back(all.first(plan.header_bytes));
    for (size_t l = 0; l < plan.record_bytes.size(); ++l) {
      spec.destinations.push_back(all.subspan(plan.record_offset[l], plan.record_bytes[l]));
    }
    spec.on_event = [&landed](const transport::LandEvent& event) {
      if (std::holds_alternative<transport::Complete>(event)) landed.set_value(true);
      if (std::holds_alternative<transport::Failed>(event)) landed.set_value(false);
    };
    transport::LandingAddress to;
    to.state_address = receiver_->address();
    to.transfer = spec.transfer;
    to.token = spec.token;
    to.transport = receiver_->name();
    to.version = receiver_->version();
    EXPECT_TRUE(receiver_->expect(std::move(spec)).ok());
    return to;
  }

  std::shared_ptr<transport::InprocNetwork> network_ = transport::make_inproc_network();
  std::unique_ptr<transport::Receiver> receiver_;
  std::unique_ptr<transport::Sender> sender_;
};

// A sender that reads device memory, and remembers what it was given.
class DeviceSender : public transport::SenderCoat {
 public:
  using SenderCoat::SenderCoat;
  bool reads_device(const transport::LandingAddress&) const override { return true; }
  Status post(transport::ChannelId channel, uint32_t record, transport::Payload payload) override {
    given.push_back(payload.device);
    return SenderCoat::post(channel, record, std::move(payload));
  }
  std::vector<const std::byte*> given;
};

TEST_F(Shipping, DeviceMemoryGoesToShipmentsThatReadItAndIsLetGo) {
  Outbox outbox(1 << 30);
  const auto state = *outbox.create(key("a"), dense_plan(50), {});
  DeviceSender sender(std::move(sender_));
  EXPECT_FALSE(state->wants_device());
  std::vector<std::weak_ptr<std::byte>> kept;
  for (int round = 0; round < 2; ++round) {
    std::vector<std::byte> memory;
    std::promise<bool> landed;
    std::promise<ShipmentReport> reported;
    const auto to = expect(state->plan(), memory, landed);
    ASSERT_TRUE(state
                    ->ship(sender, to, after_ms(5000),
                           [&](const ShipmentReport& r) { reported.set_value(r); })
                    .ok());
    // The second time everything is there, and may have gone by now.
    EXPECT_TRUE(round > 0 || state->wants_device());
    for (int layer = 0; round == 0 && layer < 2; ++layer) {
      std::shared_ptr<std::byte> device(new std::byte[1], std::default_delete<std::byte[]>());
      kept.push_back(device);
      state->publish(layer, std::move(device));
    }
    EXPECT_TRUE(landed.get_future().get());
    EXPECT_TRUE(reported.get_future().get().status.ok());
  }
  // The header and everything of the second round are on the host alone.
  ASSERT_EQ(sender.given.size(), 6u);
  for (size_t i = 0; i < sender.given.size(); ++i) {
    EXPECT_EQ(sender.given[i] != nullptr, i == 1 || i == 2) << i;
  }
  EXPECT_FALSE(state->wants_device());
  for (const auto& record : kept) {
    for (int i = 0; i < 5000 && !record.expired(); ++i) usleep(1000);  // the network's thread
    EXPECT_TRUE(record.expired());
  }
}

TEST_F(Shipping, SendsRecordsAsTheyArePublishedAndAgainFromTheOutbox) {
  Outbox outbox(1 << 30);
  const auto state = *outbox.create(key("a"), dense_plan(50), {});
  for (int round = 0; round < 2; ++round) {
    std::vector<std::byte> memory;
    std::promise<bool> landed;
    std::promise<ShipmentReport> reported;
    const auto to = expect(state->plan(), memory, landed);
    ASSERT_TRUE(state
                    ->ship(*sender_, to, after_ms(5000),
                           [&](const ShipmentReport& r) { reported.set_value(r); })
                    .ok());
    if (round == 0) fill(*state);  // the second time everything is there
    EXPECT_TRUE(landed.get_future().get());
    const ShipmentReport report = reported.get_future().get();
    EXPECT_TRUE(report.status.ok());
    EXPECT_GE(report.transfer_ms, report.hidden_ms);
    for (int layer = 0; layer < 2; ++layer) {
      const auto record = state->record(layer);
      EXPECT_EQ(std::memcmp(memory.data() + state->plan().record_offset[static_cast<size_t>(layer)],
                            record.data(), record.size()),
                0);
    }
  }
}

TEST_F(Shipping, ReleaseEndsAShipmentAndRefusesFurtherOnes) {
  Outbox outbox(1 << 30);
  const auto state = *outbox.create(key("a"), dense_plan(50), {});
  std::vector<std::byte> memory;
  std::promise<bool> landed;
  std::promise<ShipmentReport> reported;
  const auto to = expect(state->plan(), memory, landed);
  ASSERT_TRUE(state
                  ->ship(*sender_, to, after_ms(5000),
                         [&](const ShipmentReport& r) { reported.set_value(r); })
                  .ok());
  EXPECT_TRUE(outbox.release(key("a")));
  EXPECT_EQ(reported.get_future().get().status.error().code, Code::kCancelled);
  EXPECT_FALSE(landed.get_future().get());
  EXPECT_EQ(state->ship(*sender_, to, after_ms(5000), nullptr).error().code, Code::kCancelled);
}

}  // namespace
}  // namespace akv::prefill
