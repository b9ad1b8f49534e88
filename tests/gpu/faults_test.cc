// What the shim's faults do to the engines: short memory is one request's error, a lost device
// everybody's.
#include <gtest/gtest.h>

#include <future>

#include "tests/gpu/engine_rig.h"
#include "tests/support/cuda_shim/cuda_shim.h"

namespace akv::gpu {
namespace {

class Faults : public testing::Test {
 protected:
  void TearDown() override { cuda_shim::set_faults({}); }
};

TEST_F(Faults, NoDriverAndAnOldOneAreNamed) {
  cuda_shim::set_faults({.driver = cuda_shim::Driver::kNone});
  EXPECT_EQ(EngineRig().device().error().code, Code::kUnsupported);
  EXPECT_NE(EngineRig().device().error().message.find("driver"), std::string::npos);
  cuda_shim::set_faults({.driver = cuda_shim::Driver::kTooOld});
  EXPECT_NE(EngineRig().device().error().message.find("13.0"), std::string::npos)
      << EngineRig().device().error().message;
  // auto goes on without.
  const auto chosen = choose_engine_device(DevicePreference::kAuto, model::SmallModel{}.load());
  ASSERT_TRUE(chosen.ok());
  EXPECT_FALSE(chosen->is_gpu());
  EXPECT_NE(chosen->reason.find("driver"), std::string::npos);
}

TEST_F(Faults, WeightsThatDoNotFitAreSaidAtTheStart) {
  cuda_shim::set_faults({.memory_bytes = 64 << 10});
  const EngineRig rig;
  ASSERT_FALSE(rig.device().ok());
  EXPECT_EQ(rig.device().error().code, Code::kUnsupported);
}

TEST_F(Faults, APromptThatDoesNotFitFailsAloneAndTheEngineGoesOn) {
  EngineRig rig;
  ASSERT_TRUE(rig.device().ok()) << rig.device().error().message;
  const auto engine = rig.prompt_engine(true);
  cuda_shim::set_faults({.memory_bytes = cuda_shim::device_bytes() + (128 << 10)});
  const auto long_ids = made_up_ids(rig.model().config(), 500, 1);
  const auto failed = rig.prefill(*engine, long_ids, "anchorkv");
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, Code::kResourceExhausted);
  EXPECT_TRUE(engine->health().ok());
  cuda_shim::set_faults({});
  EXPECT_TRUE(rig.prefill(*engine, made_up_ids(rig.model().config(), 100, 2), "anchorkv").ok());
}

TEST_F(Faults, AStateThatDoesNotFitFailsAloneAndTheEngineGoesOn) {
  EngineRig rig;
  ASSERT_TRUE(rig.device().ok()) << rig.device().error().message;
  const auto cpu = rig.prompt_engine(false);
  const auto prompt = rig.prefill(*cpu, made_up_ids(rig.model().config(), 100, 3), "none");
  ASSERT_TRUE(prompt.ok());
  const auto engine = rig.step_engine(true);
  const auto expected = answers(*engine, rig.model(), {&*prompt}, 2);
  // More than the pool kept of what was freed.
  const auto larger = rig.prefill(*cpu, made_up_ids(rig.model().config(), 480, 3), "none");
  ASSERT_TRUE(larger.ok());
  cuda_shim::set_faults({.memory_bytes = cuda_shim::device_bytes() + 1024});
  const auto state = engine->adopt({larger->buffer.bytes(), &larger->plan, nullptr});
  ASSERT_FALSE(state.ok());
  EXPECT_EQ(state.error().code, Code::kResourceExhausted);
  EXPECT_TRUE(engine->health().ok());
  // A landing takes its memory before a byte of it comes.
  std::vector<std::byte> host(larger->plan.total_bytes);
  const auto landing = engine->begin_landing(larger->plan, host);
  ASSERT_FALSE(landing.ok());
  EXPECT_EQ(landing.error().code, Code::kResourceExhausted);
  cuda_shim::set_faults({});
  EXPECT_EQ(answers(*engine, rig.model(), {&*prompt}, 2), expected);
  EXPECT_TRUE(engine->begin_landing(larger->plan, host).ok());
}

// A landing that is given up leaves its memory to the next.
TEST_F(Faults, ALandingGivesItsMemoryBack) {
  EngineRig rig;
  ASSERT_TRUE(rig.device().ok()) << rig.device().error().message;
  const auto engine = rig.step_engine(true);
  const kv::StatePlan plan = rig.plan(480, "none");
  std::vector<std::byte> host(plan.total_bytes);
  cuda_shim::set_faults(
      {.memory_bytes = cuda_shim::device_bytes() + plan.total_bytes + plan.total_bytes / 2});
  for (int i = 0; i < 3; ++i) {
    const auto landing = engine->begin_landing(plan, host);
    ASSERT_TRUE(landing.ok()) << i << landing.error().message;
    EXPECT_EQ(engine->begin_landing(plan, host).error().code, Code::kResourceExhausted);
  }
}

TEST_F(Faults, ALostDeviceIsSaidByBothEnginesFromThenOn) {
  EngineRig rig;
  ASSERT_TRUE(rig.device().ok()) << rig.device().error().message;
  const auto prompts = rig.prompt_engine(true);
  const auto steps = rig.step_engine(true);
  const kv::StatePlan plan = rig.plan(100, "none");
  std::vector<std::byte> host(plan.total_bytes);
  const auto landing = steps->begin_landing(plan, host);
  ASSERT_TRUE(landing.ok());
  cuda_shim::set_faults({.lose_device = 20});
  const auto ids = made_up_ids(rig.model().config(), 100, 4);
  const auto failed = rig.prefill(*prompts, ids, "anchorkv");
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, Code::kUnavailable);
  EXPECT_EQ(prompts->health().error().code, Code::kUnavailable);
  EXPECT_EQ(steps->health().error().code, Code::kUnavailable);  // the same device
  EXPECT_EQ(prompts->begin(ids, 0).error().code, Code::kUnavailable);
  // What was on its way in ends, with the reason.
  EXPECT_EQ(steps->begin_landing(plan, host).error().code, Code::kUnavailable);
  (*landing)->upload(1);
  std::promise<Status> finished;
  (*landing)->finish([&](const Status& status) { finished.set_value(status); });
  EXPECT_EQ(finished.get_future().get().error().code, Code::kUnavailable);
}

}  // namespace
}  // namespace akv::gpu
