#include "common/model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "common/model/gguf.h"
#include "common/model/vocab_data.h"
#include "kernels/rope.h"
#include "tests/model/gguf_builder.h"

namespace akv::model {
namespace {

using ::testing::HasSubstr;

// Keeps the bytes that the model views.
struct Loaded {
  GgufBuilder::Bytes bytes;
  Result<std::shared_ptr<const Model>> model;
};

Loaded load(const GgufBuilder& builder, const LoadOptions& options = {}) {
  Loaded out{builder.build(), make_error(Code::kInternal, "not loaded")};
  auto file = GgufFile::parse(out.bytes, "dir/tiny.gguf");
  if (!file.ok()) {
    out.model = file.error();
  } else {
    out.model = Model::create(std::move(file).value(), options);
  }
  return out;
}

TEST(Model, ReadsTheConfig) {
  TinyModel tiny;
  tiny.layers = 2;
  const Loaded loaded = load(tiny.builder());
  ASSERT_TRUE(loaded.model.ok()) << loaded.model.error().message;
  const Model& model = **loaded.model;
  const ModelConfig& c = model.config();
  EXPECT_EQ(c.arch, "llama");
  EXPECT_EQ(c.name, "tiny");
  EXPECT_EQ(c.layers, 2);
  EXPECT_EQ(c.q_dim(), 16);
  EXPECT_EQ(c.kv_dim(), 8);
  EXPECT_EQ(c.vocab, 10);
  EXPECT_EQ(c.context_length, 512);
  EXPECT_EQ(c.rope.pairs, kernels::RopePairs::kInterleaved);
  EXPECT_EQ(c.rope.base, 10000.0);
  EXPECT_TRUE(c.tied);
  EXPECT_FALSE(c.qkv_bias);
  EXPECT_EQ(model.head().data, model.embedding().data);
  EXPECT_EQ(model.layer(1).w_down.cols, 24);
  EXPECT_EQ(model.layer(1).attn_norm[15], 0.01f);
  EXPECT_EQ(model.rope().max_positions(), 512);
  EXPECT_EQ(model.vocab().pieces[9], "p9");
  EXPECT_EQ(model.vocab().eos, -1);
}

TEST(Model, ReadsFamiliesAsData) {
  TinyModel qwen2;
  qwen2.arch = "qwen2";
  qwen2.bias = true;
  const Loaded two = load(qwen2.builder());
  ASSERT_TRUE(two.model.ok()) << two.model.error().message;
  EXPECT_EQ((*two.model)->config().rope.pairs, kernels::RopePairs::kHalf);
  EXPECT_NE((*two.model)->layer(0).bv, nullptr);
  EXPECT_EQ((*two.model)->layer(0).q_norm, nullptr);

  TinyModel qwen3;
  qwen3.arch = "qwen3";
  qwen3.norms = true;
  qwen3.head_dim = 16;  // not d / heads
  const Loaded three = load(qwen3.builder());
  ASSERT_TRUE(three.model.ok()) << three.model.error().message;
  EXPECT_EQ((*three.model)->config().q_dim(), 32);
  EXPECT_NE((*three.model)->layer(0).k_norm, nullptr);
  EXPECT_EQ((*three.model)->layer(0).bq, nullptr);
}

TEST(Model, TakesRopeScaling) {
  GgufBuilder b = TinyModel().builder();
  b.add_f32("rope_freqs.weight", {4}, 8.0f);
  b.add_string("llama.rope.scaling.type", "linear").add_float("llama.rope.scaling.factor", 4.0f);
  const Loaded loaded = load(b);
  ASSERT_TRUE(loaded.model.ok()) << loaded.model.error().message;
  const kernels::RopeParams& rope = (*loaded.model)->config().rope;
  EXPECT_EQ(rope.freq_factors, std::vector<float>(4, 8.0f));
  EXPECT_EQ(rope.freq_scale, 0.25);
}

TEST(Model, LimitsTheContext) {
  const Loaded loaded = load(TinyModel().builder(), {.max_context = 100});
  ASSERT_TRUE(loaded.model.ok());
  EXPECT_EQ((*loaded.model)->config().context_length, 100);
}

TEST(Model, ReadsTheVocabulary) {
  GgufBuilder b = TinyModel().builder();
  b.add_string("tokenizer.ggml.pre", "smollm").add_uint("tokenizer.ggml.bos_token_id", 1);
  b.add_uint("tokenizer.ggml.eos_token_id", 2).add_uint("tokenizer.ggml.eot_token_id", 3);
  b.add_uint("tokenizer.ggml.padding_token_id", 0xffffffffu);
  b.add_raw("tokenizer.ggml.add_bos_token", 7, uint8_t{1});
  b.add_string("tokenizer.chat_template", "{{ x }}");
  b.add_strings("tokenizer.ggml.merges", {"p 1"});
  b.add_ints("tokenizer.ggml.token_type", std::vector<int32_t>(10, 1));
  const Loaded loaded = load(b);
  ASSERT_TRUE(loaded.model.ok()) << loaded.model.error().message;
  const VocabData& vocab = (*loaded.model)->vocab();
  EXPECT_EQ(vocab.model, "gpt2");
  EXPECT_EQ(vocab.pre, "smollm");
  EXPECT_EQ(vocab.bos, 1);
  EXPECT_EQ(vocab.eos, 2);
  EXPECT_EQ(vocab.eot, 3);
  EXPECT_EQ(vocab.pad, -1);
  EXPECT_EQ(vocab.add_bos, std::optional<bool>(true));
  EXPECT_EQ(vocab.add_eos, std::nullopt);
  EXPECT_EQ(vocab.chat_template, "{{ x }}");
  EXPECT_EQ(vocab.merges.size(), 1u);
}

struct BadModel {
  const char* name;
  std::function<void(TinyModel&)> spoil;
  std::function<void(GgufBuilder&)> add;
  std::vector<const char*> message;
};

class ModelRefuses : public ::testing::TestWithParam<BadModel> {};

TEST_P(ModelRefuses, WithAMessage) {
  TinyModel tiny;
  if (GetParam().spoil) GetParam().spoil(tiny);
  GgufBuilder b = tiny.builder();
  if (GetParam().add) GetParam().add(b);
  const Loaded loaded = load(b);
  ASSERT_FALSE(loaded.model.ok());
  for (const char* part : GetParam().message) {
    EXPECT_THAT(loaded.model.error().message, HasSubstr(part));
  }
}

BadModel spoilt(const char* name, std::function<void(TinyModel&)> spoil,
                std::vector<const char*> message) {
  return {name, std::move(spoil), nullptr, std::move(message)};
}
BadModel added(const char* name, std::function<void(GgufBuilder&)> add,
               std::vector<const char*> message) {
  return {name, nullptr, std::move(add), std::move(message)};
}

const BadModel kBadModels[] = {
    spoilt("arch", [](TinyModel& m) { m.arch = "mamba"; }, {"'mamba'", "qwen3"}),
    spoilt("missing_key", [](TinyModel& m) { m.without = "block_count"; },
           {"llama.block_count", "missing"}),
    spoilt("missing_eps", [](TinyModel& m) { m.without = "eps"; }, {"epsilon", "missing"}),
    spoilt("zero_layers", [](TinyModel& m) { m.layers = 0; }, {"block_count", "0;"}),
    spoilt("groups", [](TinyModel& m) { m.heads = 3, m.kv_heads = 2; }, {"3 heads", "2 KV"}),
    spoilt("head_dim", [](TinyModel& m) { m.head_dim = 20; }, {"20 values", "multiples of 8"}),
    spoilt("width", [](TinyModel& m) { m.ff = 20; }, {"feed_forward_length", "multiple of 8"}),
    spoilt("missing_tensor", [](TinyModel& m) { m.without = "blk.0.attn_v.weight"; },
           {"'blk.0.attn_v.weight'", "missing"}),
    spoilt("missing_norm", [](TinyModel& m) { m.without = "output_norm.weight"; },
           {"'output_norm.weight'", "missing"}),
    spoilt("missing_embedding", [](TinyModel& m) { m.without = "token_embd.weight"; },
           {"'token_embd.weight'", "missing"}),
    spoilt("shape", [](TinyModel& m) { m.wrong_shape = "blk.0.ffn_up.weight"; },
           {"'blk.0.ffn_up.weight'", "[24, 24]", "[16, 24]"}),
    spoilt("embedding_shape", [](TinyModel& m) { m.wrong_shape = "token_embd.weight"; },
           {"'token_embd.weight'", "[24, 10]", "[16, 10]"}),
    spoilt("vocabulary", [](TinyModel& m) { m.tokens = 9; }, {"tokens", "9 tokens", "10 rows"}),
    spoilt("no_tokens", [](TinyModel& m) { m.without = "tokens"; },
           {"tokenizer.ggml.tokens", "missing"}),
    spoilt("not_finite", [](TinyModel& m) { m.weight = 0.0f / 0.0f; }, {"not finite"}),
    spoilt("no_bias", [](TinyModel& m) { m.arch = "qwen2"; }, {"'blk.0.attn_q.bias'", "missing"}),
    spoilt("no_head_norm", [](TinyModel& m) { m.arch = "qwen3"; },
           {"'blk.0.attn_q_norm.weight'", "missing"}),
    added("vocab_size", [](GgufBuilder& b) { b.add_uint("llama.vocab_size", 11); },
          {"10 rows", "llama.vocab_size", "11"}),
    added("unused_tensor", [](GgufBuilder& b) { b.add_f32("blk.0.attn_output.bias", {16}); },
          {"'blk.0.attn_output.bias'", "no use"}),
    added("experts", [](GgufBuilder& b) { b.add_uint("llama.expert_count", 8); },
          {"llama.expert_count", "not supported"}),
    added("sliding_window",
          [](GgufBuilder& b) { b.add_uint("llama.attention.sliding_window", 64); },
          {"sliding_window", "64"}),
    added("yarn", [](GgufBuilder& b) { b.add_string("llama.rope.scaling.type", "yarn"); },
          {"rope.scaling.type", "yarn"}),
    added("rope_dim", [](GgufBuilder& b) { b.add_uint("llama.rope.dimension_count", 10); },
          {"rope.dimension_count", "10"}),
    added("rope_factor", [](GgufBuilder& b) { b.add_f32("rope_freqs.weight", {4}, 0.0f); },
          {"'rope_freqs.weight'", "factor 0"}),
    added("value_dim", [](GgufBuilder& b) { b.add_uint("llama.attention.value_length", 16); },
          {"value_length", "16"}),
    added("key_type", [](GgufBuilder& b) { b.add_string("llama.rope.freq_base", "many"); },
          {"rope.freq_base", "got string"}),
    added("eos", [](GgufBuilder& b) { b.add_uint("tokenizer.ggml.eos_token_id", 10); },
          {"eos_token_id", "token 10", "vocabulary of 10"}),
    added("token_types",
          [](GgufBuilder& b) {
            b.add_ints("tokenizer.ggml.token_type", {1, 1});
          },
          {"token_type", "2 types for 10"}),
    added("merges_type", [](GgufBuilder& b) { b.add_ints("tokenizer.ggml.merges", {1}); },
          {"tokenizer.ggml.merges", "strings expected"}),
};

INSTANTIATE_TEST_SUITE_P(Models, ModelRefuses, ::testing::ValuesIn(kBadModels),
                         [](const auto& test) { return test.param.name; });

TEST(Model, FingerprintSeesHeaderTokensAndWeights) {
  TinyModel tiny;
  const Loaded base = load(tiny.builder());
  ASSERT_TRUE(base.model.ok());
  const Loaded same = load(tiny.builder());
  EXPECT_EQ((*base.model)->fingerprint(), (*same.model)->fingerprint());

  tiny.weight = 0.02f;
  const Loaded weights = load(tiny.builder());
  EXPECT_NE((*base.model)->fingerprint(), (*weights.model)->fingerprint());
  EXPECT_EQ((*base.model)->tokenizer_hash(), (*weights.model)->tokenizer_hash());

  tiny.weight = 0.01f;
  GgufBuilder chat = tiny.builder();
  chat.add_string("tokenizer.chat_template", "x");
  const Loaded tokens = load(chat);
  EXPECT_NE((*base.model)->fingerprint(), (*tokens.model)->fingerprint());
  EXPECT_NE((*base.model)->tokenizer_hash(), (*tokens.model)->tokenizer_hash());
}

}  // namespace
}  // namespace akv::model
