// Sampling on the device draws what model::sample draws from the same logits.
#include <cmath>

#include "common/model/sampler.h"
#include "kernels/sampling.h"
#include "tests/kernels/device_array.h"
#include "tests/kernels/support.h"

namespace akv::kernels {
namespace {

using cuda::SampleRule;

int32_t host_token(std::vector<float> logits, const SampleRule& rule) {
  model::SamplingParams params;
  params.temperature = rule.temperature;
  params.top_k = rule.top_k;
  params.top_p = rule.top_p;
  params.min_p = rule.min_p;
  params.seed = rule.seed;
  const model::SamplerState state(params, {}, {});
  model::SamplerScratch scratch;
  const auto sampled = model::sample(logits, params, state, rule.position, scratch);
  return sampled.ok() ? sampled->token : -1;
}

std::vector<int32_t> device_tokens(const std::vector<float>& logits,
                                   const std::vector<SampleRule>& rules) {
  const auto rows = static_cast<int64_t>(rules.size());
  const auto vocab = static_cast<int64_t>(logits.size()) / rows;
  DeviceArray<float> in(logits);
  DeviceArray<SampleRule> on_device(rules);
  DeviceArray<int32_t> tokens(rules.size());
  DeviceArray<unsigned char> scratch(cuda::sample_scratch_bytes(rows, vocab));
  cuda::sample(in.data(), rows, vocab, on_device.data(), tokens.data(), scratch.data(), {});
  scratch.read();  // its borders
  return tokens.read();
}

void expect_the_hosts(const std::vector<float>& row, std::vector<SampleRule> rules) {
  std::vector<float> logits;
  for (size_t i = 0; i < rules.size(); ++i) logits.insert(logits.end(), row.begin(), row.end());
  const auto tokens = device_tokens(logits, rules);
  for (size_t i = 0; i < rules.size(); ++i) {
    const SampleRule& r = rules[i];
    EXPECT_EQ(tokens[i], host_token(row, r))
        << "temperature " << r.temperature << " top_k " << r.top_k << " top_p " << r.top_p
        << " min_p " << r.min_p << " seed " << r.seed;
  }
}

SampleRule rule(uint64_t seed, float temperature, int32_t top_k = 0, float top_p = 1,
                float min_p = 0) {
  SampleRule r;
  r.seed = seed;
  r.position = 1000 + seed;
  r.temperature = temperature;
  r.top_k = top_k;
  r.top_p = top_p;
  r.min_p = min_p;
  return r;
}

// Every combination of truncations, each with a draw of its own.
TEST(DeviceSamplingTest, DrawsTheHostsTokens) {
  const auto logits = random_floats(1999, 81, 3.0f);
  std::vector<SampleRule> rules;
  uint64_t seed = uint64_t{1} << 40;
  for (const float temperature : {0.0f, 0.3f, 1.0f, 2.5f}) {
    for (const int32_t top_k : {0, 1, 40, 5000}) {
      for (const float top_p : {1.0f, 0.9f, 0.05f}) {
        for (const float min_p : {0.0f, 0.02f}) {
          rules.push_back(rule(++seed, temperature, top_k, top_p, min_p));
        }
      }
    }
  }
  expect_the_hosts(logits, rules);
}

// Many equal logits: ties go by id, in cuts and in draws.
TEST(DeviceSamplingTest, TiesGoToTheLowerId) {
  auto logits = random_floats(700, 82);
  for (float& x : logits) x = std::round(x);
  logits[3] = -0.0f;
  std::vector<SampleRule> rules;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    rules.push_back(rule(seed, 1.0f, 300));
    rules.push_back(rule(seed, 1.0f, 7));
    rules.push_back(rule(seed, 0.7f, 0, 0.6f));
    rules.push_back(rule(seed, 1.0f, 500, 0.8f, 0.1f));
  }
  rules.push_back(rule(1, 0.0f));
  expect_the_hosts(logits, rules);
  expect_the_hosts(std::vector<float>(64, 1.5f), {rule(4, 1.0f), rule(5, 1.0f, 10), rule(6, 0.0f)});
}

TEST(DeviceSamplingTest, ExtremesOfTheRules) {
  auto logits = random_floats(300, 83, 40.0f);
  expect_the_hosts(logits, {rule(1, 100.0f), rule(2, 1e-4f), rule(3, 1.0f, 0, 1.0f, 1.0f),
                            rule(4, 1.0f, 1, 1e-6f), rule(5, 0.9e-5f)});
  expect_the_hosts({-2.0f}, {rule(7, 1.0f, 3, 0.5f, 0.5f)});
}

TEST(DeviceSamplingTest, RefusesLogitsThatAreNotFinite) {
  auto logits = random_floats(3 * 100, 84);
  logits[50] = NAN;
  logits[250] = -INFINITY;
  const auto tokens = device_tokens(logits, {rule(1, 0.0f), rule(2, 1.0f), rule(3, 1.0f)});
  EXPECT_EQ(tokens[0], -1);
  EXPECT_GE(tokens[1], 0);
  EXPECT_EQ(tokens[2], -1);
}

}  // namespace
}  // namespace akv::kernels
