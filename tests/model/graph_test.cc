// The graph against the random models of tests/golden/random_gguf (make_random_ggufs.py): every
// architecture, RoPE form and tensor type that the default model does not use.
#include "common/model/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/worker_pool.h"
#include "common/model/gguf.h"
#include "kernels/gemm.h"
#include "tests/model/allocation_count.h"
#include "tests/model/plain_forward.h"

namespace akv::model {
namespace {

using ::testing::HasSubstr;

std::string golden(const std::string& name) {
  return std::string(AKV_GOLDEN_DIR) + "/random_gguf/" + name;
}

std::shared_ptr<const Model> load(const std::string& name) {
  auto model = Model::load(golden(name + ".gguf"));
  EXPECT_TRUE(model.ok()) << model.error().message;
  return model.ok() ? *model : nullptr;
}

float largest(const std::vector<float>& x) {
  float worst = 0.0f;
  for (const float value : x) worst = std::max(worst, std::abs(value));
  return worst;
}

class RandomModel : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    model_ = load(GetParam());
    ASSERT_NE(model_, nullptr);
    std::ifstream in(golden(std::string(GetParam()) + ".json"));
    const auto expected = nlohmann::json::parse(in);
    ids_ = expected["ids"].get<std::vector<int32_t>>();
    exact_ = expected["exact"].get<std::vector<float>>();
    llama_cpp_ = expected["llama_cpp"].get<std::vector<float>>();
    llama_cpp_tolerance_ = expected["llama_cpp_tolerance"].get<float>();
    // f32 sums against float64 ones, relative to the logits' size.
    tolerance_ = 2e-5f * std::max(1.0f, largest(exact_));
  }

  std::vector<float> run(const GraphOptions& options) {
    return PlainForward(model_, options, serial()).append(ids_);
  }

  std::shared_ptr<const Model> model_;
  std::vector<int32_t> ids_;
  std::vector<float> exact_, llama_cpp_;
  float tolerance_ = 0.0f, llama_cpp_tolerance_ = 0.0f;
};

TEST_P(RandomModel, LowBitPathGivesTheLogits) {
  const std::vector<float> logits = run({.path = WeightPath::kLowBit, .max_rows = 64});
  EXPECT_LE(max_difference(logits, exact_), tolerance_);
  EXPECT_LE(max_difference(logits, llama_cpp_), llama_cpp_tolerance_ + tolerance_);
}

TEST_P(RandomModel, PackedPathGivesTheLogits) {
  const std::vector<float> logits = run({.path = WeightPath::kPacked, .max_rows = 64, .f32 = true});
  EXPECT_LE(max_difference(logits, exact_), tolerance_);
}

TEST_P(RandomModel, FastPackedPathIsNear) {
  const std::vector<float> logits = run({.path = WeightPath::kPacked, .max_rows = 64});
  // bf16 products: 8 bits of mantissa through a few layers.
  EXPECT_LE(max_difference(logits, exact_), 4e-2f * std::max(1.0f, largest(exact_)));
}

