// A state from the prefill engine's device to the decode engine's by UCX, both in this process:
// sent from device memory, landed in it, verified on the way, and decoded from there. On the shim
// device memory is the host's; on a GPU UCX needs its CUDA transports, else all goes by host
// memory.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <future>

#include "common/device/stream.h"
#include "common/model/device_weights.h"
#include "common/model/wire.h"
#include "decode_node/receive/incoming_state.h"
#include "prefill_node/outbox/outgoing_state.h"
#include "tests/gpu/engine_rig.h"
#include "transport/ucx/ucx_transport.h"

namespace akv::gpu {
namespace {

using decode::IncomingState;
using decode::LandingReport;
using prefill::OutgoingState;

constexpr int kSteps = 5;

// Ends of UCX as two daemons on a GPU have them.
struct Link {
  explicit Link(const EngineDevice& device) {
    transport::TransportConfig config =
        transport::node_config({.ucx_transports = "tcp",
                                .ucx_devices = "lo",
                                .heartbeat_ms = 10000,
                                .gpu = true,
                                .gpu_memory_is_host = device.memory_is_host,
                                .on_thread_start = device.bind_thread},
                               Logger());
    receiver = std::move(*transport::make_ucx_receiver(config, HostPort{"127.0.0.1", 0}));
    sender = std::move(*transport::make_ucx_sender(config));
  }
  bool moves_device_memory() const { return !receiver->extension().empty(); }

  std::unique_ptr<transport::Receiver> receiver;
  std::unique_ptr<transport::Sender> sender;
};

class Transfer : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(rig_.device().ok()) << rig_.device().error().message;
    link_.emplace(*rig_.device());
  }
  void TearDown() override { link_.reset(); }

  // A prompt, its state on its way out, and what the same engines say without any transfer.
  struct Prompt {
    std::vector<int32_t> ids;
    kv::StatePlan plan;
    int32_t first_token = -1;
    std::vector<int32_t> expected;
    std::shared_ptr<OutgoingState> state;
  };
  Prompt prompt(int64_t tokens, int seed, const char* codec, bool prefill_on_gpu = true,
                bool decode_on_gpu = true) {
    Prompt p;
    p.ids = made_up_ids(rig_.model().config(), tokens, seed);
    const auto prompts = rig_.prompt_engine(prefill_on_gpu);
    const auto reference = rig_.prefill(*prompts, p.ids, codec);
    EXPECT_TRUE(reference.ok());
    p.plan = reference->plan;
    p.first_token = reference->first_token;
    const auto steps = rig_.step_engine(decode_on_gpu);
    p.expected = answers(*steps, rig_.model(), {&*reference}, kSteps)[0];
    p.state = *OutgoingState::create(p.plan, identity(p));
    return p;
  }
  kv::StateIdentity identity(const Prompt& p) const {
    return model::state_identity(rig_.model(), p.ids);
  }

  // Reserves the landing; the report comes once. The engine must outlive the landing.
  struct Landing {
    std::shared_ptr<IncomingState> state;
    transport::LandingAddress address;
    std::future<LandingReport> report;
  };
  Landing expect(decode::StepEngine& engine, const Prompt& p) {
    Landing landing;
    landing.state = *IncomingState::create(p.plan, identity(p));
    landing.state->land_in(*engine.begin_landing(p.plan, landing.state->memory()));
    auto reported = std::make_shared<std::promise<LandingReport>>();
    landing.report = reported->get_future();
    const HostPort at = link_->receiver->address();
    const proto::Landing offer =
        *landing.state->expect(*link_->receiver, at, 1, after_ms(60000),
                               [reported](const LandingReport& r) { reported->set_value(r); });
    landing.address.state_address = at;
    landing.address.transfer = *Id128::from_hex(offer.transfer);
    landing.address.token = *Id128::from_hex(offer.token);
    landing.address.attempt = offer.attempt;
    landing.address.transport = offer.transport;
    landing.address.version = offer.ucx_version;
    landing.address.extension = offer.extension;
    return landing;
  }

  std::future<Status> ship(const Prompt& p, const Landing& landing) {
    auto ended = std::make_shared<std::promise<Status>>();
    const Status opened =
        p.state->ship(*link_->sender, landing.address, after_ms(60000),
                      [ended](const prefill::ShipmentReport& r) { ended->set_value(r.status); });
    EXPECT_TRUE(opened.ok());
    return ended->get_future();
  }

