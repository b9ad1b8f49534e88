#include "common/model/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "common/model/philox.h"

namespace akv::model {
namespace {

// The known answers of Random123's kat_vectors for philox4x32 with 10 rounds.
TEST(Philox, KnownAnswers) {
  using Block = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32_10({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformDependsOnSeedAndPosition) {
  std::set<double> draws;
  double sum = 0;
  for (uint64_t i = 0; i < 4000; ++i) {
    const double u = philox_uniform(i % 2 ? i << 40 : 1, i % 2 ? 1 : i << 33);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    draws.insert(u);
    sum += u;
  }
  EXPECT_EQ(draws.size(), 4000u);
  EXPECT_NEAR(sum / 4000, 0.5, 0.02);
}

class Sampler : public testing::Test {
 protected:
  Sampled draw(std::vector<float> logits, uint64_t position = 0) {
    SamplerState state(params_, prompt_, end_tokens_);
    for (const int32_t token : output_) state.add(token);
    auto sampled = sample(logits, params_, state, position, scratch_);
    EXPECT_TRUE(sampled.ok()) << sampled.error().message;
    return std::move(sampled).value();
  }
  // Relative frequencies over many positions.
  std::map<int32_t, double> frequencies(const std::vector<float>& logits, int draws = 20000) {
    std::map<int32_t, double> count;
    for (int i = 0; i < draws; ++i) count[draw(logits, i).token] += 1.0 / draws;
    return count;
  }

  SamplingParams params_;
  std::vector<int32_t> prompt_, output_, end_tokens_;
  SamplerScratch scratch_;
};

TEST_F(Sampler, GreedyTakesTheBestAndTheLowestOfEqualIds) {
  params_.temperature = 0;
  EXPECT_EQ(draw({1, 5, 3}).token, 1);
  EXPECT_EQ(draw({1, 5, 5, 5}).token, 1);
  EXPECT_EQ(draw({-1, -1}).token, 0);
}

TEST_F(Sampler, DrawsTheSoftmaxOverTheTemperature) {
  params_.temperature = 2;
  const auto seen = frequencies({0, 2, 4, -50});
  const double z = 1 + std::exp(1.0) + std::exp(2.0);
  EXPECT_NEAR(seen.at(0), 1 / z, 0.01);
  EXPECT_NEAR(seen.at(1), std::exp(1.0) / z, 0.01);
  EXPECT_NEAR(seen.at(2), std::exp(2.0) / z, 0.01);
  EXPECT_FALSE(seen.contains(3));
}

TEST_F(Sampler, SameSeedAndPositionDrawTheSameWhateverCameBefore) {
  const std::vector<float> logits(1000, 0.0f);
  params_.seed = 42;
  std::vector<int32_t> first;
  for (uint64_t p = 0; p < 50; ++p) first.push_back(draw(logits, p).token);
  for (uint64_t p = 50; p-- > 0;) EXPECT_EQ(draw(logits, p).token, first[p]);
  params_.seed = 43;
  int same = 0;
  for (uint64_t p = 0; p < 50; ++p) same += draw(logits, p).token == first[p];
  EXPECT_LT(same, 5);
}

TEST_F(Sampler, TopKKeepsTheKBestAndTheLowestIdsOfTies) {
  params_.top_k = 2;
  const auto seen = frequencies({1, 3, 2, 3, 3}, 2000);
  EXPECT_EQ(seen.size(), 2u);
  EXPECT_NEAR(seen.at(1), 0.5, 0.05);
  EXPECT_NEAR(seen.at(3), 0.5, 0.05);
}

TEST_F(Sampler, TopPKeepsTheSmallestSetOfThatMass) {
  const std::vector<float> logits = {std::log(0.1f), std::log(0.5f), std::log(0.3f),
                                     std::log(0.1f)};
  params_.top_p = 0.75f;
  auto seen = frequencies(logits);
  EXPECT_EQ(seen.size(), 2u);
  EXPECT_NEAR(seen.at(1), 0.5 / 0.8, 0.01);
  params_.top_p = 0.85f;
  seen = frequencies(logits, 4000);
  EXPECT_EQ(seen.size(), 3u);
  EXPECT_TRUE(seen.contains(0)) << "of the two equal ones the lower id";
  params_.top_p = 1e-6f;
  EXPECT_EQ(frequencies(logits, 100).size(), 1u);
}

TEST_F(Sampler, MinPIsRelativeToTheBest) {
  params_.min_p = 0.3f;
  const auto seen =
      frequencies({std::log(0.5f), std::log(0.2f), std::log(0.14f), std::log(0.16f)}, 4000);
  EXPECT_EQ(seen.size(), 3u);
  EXPECT_FALSE(seen.contains(2));
  params_.min_p = 1;
  EXPECT_EQ(frequencies({0.1f, 0.7f, 0.3f}, 100).size(), 1u);
}

// The block-wise selection against a full sort, where the cut falls anywhere.
TEST_F(Sampler, TruncationAgreesWithAFullSort) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, 2);
  for (int round = 0; round < 40; ++round) {
    std::vector<float> logits(1 + rng() % 1500);
    for (float& x : logits) x = std::round(normal(rng) * 8) / 8;  // many ties
    params_.temperature = 0.5f + static_cast<float>(rng() % 4);
    params_.top_p = 0.05f + 0.9f * static_cast<float>(rng() % 100) / 100;
    params_.top_k = static_cast<int32_t>(rng() % 400);

    std::vector<int32_t> order(logits.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    if (params_.top_k > 0 && static_cast<size_t>(params_.top_k) < order.size()) {
      order.resize(params_.top_k);
    }
    const auto weight = [&](int32_t id) {
      return std::exp(static_cast<double>(logits[id] - logits[order[0]]) / params_.temperature);
    };
    double total = 0, mass = 0, drawn = 0;
    for (const int32_t id : order) total += weight(id);
    size_t kept = 0;
    while (kept < order.size() && mass < params_.top_p * total) mass += weight(order[kept++]);
    const double target = philox_uniform(params_.seed, round) * mass;
    const int32_t token = draw(logits, round).token;
    // The drawn token's interval of the cumulative sum holds the target, within rounding.
    size_t at = 0;
    while (at < kept && order[at] != token) drawn += weight(order[at++]);
    ASSERT_LT(at, kept) << "outside the kept set";
    EXPECT_LE(drawn - 1e-4 * mass, target);
    EXPECT_GE(drawn + weight(token) + 1e-4 * mass, target);
  }
}

TEST_F(Sampler, RepetitionPenaltyCoversPromptAndOutput) {
  params_.temperature = 0;
  params_.repetition_penalty = 2;
  prompt_ = {0};
  output_ = {1};
  EXPECT_EQ(draw({5, 5, 3}).token, 2);
  EXPECT_EQ(draw({-1, -1, -1.5f}).token, 2) << "negative logits are multiplied";
  EXPECT_EQ(draw({7, 5, 3}).token, 0);
}

TEST_F(Sampler, PresenceAndFrequencyPenaltiesCoverTheOutputOnly) {
  params_.temperature = 0;
  params_.presence_penalty = 1;
  prompt_ = {0};
  EXPECT_EQ(draw({1.5f, 1, 0}).token, 0);
  output_ = {0, 0, 0};
  EXPECT_EQ(draw({1.5f, 1, 0}).token, 1);
  EXPECT_EQ(draw({2.5f, 1, 0}).token, 0) << "once, however often it came";
  params_.presence_penalty = 0;
  params_.frequency_penalty = 1;
  EXPECT_EQ(draw({3.5f, 1, 0}).token, 1);
  params_.frequency_penalty = -1;
  EXPECT_EQ(draw({-1, 1, 0}).token, 0);
}

TEST_F(Sampler, LogitBiasForcesAndBans) {
  params_.temperature = 0;
  params_.logit_bias = {{2, 100.0f}};
  EXPECT_EQ(draw({5, 4, -20}).token, 2);
  params_.logit_bias = {{0, -100.0f}};
  EXPECT_EQ(draw({5, 4, -20}).token, 1);
}

TEST_F(Sampler, LogprobsAreOfTheRawDistribution) {
  params_.temperature = 0;
  params_.logprobs = 2;
  params_.logit_bias = {{0, 10.0f}};
  params_.repetition_penalty = 1.5f;
  output_ = {0};
  const Sampled sampled = draw({0, 2, 1});
  const double z = std::log(1 + std::exp(2.0) + std::exp(1.0));
  EXPECT_EQ(sampled.token, 0);
  EXPECT_NEAR(sampled.logprob, 0 - z, 1e-6);
  ASSERT_EQ(sampled.top.size(), 2u);
  EXPECT_EQ(sampled.top[0].first, 1);
  EXPECT_NEAR(sampled.top[0].second, 2 - z, 1e-6);
  EXPECT_EQ(sampled.top[1].first, 2);

  params_.logprobs = 0;
  EXPECT_TRUE(draw({0, 2, 1}).top.empty());
  params_.logprobs = 20;
  EXPECT_EQ(draw({0, 2, 1}).top.size(), 3u) << "no more than the vocabulary";
}

TEST_F(Sampler, MinTokensKeepsTheEndAway) {
  params_.temperature = 0;
  params_.min_tokens = 2;
  params_.stop_token_ids = {1};
  end_tokens_ = {0};
  EXPECT_EQ(draw({9, 8, 1}).token, 2);
  output_ = {2};
  EXPECT_EQ(draw({9, 8, 1}).token, 2);
  output_ = {2, 2};
  EXPECT_EQ(draw({9, 8, 1}).token, 0);
}

TEST_F(Sampler, SaysWhatEndsTheGeneration) {
  params_.stop_token_ids = {7};
  params_.min_tokens = 1;
  SamplerState state(params_, {}, std::vector<int32_t>{2});
  EXPECT_EQ(state.stops_at(2), SamplerState::Stop::kNone) << "min_tokens";
  state.add(5);
  EXPECT_EQ(state.stops_at(2), SamplerState::Stop::kEndToken);
  EXPECT_EQ(state.stops_at(7), SamplerState::Stop::kStopTokenId);
  EXPECT_EQ(state.stops_at(5), SamplerState::Stop::kNone);
  params_.ignore_eos = true;
  SamplerState ignoring(params_, {}, std::vector<int32_t>{2});
  ignoring.add(5);
  EXPECT_EQ(ignoring.stops_at(2), SamplerState::Stop::kNone);
  EXPECT_EQ(ignoring.stops_at(7), SamplerState::Stop::kStopTokenId);
}

TEST_F(Sampler, BrokenLogitsAreAnError) {
  SamplerState state(params_, {}, {});
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float bad : {kNan, kInf, -kInf}) {
    std::vector<float> logits(100, 1.0f);
    logits[77] = bad;
    const auto sampled = sample(logits, params_, state, 0, scratch_);
    ASSERT_FALSE(sampled.ok());
    EXPECT_EQ(sampled.error().code, Code::kInternal);
  }
  EXPECT_FALSE(sample({}, params_, state, 0, scratch_).ok());
}

TEST_F(Sampler, NothingLeftToDrawIsAnError) {
  params_.min_tokens = 1;
  SamplerState state(params_, {}, std::vector<int32_t>{0, 1});
  std::vector<float> logits = {1, 2};
  EXPECT_FALSE(sample(logits, params_, state, 0, scratch_).ok());
}

TEST(SamplingParams, DefaultsAreValid) { EXPECT_TRUE(validate(SamplingParams{}, 10).ok()); }

struct BadParam {
  const char* param;
  void (*spoil)(SamplingParams&);
};
class RefusedParam : public testing::TestWithParam<BadParam> {};

TEST_P(RefusedParam, IsNamed) {
  SamplingParams params;
  GetParam().spoil(params);
  const Status status = validate(params, 10);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kInvalidArgument);
  EXPECT_EQ(status.error().param, GetParam().param);
  EXPECT_NE(status.error().message.find(GetParam().param), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    All, RefusedParam,
    testing::Values(
        BadParam{"temperature", [](SamplingParams& p) { p.temperature = -0.1f; }},
        BadParam{"temperature", [](SamplingParams& p) { p.temperature = NAN; }},
        BadParam{"top_k", [](SamplingParams& p) { p.top_k = -2; }},
        BadParam{"top_p", [](SamplingParams& p) { p.top_p = 0; }},
        BadParam{"top_p", [](SamplingParams& p) { p.top_p = 1.1f; }},
        BadParam{"min_p", [](SamplingParams& p) { p.min_p = -1; }},
        BadParam{"repetition_penalty", [](SamplingParams& p) { p.repetition_penalty = 0; }},
        BadParam{"presence_penalty", [](SamplingParams& p) { p.presence_penalty = 3; }},
        BadParam{"frequency_penalty", [](SamplingParams& p) { p.frequency_penalty = -3; }},
        BadParam{"top_logprobs", [](SamplingParams& p) { p.logprobs = 21; }},
        BadParam{"min_tokens", [](SamplingParams& p) { p.min_tokens = -1; }},
        BadParam{"logit_bias",
                 [](SamplingParams& p) {
                   p.logit_bias = {{10, 1.0f}};
                 }},
        BadParam{"logit_bias",
                 [](SamplingParams& p) {
                   p.logit_bias = {{1, 101.0f}};
                 }},
        BadParam{"stop_token_ids", [](SamplingParams& p) { p.stop_token_ids = {-1}; }}));

}  // namespace
}  // namespace akv::model
