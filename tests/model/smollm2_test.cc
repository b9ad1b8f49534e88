// The default model against tests/golden/model: an independent float32 forward of the same file.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/worker_pool.h"
#include "common/model/gguf.h"
#include "common/model/model.h"
#include "common/model/safetensors.h"
#include "common/model/vocab_data.h"
#include "tests/model/plain_forward.h"

namespace akv::model {
namespace {

constexpr float kTolerance = 2e-3f;

class SmolLm2 : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!std::filesystem::exists(AKV_MODEL_PATH)) return;
    auto model = Model::load(AKV_MODEL_PATH);
    ASSERT_TRUE(model.ok()) << model.error().message;
    model_ = *model;
    auto file =
        Safetensors::read(std::string(AKV_GOLDEN_DIR) + "/model/smollm2_logits.safetensors");
    ASSERT_TRUE(file.ok()) << file.error().message;
    golden_ = std::make_unique<Safetensors>(std::move(file).value());
    pool_ = std::make_unique<WorkerPool>(2);
  }
  static void TearDownTestSuite() {
    pool_.reset();
    golden_.reset();
    model_.reset();
  }
  void SetUp() override {
    if (model_ == nullptr) GTEST_SKIP() << "no model at " << AKV_MODEL_PATH;
  }

  static std::vector<float> floats(const std::string& name) {
    auto values = golden_->f32(name);
    EXPECT_TRUE(values.ok()) << values.error().message;
    return std::move(values).value();
  }
  static std::vector<int32_t> ints(const std::string& name) {
    auto values = golden_->i32(name);
    EXPECT_TRUE(values.ok()) << values.error().message;
    return std::move(values).value();
  }
  static PlainForward forward(WeightPath path, int64_t rows) {
    return PlainForward(model_, {.path = path, .max_rows = rows, .f32 = true},
                        parallel_view(*pool_));
  }
  // The rows of the last eight positions of one layer.
  static void expect_tail(const std::string& name, const std::vector<float>& all) {
    const std::vector<float> expected = floats(name);
    ASSERT_GE(all.size(), expected.size());
    const std::span<const float> tail(all.end() - static_cast<long>(expected.size()), all.end());
    EXPECT_LE(max_difference(tail, expected), kTolerance) << name;
  }

  static void expect_layers(const std::string& prompt, const PlainForward& run) {
    for (const int layer : {0, 15, 29}) {
      const std::string name = prompt + ".layer" + std::to_string(layer);
      expect_tail(name + ".k_pre_rope", run.keys(layer));
      expect_tail(name + ".v", run.values(layer));
      expect_tail(name + ".q_post_rope", run.queries(layer));
    }
  }

  static std::shared_ptr<const Model> model_;
  static std::unique_ptr<Safetensors> golden_;
  static std::unique_ptr<WorkerPool> pool_;
};

std::shared_ptr<const Model> SmolLm2::model_;
std::unique_ptr<Safetensors> SmolLm2::golden_;
std::unique_ptr<WorkerPool> SmolLm2::pool_;

TEST_F(SmolLm2, LoadsFast) {
  const auto begin = std::chrono::steady_clock::now();
  const auto again = Model::load(AKV_MODEL_PATH);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  ASSERT_TRUE(again.ok());
  EXPECT_LT(took.count(), 2.0);
  EXPECT_EQ((*again)->fingerprint(), model_->fingerprint());
}

// The digest that a few lines of Python over the same file give: nodes of two versions must agree.
TEST_F(SmolLm2, FingerprintIsStable) {
  EXPECT_EQ(to_hex(model_->fingerprint()),
            "3eab85b30e8c52d392e4dc55239a0ad77c7d2812c05813c42ebc657c16ae50c8");
}

TEST_F(SmolLm2, ReadsTheFile) {
  const ModelConfig& c = model_->config();
  EXPECT_EQ(c.arch, "llama");
  EXPECT_EQ(c.layers, 30);
  EXPECT_EQ(c.d_model, 576);
  EXPECT_EQ(c.d_ff, 1536);
  EXPECT_EQ(c.heads, 9);
  EXPECT_EQ(c.kv_heads, 3);
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_EQ(c.vocab, 49152);
  EXPECT_EQ(c.context_length, 8192);
  EXPECT_EQ(c.rope.base, 100000.0);
  EXPECT_TRUE(c.tied);
  const VocabData& vocab = model_->vocab();
  EXPECT_EQ(vocab.pre, "smollm");
  EXPECT_EQ(vocab.pieces.size(), 49152u);
  EXPECT_EQ(vocab.bos, 1);
  EXPECT_EQ(vocab.eos, 2);
  EXPECT_EQ(vocab.add_bos, std::optional<bool>(false));
  EXPECT_NE(vocab.chat_template.find("<|im_start|>"), std::string::npos);
}

// Prompt by one path, continuation by the low-bit path over the same K/V, as the two nodes do. A
// token must match while every margin so far exceeds what the logits may be off.
TEST_F(SmolLm2, LogitsAndGreedyContinuations) {
  const std::pair<std::string, WeightPath> prompts[] = {{"chat_moon", WeightPath::kLowBit},
                                                        {"chat_system", WeightPath::kLowBit},
                                                        {"france", WeightPath::kPacked},
                                                        {"licence_700", WeightPath::kPacked}};
  for (const auto& [prompt, path] : prompts) {
    SCOPED_TRACE(prompt);
    PlainForward run = forward(path, 256);
    std::vector<float> logits = run.append(ints(prompt + ".ids"));
    EXPECT_LE(max_difference(logits, floats(prompt + ".logits")), kTolerance);
    if (prompt == "licence_700") expect_layers(prompt, run);
    const std::vector<int32_t> greedy = ints(prompt + ".greedy");
    const std::vector<float> margin = floats(prompt + ".margin");
    int matched = 0;
    for (size_t i = 0; i < greedy.size() && margin[i] > 2 * kTolerance; ++i, ++matched) {
      ASSERT_EQ(argmax(logits), greedy[i]) << "step " << i;
      if (i + 1 < greedy.size()) logits = run.append({greedy[i]});
    }
    EXPECT_EQ(matched, static_cast<int>(greedy.size()));
  }
}

}  // namespace
}  // namespace akv::model
