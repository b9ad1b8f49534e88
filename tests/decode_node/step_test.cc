#include "decode_node/engine/cpu_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "common/base/worker_pool.h"
#include "common/kv/codec.h"
#include "common/model/wire.h"
#include "prefill_node/engine/layer_stream.h"

namespace akv::decode {
namespace {

// A prompt's state, built by the real prefill and codec.
struct Prompt {
  kv::StatePlan plan;
  kv::StateBuffer buffer;
};

std::vector<int32_t> some_ids(int64_t count, int32_t seed) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<int32_t>(1000 + (i * 7919 + seed * 104729) % 30000));
  }
  return ids;
}

class Step : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(AKV_MODEL_PATH)) GTEST_SKIP() << "the model is not fetched";
    model_ = *model::Model::load(AKV_MODEL_PATH);
  }

  std::unique_ptr<Prompt> prefill(const std::vector<int32_t>& ids, const char* codec) {
    auto prompt = std::make_unique<Prompt>();
    proto::CodecChoice choice;
    choice.codec = codec;
    choice.theta = 0.25;
    choice.min_compress_tokens = 0;
    prompt->plan = *model::plan_state(*model_, static_cast<int64_t>(ids.size()), choice);
    prompt->buffer = *kv::StateBuffer::create(prompt->plan);
    const uint64_t checksum = kv::write_header(prompt->plan, model::state_identity(*model_, ids),
                                               prompt->buffer.header(prompt->plan));
    prefill::LayerStream stream(model_, {}, parallel_view(pool_));
    auto work = *stream.begin(ids);
    kv::Workspace workspace;
    const std::atomic<bool> cancelled{false};
    const auto on_layer = [&](const prefill::LayerKv& layer) -> Status {
      std::vector<bf16> q(static_cast<size_t>(32 * model_->config().q_dim()));
      for (size_t i = 0; i < q.size(); ++i) q[i] = to_bf16(layer.q_window[i]);
      const kv::LayerInput input{.layer = layer.layer,
                                 .k_pre = layer.k_pre,
                                 .v = layer.v,
                                 .q_obs = q.data(),
                                 .rope = &model_->rope()};
      return kv::compress_layer(input, prompt->plan, checksum,
                                prompt->buffer.record(prompt->plan, layer.layer), workspace,
                                parallel_view(pool_));
    };
    while (work->next_layer() < model_->config().layers) {
      EXPECT_TRUE(stream.run_layer(*work, cancelled, on_layer).ok());
    }
    return prompt;
  }

  static std::unique_ptr<PromptState> adopt(StepEngine& engine, const Prompt& prompt) {
    return *engine.adopt({prompt.buffer.bytes(), &prompt.plan, nullptr});
  }

  // Logits after `tokens` behind each prompt, all in one batch.
  std::vector<std::vector<float>> decode(const std::vector<const Prompt*>& prompts,
                                         const std::vector<std::vector<int32_t>>& tokens) {
    CpuStepEngine engine(model_, parallel_view(pool_));
    std::vector<std::unique_ptr<Suffix>> suffixes;
    std::vector<std::unique_ptr<PromptState>> states;
    std::vector<StepEntry> entries(prompts.size());
    for (size_t i = 0; i < prompts.size(); ++i) {
      suffixes.push_back(std::make_unique<Suffix>(PageShape(model_->config()), nullptr));
      EXPECT_TRUE(suffixes[i]->grow(static_cast<int64_t>(tokens[i].size())));
      states.push_back(adopt(engine, *prompts[i]));
      entries[i].prompt = states[i].get();
      entries[i].suffix = suffixes[i].get();
      entries[i].tokens = tokens[i];
      entries[i].position = prompts[i]->plan.tokens;
    }
    EXPECT_TRUE(engine.forward(entries).ok());
    std::vector<std::vector<float>> logits;
    for (const StepEntry& entry : entries) {
      logits.emplace_back(entry.logits, entry.logits + model_->config().vocab);
    }
    return logits;
  }

  WorkerPool pool_{2};
  std::shared_ptr<const model::Model> model_;
};

TEST_F(Step, ASessionsLogitsDoNotDependOnTheBatch) {
  const auto a = prefill(some_ids(300, 1), "anchorkv");
  const auto b = prefill(some_ids(170, 2), "none");
  const std::vector<int32_t> one{17};
  const std::vector<int32_t> many = some_ids(40, 3);
  const auto alone_a = decode({a.get()}, {one});
  const auto alone_b = decode({b.get()}, {many});
  const auto both = decode({b.get(), a.get(), a.get(), b.get()}, {many, one, many, one});
  EXPECT_EQ(both[1], alone_a[0]);
  EXPECT_EQ(both[0], alone_b[0]);
  EXPECT_NE(both[2], both[1]);
}

// A replay runs many tokens at once and must say what they said one by one.
TEST_F(Step, AReplayEqualsStepByStep) {
  const auto prompt = prefill(some_ids(300, 4), "anchorkv");
  const std::vector<int32_t> tokens = some_ids(70, 5);
  const auto at_once = decode({prompt.get()}, {tokens});
  CpuStepEngine engine(model_, parallel_view(pool_));
  Suffix suffix(PageShape(model_->config()), nullptr);
  const auto state = adopt(engine, *prompt);
  ASSERT_TRUE(suffix.grow(70));
  std::vector<float> last;
  for (int64_t i = 0; i < 70; ++i) {
    StepEntry entry;
    entry.prompt = state.get();
    entry.suffix = &suffix;
    entry.tokens = std::span(tokens).subspan(static_cast<size_t>(i), 1);
    entry.position = 300 + i;
    ASSERT_TRUE(engine.forward({&entry, 1}).ok());
    last.assign(entry.logits, entry.logits + model_->config().vocab);
  }
  EXPECT_EQ(at_once[0], last);
}

TEST_F(Step, RefusesATokenOutsideTheVocabularyAndGrowsNothing) {
  const auto prompt = prefill(some_ids(40, 6), "none");
  CpuStepEngine engine(model_, parallel_view(pool_));
  Suffix suffix(PageShape(model_->config()), nullptr);
  ASSERT_TRUE(suffix.grow(1));
  const std::vector<int32_t> bad{model_->config().vocab};
  const auto state = adopt(engine, *prompt);
  StepEntry entry;
  entry.prompt = state.get();
  entry.suffix = &suffix;
  entry.tokens = bad;
  entry.position = 40;
  EXPECT_EQ(engine.forward({&entry, 1}).error().code, Code::kInvalidArgument);
  EXPECT_EQ(suffix.tokens(), 0);
}

}  // namespace
}  // namespace akv::decode
