// A state on its way in, with memory of an engine's own beside the host's: what is copied where,
// when it is verified, and what ends the landing. Receiver and memory are made up.
#include "decode_node/receive/incoming_state.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <future>
#include <thread>

#include "tests/kv/state_fixture.h"

namespace akv::decode {
namespace {

using kv::testing::SealedState;

constexpr int kLayers = 3;

SealedState sealed() {
  kv::PlanRequest request;
  request.codec = kv::Codec::kNone;
  return kv::testing::seal_state({.tokens = 64, .layer = 0}, kLayers, request);
}

// Lands nothing by itself; the test says what has landed.
class FakeReceiver final : public transport::Receiver {
 public:
  HostPort address() const override { return {"127.0.0.1", 1}; }
  Status expect(transport::LandingSpec landing) override {
    spec = std::move(landing);
    return {};
  }
  void cancel(const Id128&) override { ++cancels; }
  std::string_view name() const override { return "fake"; }
  std::string_view version() const override { return "1"; }
  transport::TransportStats stats() const override { return {}; }

  // Record `index` of the state comes to one side or the other.
  void land(const SealedState& state, uint32_t index, bool on_device, bool broken = false) {
    const auto from = record_of(state, index);
    std::byte* to = on_device ? spec.device_destinations[index] : spec.destinations[index].data();
    std::memcpy(to, from.data(), from.size());
    if (broken) to[from.size() / 2] ^= std::byte{1};
    spec.on_event(transport::RecordLanded{index, on_device});
  }
  static std::span<const std::byte> record_of(const SealedState& state, uint32_t index) {
    const auto all = state.buffer.bytes();
    if (index == 0) return all.first(state.plan.header_bytes);
    return all.subspan(state.plan.record_offset[index - 1], state.plan.record_bytes[index - 1]);
  }

  transport::LandingSpec spec;
  std::atomic<int> cancels{0};
};

// Device memory in a vector; jobs run when the test says so, or on a thread that is slow.
class FakeMemory final : public LandingMemory {
 public:
  FakeMemory(const kv::StatePlan& plan, std::span<std::byte> host)
      : plan_(plan), host_(host), bytes(host.size()) {}

  std::byte* place(uint32_t record) override { return bytes.data() + offset(record); }
  void upload(uint32_t record) override {
    jobs.push_back([this, record] { move(record, bytes.data(), host_.data()); });
  }
  void fetch(uint32_t record, ThenFn then) override {
    jobs.push_back([this, record, then] {
      if (copies_fail) return then(make_error(Code::kUnavailable, "lost"));
      move(record, host_.data(), bytes.data());
      then({});
    });
  }
  void finish(ThenFn then) override {
    jobs.push_back([this, then] {
      then(copies_fail ? Status(make_error(Code::kUnavailable, "lost")) : Status());
    });
  }
  Status describe() override {
    ++described;
    return {};
  }
  void run() {
    for (; !jobs.empty(); jobs.pop_front()) jobs.front()();
  }

  bool copies_fail = false;
  int described = 0;
  std::deque<std::function<void()>> jobs;

 private:
  size_t offset(uint32_t record) const { return record == 0 ? 0 : plan_.record_offset[record - 1]; }
  void move(uint32_t record, std::byte* to, const std::byte* from) const {
    const size_t size = record == 0 ? plan_.header_bytes : plan_.record_bytes[record - 1];
    std::memcpy(to + offset(record), from + offset(record), size);
  }

  const kv::StatePlan plan_;
  const std::span<std::byte> host_;

 public:
  std::vector<std::byte> bytes;
};

class Landing : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(state_.status.ok());
    incoming_ = *IncomingState::create(state_.plan, state_.identity);
    memory_ = std::make_shared<FakeMemory>(state_.plan, incoming_->memory());
    incoming_->land_in(memory_);
    ASSERT_TRUE(incoming_
                    ->expect(receiver_, {"127.0.0.1", 1}, 1, after_ms(60000),
                             [this](const LandingReport& r) { reports_.push_back(r); })
                    .ok());
    ASSERT_EQ(receiver_.spec.device_destinations.size(), 1u + kLayers);
  }
  bool everywhere() const {
    const auto truth = state_.buffer.bytes();
    const auto host = incoming_->bytes();
    return std::equal(truth.begin(), truth.end(), host.begin()) &&
           std::equal(truth.begin(), truth.end(), memory_->bytes.begin());
  }

  const SealedState state_ = sealed();
  FakeReceiver receiver_;
  std::shared_ptr<FakeMemory> memory_;
  std::shared_ptr<IncomingState> incoming_;
  std::vector<LandingReport> reports_;
};

TEST_F(Landing, RecordsComeToBothSidesWhicheverTheyLandOn) {
  for (uint32_t record = 0; record <= kLayers; ++record) {
    receiver_.land(state_, record, /*on_device=*/record % 2 == 1);
  }
  receiver_.spec.on_event(transport::Complete{});
  EXPECT_TRUE(reports_.empty());  // not before all is on both sides
  memory_->run();
  ASSERT_EQ(reports_.size(), 1u);
  EXPECT_TRUE(reports_[0].status.ok());
  EXPECT_EQ(reports_[0].device_records, 2u);
  EXPECT_TRUE(everywhere());
  EXPECT_EQ(memory_->described, 1);
  EXPECT_EQ(receiver_.cancels, 0);
}