  // All layers through the engine, each record published as a scheduler does. `spoil` sees a record
  // that stayed on the device before it is published.
  using SpoilFn = std::function<void(int layer, const std::byte* device)>;
  void build(prefill::PromptEngine& engine, const Prompt& p, const SpoilFn& spoil = {}) {
    const std::atomic<bool> cancelled{false};
    auto work = engine.begin(p.ids, p.plan.options.window);
    ASSERT_TRUE(work.ok()) << work.error().message;
    while ((*work)->next_layer() < rig_.model().config().layers) {
      const int layer = (*work)->next_layer();
      prefill::LayerOrder order;
      order.record.plan = &p.state->plan();
      order.record.state_checksum = p.state->header_checksum();
      order.record.bytes = p.state->record(layer);
      order.record.keep_on_device = p.state->wants_device();
      order.record.done = [&, layer](Result<prefill::FinishedRecord> record) {
        ASSERT_TRUE(record.ok()) << record.error().message;
        kept_.push_back(record->device);
        if (spoil && record->device) spoil(layer, record->device.get());
        p.state->publish(layer, std::move(record->device));
      };
      order.on_logits = [](std::span<float>) { return Status{}; };
      ASSERT_TRUE(engine.run_layer(**work, cancelled, order).ok());
    }
  }

  std::vector<int32_t> decode(decode::StepEngine& engine, const Prompt& p, const Landing& landing) {
    auto state =
        engine.adopt({landing.state->bytes(), &p.plan, landing.state, landing.state->landing()});
    EXPECT_TRUE(state.ok());
    Answer answer(engine, rig_.model(), std::move(*state), p.plan.tokens, p.first_token);
    for (int i = 0; i < kSteps; ++i) answer.step(engine);
    return answer.tokens();
  }

  uint64_t device_records() const { return link_->receiver->stats().device_records; }
  // Records too small for a rendezvous go by the host.
  static uint64_t large_records(const kv::StatePlan& plan) {
    return static_cast<uint64_t>(std::count_if(plan.record_bytes.begin(), plan.record_bytes.end(),
                                               [](uint64_t bytes) { return bytes > (32u << 10); }));
  }

  EngineRig rig_{model::SmallModel{.context = 1024}};
  std::optional<Link> link_;
  std::vector<std::weak_ptr<const std::byte>> kept_;  // records that stayed on the device, or null
};

TEST_F(Transfer, StatesGoFromDeviceToDevice) {
  const auto prompts = rig_.prompt_engine(true);
  const auto steps = rig_.step_engine(true);
  for (const char* codec : {"anchorkv", "none"}) {
    const Prompt p = prompt(300, 1, codec);
    const uint64_t before = device_records();
    Landing landing = expect(*steps, p);
    auto sent = ship(p, landing);
    EXPECT_EQ(p.state->wants_device(), link_->moves_device_memory());
    build(*prompts, p);
    ASSERT_TRUE(landing.report.get().status.ok());
    EXPECT_TRUE(sent.get().ok());
    if (link_->moves_device_memory()) {
      EXPECT_EQ(device_records() - before, large_records(p.plan)) << codec;
      EXPECT_GT(large_records(p.plan), 0u) << codec;
    }
    EXPECT_EQ(decode(*steps, p, landing), p.expected) << codec;
  }
  // The transport let go of the records; the outbox holds the host's bytes alone.
  for (const auto& kept : kept_) {
    for (int i = 0; i < 5000 && !kept.expired(); ++i) usleep(1000);  // the progress thread
    EXPECT_TRUE(kept.expired());
  }
}

// A second landing of the same state, as after a failover: from host memory, to the device by copy.
TEST_F(Transfer, TheOutboxSendsAgainFromHostMemory) {
  const auto prompts = rig_.prompt_engine(true);
  const auto steps = rig_.step_engine(true);
  const Prompt p = prompt(300, 2, "anchorkv");
  Landing first = expect(*steps, p);
  auto sent = ship(p, first);
  build(*prompts, p);
  ASSERT_TRUE(first.report.get().status.ok());
  ASSERT_TRUE(sent.get().ok());
  const uint64_t before = device_records();
  Landing again = expect(*steps, p);
  auto sent_again = ship(p, again);
  ASSERT_TRUE(again.report.get().status.ok());
  EXPECT_TRUE(sent_again.get().ok());
  EXPECT_EQ(device_records(), before);
  EXPECT_EQ(decode(*steps, p, again), p.expected);
}

