// The device engines against the CPUs': the same states and the same greedy tokens, whichever side
// did which half. Runs on the shim in CI, and on a GPU by tests/gpu/run.sh.
#include <gtest/gtest.h>

#include <cmath>

#include "common/device/stream.h"
#include "common/kv/codec.h"
#include "common/model/device_weights.h"
#include "tests/gpu/engine_rig.h"

namespace akv::gpu {
namespace {

class Engines : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(rig_.device().ok()) << rig_.device().error().message; }
  Prefilled prefill(bool on_gpu, const std::vector<int32_t>& ids, const char* codec,
                    int64_t chunk_rows = 32) {
    const auto engine = rig_.prompt_engine(on_gpu, chunk_rows);
    auto done = rig_.prefill(*engine, ids, codec);
    EXPECT_TRUE(done.ok()) << done.error().message;
    EXPECT_EQ(engine->dense_kv_bytes(), 0u);
    return std::move(*done);
  }
  std::vector<int32_t> ids(int64_t count, int seed) {
    return made_up_ids(rig_.model().config(), count, seed);
  }

  EngineRig rig_;
};

double cosine(const std::vector<float>& a, const std::vector<float>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += static_cast<double>(a[i]) * b[i];
    aa += static_cast<double>(a[i]) * a[i];
    bb += static_cast<double>(b[i]) * b[i];
  }
  return ab / std::sqrt(aa * bb);
}

TEST_F(Engines, PrefillGivesTheCpusLogits) {
  for (const char* codec : {"anchorkv", "none"}) {
    const auto prompt = ids(100, 1);
    const Prefilled gpu = prefill(true, prompt, codec);
    const Prefilled cpu = prefill(false, prompt, codec);
    EXPECT_EQ(gpu.plan.codec == kv::Codec::kNone, std::string(codec) == "none");
    EXPECT_EQ(gpu.first_token, cpu.first_token);
    EXPECT_GT(cosine(gpu.logits, cpu.logits), 0.9995);
  }
}

// A window of 8 that straddles chunks, and chunks of odd sizes: not a bit changes.
TEST_F(Engines, ChunkBordersChangeNothing) {
  const auto prompt = ids(100, 2);
  const Prefilled whole = prefill(true, prompt, "anchorkv", 128);
  const Prefilled parts = prefill(true, prompt, "anchorkv", 32);
  EXPECT_EQ(whole.logits, parts.logits);
  const auto a = whole.buffer.bytes();
  const auto b = parts.buffer.bytes();
  EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end()));
}

// Records that stay on the device, to be sent from there, are those of the host, seal and all.
TEST_F(Engines, RecordsStayOnTheDeviceWhereTheyAreAskedFor) {
  const auto engine = rig_.prompt_engine(true);
  const auto prompt = ids(100, 11);
  for (const char* codec : {"anchorkv", "none"}) {
    const auto plain = rig_.prefill(*engine, prompt, codec);
    const auto kept = rig_.prefill(*engine, prompt, codec, /*keep_on_device=*/true);
    ASSERT_TRUE(plain.ok() && kept.ok());
    EXPECT_TRUE(plain->device.empty());
    ASSERT_EQ(kept->device.size(), kept->plan.record_bytes.size());
    const auto stream = Stream::create(rig_.device()->weights->device());
    ASSERT_TRUE(stream.ok());
    for (int layer = 0; layer < kept->plan.shape.layers; ++layer) {
      const auto host = kept->buffer.record(kept->plan, layer);
      std::vector<std::byte> there(host.size());
      ASSERT_TRUE(stream->copy_to_host(there, kept->device[static_cast<size_t>(layer)].get()).ok());
      ASSERT_TRUE(stream->synchronize().ok());
      EXPECT_TRUE(std::equal(host.begin(), host.end(), there.begin())) << codec << layer;
      const auto without = plain->buffer.record(plain->plan, layer);
      EXPECT_TRUE(std::equal(host.begin(), host.end(), without.begin())) << codec << layer;
    }
  }
}

// All four pairs of backends, a compressed and a dense prompt in one batch.
TEST_F(Engines, MixedPairsDrawTheSameTokens) {
  const auto one = ids(110, 3);
  const auto two = ids(40, 4);
  const auto cpu_step = rig_.step_engine(false);
  const auto gpu_step = rig_.step_engine(true);
  std::vector<std::vector<int32_t>> expected;
  for (const bool prefill_on_gpu : {false, true}) {
    const Prefilled a = prefill(prefill_on_gpu, one, "anchorkv");
    const Prefilled b = prefill(prefill_on_gpu, two, "none");
    for (decode::StepEngine* engine : {cpu_step.get(), gpu_step.get()}) {
      const auto got = answers(*engine, rig_.model(), {&a, &b}, 6);
      if (expected.empty()) expected = got;
      EXPECT_EQ(got, expected) << prefill_on_gpu;
    }
  }
}