TEST_P(RandomModel, ChunksDoNotChangeABit) {
  for (const WeightPath path : {WeightPath::kLowBit, WeightPath::kPacked}) {
    const std::vector<float> whole = run({.path = path, .max_rows = 64, .f32 = true});
    for (const int64_t chunk : {1, 5, 16, 17}) {
      EXPECT_EQ(whole, run({.path = path, .max_rows = chunk, .f32 = true})) << chunk;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, RandomModel,
                         ::testing::Values("llama_rope_freqs", "llama_linear_f16", "llama_mixed",
                                           "qwen2", "qwen2_bf16", "qwen3", "qwen3_mixed"),
                         [](const auto& test) { return std::string(test.param); });

// Rows of one call at unrelated positions, as sessions of a decode batch.
class DecodeRows : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 21;  // a full block of 16 and a rest

  void SetUp() override {
    model_ = load("qwen3_mixed");
    ASSERT_NE(model_, nullptr);
    const ModelConfig& c = model_->config();
    x_.resize(static_cast<size_t>(kRows * c.d_model));
    for (size_t i = 0; i < x_.size(); ++i) x_[i] = std::sin(0.37f * static_cast<float>(i));
    for (int64_t r = 0; r < kRows; ++r) positions_.push_back((r * 131) % 1000);
  }

  // Every output of every step for rows [begin, begin + count).
  std::vector<float> steps(Graph& graph, int64_t begin, int64_t count) {
    const ModelConfig& c = model_->config();
    const auto at = static_cast<size_t>(begin);
    const auto n = static_cast<size_t>(count);
    const auto kv = n * static_cast<size_t>(c.kv_dim());
    std::vector<float> q(n * static_cast<size_t>(c.q_dim())), k(kv), rot(kv), v(kv);
    std::vector<float> x(x_.begin() + begin * c.d_model, x_.begin() + (begin + count) * c.d_model);
    QkvRows out;
    out.q = q.data();
    out.k_pre_f32 = k.data();
    out.k_rot_f32 = rot.data();
    out.v_f32 = v.data();
    graph.qkv(0, x.data(), std::span(positions_).subspan(at, n), out);
    graph.attn_out(0, q.data(), count, x.data());
    graph.mlp(0, count, x.data());
    std::vector<int64_t> rows(n);
    for (size_t i = 0; i < n; ++i) rows[i] = static_cast<int64_t>(i);
    std::vector<float> logits(n * static_cast<size_t>(c.vocab));
    graph.logits(x.data(), rows, logits.data());
    std::vector<float> all;
    for (size_t i = 0; i < n; ++i) {
      for (const auto* part : {&q, &k, &rot, &v, &x, &logits}) {
        const size_t width = part->size() / n;
        all.insert(all.end(), part->begin() + static_cast<long>(i * width),
                   part->begin() + static_cast<long>((i + 1) * width));
      }
    }
    return all;
  }

  std::shared_ptr<const Model> model_;
  std::vector<float> x_;
  std::vector<int64_t> positions_;
};

TEST_F(DecodeRows, DoNotDependOnTheBatch) {
  Graph graph(model_, {.path = WeightPath::kLowBit, .max_rows = kRows}, serial());
  const std::vector<float> together = steps(graph, 0, kRows);
  std::vector<float> apart;
  for (int64_t r = 0; r < kRows; ++r) {
    const std::vector<float> one = steps(graph, r, 1);
    apart.insert(apart.end(), one.begin(), one.end());
  }
  EXPECT_EQ(together, apart);
}

TEST_F(DecodeRows, DoNotDependOnTheThreads) {
  WorkerPool pool(3);
  Graph many(model_, {.max_rows = kRows}, parallel_view(pool));
  Graph one(model_, {.max_rows = kRows}, serial());
  EXPECT_EQ(steps(many, 0, kRows), steps(one, 0, kRows));
}

TEST_F(DecodeRows, RoundsOnceToBf16) {
  const ModelConfig& c = model_->config();
  Graph graph(model_, {}, serial());
  const auto kv = static_cast<size_t>(c.kv_dim());
  std::vector<float> q(static_cast<size_t>(c.q_dim())), k(kv), rot(kv), v(kv);
  std::vector<bf16> k16(kv), rot16(kv), v16(kv);
  graph.qkv(0, x_.data(), std::span(positions_).subspan(7, 1),
            {q.data(), k16.data(), rot16.data(), v16.data(), k.data(), rot.data(), v.data()});
  for (size_t i = 0; i < kv; ++i) {
    EXPECT_EQ(k16[i].bits, to_bf16(k[i]).bits);
    EXPECT_EQ(rot16[i].bits, to_bf16(rot[i]).bits);
    EXPECT_EQ(v16[i].bits, to_bf16(v[i]).bits);
  }
  EXPECT_NE(k, rot);
}

TEST(Graph, RefusesTokensOutsideTheVocabulary) {
  Graph graph(load("qwen2"), {}, serial());
  std::vector<float> x(3 * 64, 7.0f);
  for (const int32_t wrong : {-1, 264}) {
    const std::vector<int32_t> ids{1, wrong, 2};
    const Status status = graph.embed(ids, x.data());
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, Code::kInvalidArgument);
    Status copy = status;
    EXPECT_THAT(copy.error().message, HasSubstr("index 1"));
    EXPECT_EQ(x, std::vector<float>(3 * 64, 7.0f));
  }
}

// The decode step: nothing is allocated once the largest shape was seen.
TEST(Graph, DecodeStepsDoNotAllocate) {
  const std::shared_ptr<const Model> model = load("llama_mixed");
  const ModelConfig& c = model->config();
  Graph graph(model, {.max_rows = 16}, serial());
  const std::vector<int32_t> ids{5, 6, 7};
  const std::vector<int64_t> positions{3, 900, 40}, rows{0, 2};
  std::vector<float> x(ids.size() * static_cast<size_t>(c.d_model));
  std::vector<float> q(ids.size() * static_cast<size_t>(c.q_dim()));
  std::vector<bf16> k(ids.size() * static_cast<size_t>(c.kv_dim())), v(k.size());
  std::vector<float> logits(rows.size() * static_cast<size_t>(c.vocab));
  QkvRows out;
  out.q = q.data();
  out.k_rot = k.data();
  out.v = v.data();
  const auto step = [&] {
    ASSERT_TRUE(graph.embed(ids, x.data()).ok());
    graph.qkv(0, x.data(), positions, out);
    graph.attn_out(0, q.data(), 3, x.data());
    graph.mlp(0, 3, x.data());
    graph.logits(x.data(), rows, logits.data());
  };
  step();
  const int64_t before = allocation_count();
  for (int i = 0; i < 5; ++i) step();
  EXPECT_EQ(allocation_count() - before, 0);
}

TEST(Graph, PacksOneLayerInBuffersThatStay) {
  const std::shared_ptr<const Model> model = load("qwen2");
  Graph graph(model, {.path = WeightPath::kPacked, .max_rows = 16, .f32 = true}, serial());
  const uint64_t before = graph.scratch_bytes();
  graph.prepare_layer(0);
  const uint64_t packed = graph.scratch_bytes();
  EXPECT_GT(packed, before);
  graph.prepare_layer(1);
  EXPECT_EQ(graph.scratch_bytes(), packed);
  graph.release_packed();
  EXPECT_EQ(graph.scratch_bytes(), before);
}

}  // namespace
}  // namespace akv::model