TEST_F(Transfer, MixedPairsTakeTheWayOfTheHost) {
  const Prompt from_cpu = prompt(200, 3, "anchorkv", false, true);
  const auto cpu_prompts = rig_.prompt_engine(false);
  const auto gpu_steps = rig_.step_engine(true);
  Landing on_gpu = expect(*gpu_steps, from_cpu);
  auto sent = ship(from_cpu, on_gpu);
  build(*cpu_prompts, from_cpu);
  ASSERT_TRUE(on_gpu.report.get().status.ok());
  EXPECT_TRUE(sent.get().ok());
  EXPECT_EQ(decode(*gpu_steps, from_cpu, on_gpu), from_cpu.expected);

  const Prompt to_cpu = prompt(200, 4, "anchorkv", true, false);
  const auto gpu_prompts = rig_.prompt_engine(true);
  const auto cpu_steps = rig_.step_engine(false);
  Landing on_cpu = expect(*cpu_steps, to_cpu);
  on_cpu.address.extension.clear();  // a daemon without a GPU offers nothing
  auto sent_too = ship(to_cpu, on_cpu);
  EXPECT_FALSE(to_cpu.state->wants_device());
  build(*gpu_prompts, to_cpu);
  ASSERT_TRUE(on_cpu.report.get().status.ok());
  EXPECT_TRUE(sent_too.get().ok());
  EXPECT_EQ(decode(*cpu_steps, to_cpu, on_cpu), to_cpu.expected);
  EXPECT_EQ(device_records(), 0u);
}

// What lands in device memory is what is verified: a byte that changed there alone is found.
TEST_F(Transfer, ARecordThatChangedOnTheDeviceIsRefused) {
  if (!link_->moves_device_memory()) GTEST_SKIP() << "UCX moves no device memory here";
  const auto prompts = rig_.prompt_engine(true);
  const auto steps = rig_.step_engine(true);
  const Prompt p = prompt(300, 5, "none");
  ASSERT_EQ(large_records(p.plan), p.plan.record_bytes.size());
  Landing landing = expect(*steps, p);
  auto sent = ship(p, landing);
  const auto stream = Stream::create(rig_.device()->weights->device());
  ASSERT_TRUE(stream.ok());
  build(*prompts, p, [&](int layer, const std::byte* device) {
    if (layer != 1) return;
    const std::array<std::byte, 1> other{std::byte{0x77}};
    ASSERT_TRUE(stream->copy_to_device(const_cast<std::byte*>(device) + 4000, other).ok());
    ASSERT_TRUE(stream->synchronize().ok());
  });
  const LandingReport report = landing.report.get();
  ASSERT_FALSE(report.status.ok());
  EXPECT_EQ(report.status.error().code, Code::kDataLoss);
  sent.wait();  // which may be ok: all had landed by the time that it was verified
  // The next attempt, from the outbox, arrives.
  Landing again = expect(*steps, p);
  auto sent_again = ship(p, again);
  ASSERT_TRUE(again.report.get().status.ok());
  EXPECT_EQ(decode(*steps, p, again), p.expected);
  EXPECT_TRUE(sent_again.get().ok());
}

TEST_F(Transfer, ACancelledLandingEndsAndItsMemoryIsFree) {
  const auto steps = rig_.step_engine(true);
  const Prompt p = prompt(200, 6, "anchorkv");
  Landing landing = expect(*steps, p);
  landing.state->cancel(*link_->receiver);
  EXPECT_EQ(landing.report.get().status.error().code, Code::kCancelled);
}

// A state that takes long to come to the device holds up no step of another session.
TEST_F(Transfer, StepsGoOnWhileAStateLands) {
  const auto steps = rig_.step_engine(true);
  const Prompt p = prompt(200, 7, "anchorkv", false, true);
  Landing landing = expect(*steps, p);
  std::promise<void> begun, may_go_on;
  landing.state->landing()->fetch(0, [&](const Status&) {
    begun.set_value();
    may_go_on.get_future().wait();
  });
  begun.get_future().wait();  // what it brought to the host is overwritten by the transport
  const auto cpu = rig_.prompt_engine(false);
  auto sent = ship(p, landing);
  build(*cpu, p);
  ASSERT_TRUE(sent.get().ok());  // all has arrived, nothing is on the device
  const auto other = rig_.prefill(*cpu, made_up_ids(rig_.model().config(), 60, 8), "none");
  ASSERT_TRUE(other.ok());
  const auto cpu_steps = rig_.step_engine(false);
  EXPECT_EQ(answers(*steps, rig_.model(), {&*other}, kSteps),
            answers(*cpu_steps, rig_.model(), {&*other}, kSteps));
  EXPECT_EQ(landing.report.wait_for(std::chrono::milliseconds(0)), std::future_status::timeout);
  may_go_on.set_value();
  ASSERT_TRUE(landing.report.get().status.ok());
  EXPECT_EQ(decode(*steps, p, landing), p.expected);
}

}  // namespace
}  // namespace akv::gpu