TEST_F(Engines, ReplayedGraphsEqualEagerSteps) {
  const Prefilled a = prefill(false, ids(110, 5), "anchorkv");
  const Prefilled b = prefill(false, ids(50, 6), "none");
  const auto eager = rig_.step_engine(true, /*graphs=*/false);
  const auto graphs = rig_.step_engine(true, /*graphs=*/true);
  const auto expected = answers(*eager, rig_.model(), {&a, &b, &a}, 5);
  EXPECT_EQ(answers(*graphs, rig_.model(), {&a, &b, &a}, 5), expected);
  // The same engine with another batch: a captured step reads only what was uploaded for it.
  EXPECT_EQ(answers(*graphs, rig_.model(), {&b, &a, &a}, 5)[0], expected[1]);
}

// A replay runs many tokens at once and must say what they said one by one.
TEST_F(Engines, AReplayEqualsStepByStep) {
  const Prefilled prompt = prefill(false, ids(110, 7), "anchorkv");
  const auto engine = rig_.step_engine(true);
  const auto tokens = answers(*engine, rig_.model(), {&prompt}, 6)[0];
  decode::Suffix suffix(decode::PageShape(rig_.model().config()), nullptr, engine->pages());
  ASSERT_TRUE(suffix.grow(8));
  const auto state = *engine->adopt({prompt.buffer.bytes(), &prompt.plan, nullptr});
  decode::StepEntry entry;
  entry.prompt = state.get();
  entry.suffix = &suffix;
  entry.tokens = std::span(tokens).first(6);
  entry.position = prompt.plan.tokens;
  ASSERT_TRUE(engine->forward({&entry, 1}).ok());
  ASSERT_NE(entry.logits, nullptr);  // no draw was asked for
  const auto vocab = static_cast<size_t>(rig_.model().config().vocab);
  EXPECT_EQ(greedy({entry.logits, entry.logits + vocab}), tokens[6]);
}

TEST_F(Engines, AParkedStateComesBackAsItWas) {
  const Prefilled prompt = prefill(false, ids(110, 8), "anchorkv");
  const auto engine = rig_.step_engine(true);
  ASSERT_TRUE(engine->has_own_memory());
  const auto expected = answers(*engine, rig_.model(), {&prompt}, 4)[0];
  Answer stream(*engine, rig_.model(), prompt);
  for (int step = 0; step < 4; ++step) {
    ASSERT_TRUE(engine->park(stream.state()).ok());
    ASSERT_TRUE(engine->restore(stream.state()).ok());
    auto entry = stream.next();
    ASSERT_TRUE(engine->forward({&entry, 1}).ok());
    stream.take(entry);
  }
  EXPECT_EQ(stream.tokens(), expected);
}

// What the device's sampler does not cover is drawn by the host from the same logits.
TEST_F(Engines, PenaltiesAndLogprobsAreDrawnOnTheHost) {
  const Prefilled prompt = prefill(false, ids(60, 9), "none");
  const auto gpu = rig_.step_engine(true);
  model::SamplingParams plain;
  plain.temperature = 0.8f;
  plain.top_p = 0.9f;
  plain.seed = 7;
  model::SamplingParams logprobs = plain;
  logprobs.logprobs = 2;
  Answer on_device(*gpu, rig_.model(), prompt, plain);
  Answer on_host(*gpu, rig_.model(), prompt, logprobs);
  for (int step = 0; step < 5; ++step) {
    std::vector<decode::StepEntry> entries{on_device.next(), on_host.next()};
    ASSERT_TRUE(gpu->forward(entries).ok());
    EXPECT_TRUE(entries[0].sampled.has_value());
    EXPECT_FALSE(entries[1].sampled.has_value());
    on_device.take(entries[0]);
    on_host.take(entries[1]);
  }
  EXPECT_EQ(on_device.tokens(), on_host.tokens());
}

TEST_F(Engines, RefusesATokenOutsideTheVocabularyAndGrowsNothing) {
  const Prefilled prompt = prefill(false, ids(40, 10), "none");
  const auto engine = rig_.step_engine(true);
  decode::Suffix suffix(decode::PageShape(rig_.model().config()), nullptr, engine->pages());
  ASSERT_TRUE(suffix.grow(1));
  const auto state = *engine->adopt({prompt.buffer.bytes(), &prompt.plan, nullptr});
  const std::vector<int32_t> bad{rig_.model().config().vocab};
  decode::StepEntry entry;
  entry.prompt = state.get();
  entry.suffix = &suffix;
  entry.tokens = bad;
  EXPECT_EQ(engine->forward({&entry, 1}).error().code, Code::kInvalidArgument);
  EXPECT_EQ(suffix.tokens(), 0);
  const auto prompts = rig_.prompt_engine(true);
  EXPECT_EQ(prompts->begin(bad, 0).error().code, Code::kInvalidArgument);
  EXPECT_EQ(prompts->begin({}, 0).error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace akv::gpu