TEST_F(Landing, OnlyVerifiedBytesGoToTheDevice) {
  receiver_.land(state_, 0, false);
  receiver_.land(state_, 1, false, /*broken=*/true);
  receiver_.land(state_, 2, false);  // after the first that failed nothing is looked at
  EXPECT_EQ(memory_->jobs.size(), 1u);
  EXPECT_EQ(receiver_.cancels, 1);
  receiver_.spec.on_event(transport::Failed{make_error(Code::kCancelled, "by the receiver")});
  memory_->run();
  ASSERT_EQ(reports_.size(), 1u);
  EXPECT_EQ(reports_[0].status.error().code, Code::kDataLoss);
  EXPECT_EQ(memory_->described, 0);
}

TEST_F(Landing, ARecordThatIsWrongOnTheDeviceIsFoundBeforeTheReport) {
  for (uint32_t record = 0; record <= kLayers; ++record) {
    receiver_.land(state_, record, true, /*broken=*/record == 2);
  }
  receiver_.spec.on_event(transport::Complete{});  // the transport knows nothing of contents
  memory_->run();
  ASSERT_EQ(reports_.size(), 1u);
  EXPECT_EQ(reports_[0].status.error().code, Code::kDataLoss);
  EXPECT_EQ(memory_->described, 0);
  // The receiver may be gone after its last event.
  EXPECT_EQ(receiver_.cancels, 0);
}

TEST_F(Landing, ARecordThatIsWrongOnTheDeviceCancelsWhatIsStillToCome) {
  receiver_.land(state_, 1, true, /*broken=*/true);
  memory_->run();
  EXPECT_EQ(receiver_.cancels, 1);
  receiver_.spec.on_event(transport::Failed{make_error(Code::kCancelled, "by the receiver")});
  memory_->run();
  ASSERT_EQ(reports_.size(), 1u);
  EXPECT_EQ(reports_[0].status.error().code, Code::kDataLoss);
}

TEST_F(Landing, ALostDeviceIsTheLandingsError) {
  memory_->copies_fail = true;
  receiver_.land(state_, 1, true);
  memory_->run();
  EXPECT_EQ(receiver_.cancels, 1);
  receiver_.spec.on_event(transport::Failed{make_error(Code::kCancelled, "by the receiver")});
  memory_->run();
  ASSERT_EQ(reports_.size(), 1u);
  EXPECT_EQ(reports_[0].status.error().code, Code::kUnavailable);
  EXPECT_EQ(memory_->described, 0);
}

TEST_F(Landing, AFailedTransferIsReportedAfterWhatWasUnderWay) {
  receiver_.land(state_, 0, false);
  receiver_.land(state_, 1, true);
  receiver_.spec.on_event(transport::Failed{make_error(Code::kUnavailable, "the peer is gone")});
  EXPECT_TRUE(reports_.empty());
  memory_->run();
  ASSERT_EQ(reports_.size(), 1u);
  EXPECT_EQ(reports_[0].status.error().code, Code::kUnavailable);
  EXPECT_EQ(reports_[0].status.error().message, "the peer is gone");
}

// The copies run on another thread than the transport's.
TEST_F(Landing, TransportAndCopiesMayRunAtOnce) {
  std::promise<void> reported;
  const auto other = *IncomingState::create(state_.plan, state_.identity);
  struct Threaded final : LandingMemory {
    explicit Threaded(FakeMemory& to) : memory(to) {}
    ~Threaded() override {
      for (std::thread& thread : threads) thread.join();
    }
    std::byte* place(uint32_t record) override { return memory.place(record); }
    void upload(uint32_t record) override {
      memory.upload(record);
      start();
    }
    void fetch(uint32_t record, ThenFn then) override {
      memory.fetch(record, std::move(then));
      start();
    }
    void finish(ThenFn then) override {
      memory.finish(std::move(then));
      start();
    }
    Status describe() override { return memory.describe(); }
    void start() {  // in order: each waits for the one before
      auto job = std::move(memory.jobs.front());
      memory.jobs.pop_front();
      std::thread before;
      if (!threads.empty()) {
        before = std::move(threads.back());
        threads.pop_back();
      }
      threads.emplace_back([job = std::move(job), before = std::move(before)]() mutable {
        if (before.joinable()) before.join();
        job();
      });
    }
    FakeMemory& memory;
    std::vector<std::thread> threads;
  };
  FakeMemory memory(state_.plan, other->memory());
  FakeReceiver receiver;
  other->land_in(std::make_shared<Threaded>(memory));
  LandingReport last;
  ASSERT_TRUE(other
                  ->expect(receiver, {"127.0.0.1", 1}, 1, after_ms(60000),
                           [&](const LandingReport& r) {
                             last = r;
                             reported.set_value();
                           })
                  .ok());
  for (uint32_t record = 0; record <= kLayers; ++record) {
    receiver.land(state_, record, record % 2 == 0);
  }
  receiver.spec.on_event(transport::Complete{});
  reported.get_future().wait();
  EXPECT_TRUE(last.status.ok());
  EXPECT_EQ(memory.described, 1);
}

}  // namespace
}  // namespace akv::decode
