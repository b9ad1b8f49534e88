// Byte plans: the recorded ones, the worked example, and what holds for every state.
#include "common/kv/plan.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "common/kv/record_layout.h"

namespace akv::kv {
namespace {

constexpr KvShape kSmollm{30, 9, 3, 64};

PlanRequest request(const char* profile, double theta) {
  PlanRequest r;
  r.options = *profile_options(profile);
  r.theta = theta;
  return r;
}

TEST(LayerPlan, FiveHundredRecordedPlans) {
  std::ifstream file(AKV_GOLDEN_DIR "/codec/plans.json");
  const auto plans = nlohmann::json::parse(file);
  ASSERT_EQ(plans.size(), 500u);
  for (const auto& p : plans) {
    CodecOptions o = *profile_options(p.at("profile").get<std::string>());
    o.window = p.at("W");
    const KvShape shape{1, p.at("H"), p.at("H"), p.at("D")};
    const LayerPlan plan = plan_layer(shape, p.at("S"), p.at("theta"), o);
    EXPECT_EQ(plan.k, p.at("k").get<int>()) << p;
    EXPECT_EQ(plan.base, p.at("base").get<uint64_t>()) << p;
    EXPECT_EQ(plan.full, p.at("full").get<uint64_t>()) << p;
    EXPECT_EQ(plan.spare, p.at("spare").get<uint64_t>()) << p;
    EXPECT_EQ(plan.fits, p.at("fits").get<bool>()) << p;
  }
}

// Section 5's worked example, to the byte.
TEST(LayerPlan, WorkedExample) {
  const KvShape shape{1, 32, 8, 128};
  const CodecOptions o = paper_options();
  const LayerPlan plan = plan_layer(shape, 32768, 0.05, o);
  EXPECT_EQ(plan.k, 256);
  EXPECT_EQ(plan.full, 134'217'728u);
  EXPECT_EQ(plan.base, 3'387'336u);
  EXPECT_EQ(plan.spare, 3'323'550u);
  const uint64_t keys = plan.key_bytes / residual_cost(128, o, false);
  const uint64_t values = plan.value_bytes / residual_cost(128, o, true);
  EXPECT_EQ(keys + values, 91'056u);
  EXPECT_EQ(keys, 45'528u);
  EXPECT_EQ(residual_cost(128, o, false), 36);
  EXPECT_EQ(residual_cost(128, o, true), 37);
}

// Section 5: paper's layout leaves 1,313 residuals at D=64, H=3, S=8192, compact 5,445.
TEST(LayerPlan, CompactHoldsMoreResiduals) {
  const KvShape shape{1, 9, 3, 64};
  CodecOptions o = paper_options();
  const auto count = [&](const LayerPlan& p) {
    return p.key_bytes / residual_cost(64, o, false) + p.value_bytes / residual_cost(64, o, true);
  };
  EXPECT_EQ(count(plan_layer(shape, 8192, 0.05, o)), 1313u);
  ASSERT_TRUE(set_option(o, "layout", "compact").ok());
  EXPECT_EQ(count(plan_layer(shape, 8192, 0.05, o)), 5445u);
}

// Without overhead the bounds of section 5 hold to the token.
TEST(LayerPlan, FirstReachableTokens) {
  const auto first = [](const char* profile, double theta) -> int64_t {
    for (int64_t s = 512; s < 10000; ++s) {
      if (plan_layer(kSmollm, s, theta, *profile_options(profile)).fits) return s;
    }
    return 0;
  };
  EXPECT_EQ(first("pooled", 0.05), 1264);
  EXPECT_EQ(first("paper", 0.05), 3921);
  EXPECT_EQ(first("pooled", 0.025), 6152);
  EXPECT_EQ(first("paper", 0.025), 0);
}

TEST(StatePlan, WholeStateStaysWithinTheta) {
  for (const char* profile : {"paper", "pooled"}) {
    for (const KvShape shape : {kSmollm, KvShape{32, 32, 8, 128}, KvShape{3, 4, 1, 256},
                                KvShape{5, 16, 16, 80}, KvShape{7, 12, 2, 112}}) {
      for (int64_t tokens : {4097, 7500, 16384, 32771}) {
        for (double theta : {0.05, 0.1, 0.25, 1.0}) {
          const auto plan = plan_state(shape, tokens, request(profile, theta));
          ASSERT_TRUE(plan.ok()) << plan.error().message;
          if (!plan->reachable) continue;
          EXPECT_LE(double(plan->total_bytes), theta * double(plan->dense_bytes));
          if (theta == 0.05) {
            EXPECT_LE(plan->total_bytes * 20, plan->dense_bytes);
          }
          EXPECT_EQ(plan->dense_bytes, dense_bytes(shape, tokens));
        }
      }
    }
  }
}

TEST(StatePlan, RecordsFillTheStateWithoutGaps) {
  const auto plan = plan_state(kSmollm, 8000, request("pooled", 0.05));
  ASSERT_TRUE(plan.ok());
  uint64_t at = plan->header_bytes;
  for (size_t l = 0; l < plan->record_bytes.size(); ++l) {
    EXPECT_EQ(plan->record_offset[l], at);
    EXPECT_EQ(at % 8, 0u);
    at += plan->record_bytes[l];
  }
  EXPECT_EQ(at, plan->total_bytes);
  const RecordLayout layout = record_layout(kSmollm, 8000, plan->layer, plan->options);
  EXPECT_LE(layout.end, plan->record_bytes[0]);
  EXPECT_GT(layout.end + 8, plan->record_bytes[0]);
  // The whole overhead of a 20x state is below a thousandth of it.
  EXPECT_GT(plan->ratio(), 20.0);
  EXPECT_LT(plan->ratio(), 20.02);
}

TEST(StatePlan, ShortPromptsAndCodecNoneAreDense) {
  const auto expect_dense = [](const Result<StatePlan>& plan) {
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ(plan->codec, Codec::kNone);
    EXPECT_GE(plan->total_bytes, plan->dense_bytes);
    EXPECT_LT(plan->total_bytes, plan->dense_bytes + 64 * 31 + 1024);
  };
  expect_dense(plan_state(kSmollm, 511, request("pooled", 0.5)));
  PlanRequest low = request("pooled", 0.5);
  low.min_compress_tokens = 1;
  expect_dense(plan_state(kSmollm, 111, low));
  EXPECT_EQ(plan_state(kSmollm, 112, low)->codec, Codec::kAnchorKv);
  PlanRequest none = request("pooled", 0.05);
  none.codec = Codec::kNone;
  expect_dense(plan_state(kSmollm, 9000, none));
  expect_dense(plan_state(kSmollm, 1, none));
}

TEST(StatePlan, UnreachableThetaFollowsThePolicy) {
  PlanRequest r = request("paper", 0.025);
  const auto best = plan_state(kSmollm, 4000, r);
  ASSERT_TRUE(best.ok());
  EXPECT_FALSE(best->reachable);
  EXPECT_EQ(best->codec, Codec::kAnchorKv);
  EXPECT_GT(best->theta, 0.025);
  EXPECT_EQ(best->layer.key_bytes + best->layer.value_bytes, 0u);
  EXPECT_EQ(best->layer.k, 48);

  r.on_unreachable = OnUnreachable::kDense;
  EXPECT_EQ(plan_state(kSmollm, 4000, r)->codec, Codec::kNone);
  EXPECT_FALSE(plan_state(kSmollm, 4000, r)->reachable);

  r.on_unreachable = OnUnreachable::kError;
  const auto error = plan_state(kSmollm, 4000, r);
  ASSERT_FALSE(error.ok());
  EXPECT_EQ(error.error().param, "theta");
  EXPECT_NE(error.error().message.find("smallest reachable theta is 0.04"), std::string::npos)
      << error.error().message;
}

// The theta that the error names is reachable, one a little below it is not.
TEST(StatePlan, SmallestThetaIsExact) {
  for (const char* profile : {"paper", "pooled"}) {
    for (int64_t tokens : {700, 4000, 8191}) {
      const double least = plan_state(kSmollm, tokens, request(profile, 0.9))->smallest_theta;
      EXPECT_TRUE(plan_state(kSmollm, tokens, request(profile, least))->reachable);
      EXPECT_FALSE(plan_state(kSmollm, tokens, request(profile, least * 0.9999))->reachable);
    }
  }
}

TEST(StatePlan, BadRequestsNameTheirParameter) {
  const auto param = [](const KvShape& shape, int64_t tokens, const PlanRequest& r) {
    const auto plan = plan_state(shape, tokens, r);
    return plan.ok() ? std::string("ok") : plan.error().param;
  };
  EXPECT_EQ(param(kSmollm, 8000, request("pooled", 0)), "theta");
  EXPECT_EQ(param(kSmollm, 8000, request("pooled", 1.5)), "theta");
  EXPECT_EQ(param(kSmollm, 8000, request("pooled", std::nan(""))), "theta");
  EXPECT_EQ(param(kSmollm, 0, request("pooled", 0.1)), "tokens");
  EXPECT_EQ(param(kSmollm, int64_t{1} << 40, request("pooled", 0.1)), "tokens");
  EXPECT_EQ(param({1, 4, 3, 64}, 8000, request("pooled", 0.1)), "shape");
  EXPECT_EQ(param({1, 4, 2, 72}, 8000, request("pooled", 0.1)), "head_dim");
  EXPECT_EQ(param({1, 34, 2, 64}, 8000, request("pooled", 0.1)), "heads");
  PlanRequest r = request("pooled", 0.1);
  r.options.window = 0;
  EXPECT_EQ(param(kSmollm, 8000, r), "window");
}

TEST(StatePlan, AutoTheta) {
  EXPECT_DOUBLE_EQ(auto_theta(1000), 0.2);
  EXPECT_DOUBLE_EQ(auto_theta(4000), 0.05);
  EXPECT_DOUBLE_EQ(auto_theta(100000), 0.05);
  EXPECT_DOUBLE_EQ(auto_theta(10), 1.0);
}

TEST(CodecOptions, SetDescribeRoundTrip) {
  EXPECT_EQ(describe(paper_options()), "paper");
  EXPECT_EQ(describe(pooled_options()), "pooled");
  CodecOptions o = paper_options();
  ASSERT_TRUE(set_option(o, "layout", "compact").ok());
  ASSERT_TRUE(set_option(o, "scale", "lsq").ok());
  EXPECT_EQ(describe(o), "paper+layout=compact+scale=lsq");
  const std::pair<const char*, const char*> all[] = {
      {"layout", "paper"}, {"coefficient", "bf16"}, {"scale", "absmax"}, {"scale_type", "fp32"},
      {"domain", "pre"},   {"ranking", "eq6"},      {"widths", "2"},     {"k", "paper"},
      {"window", "32"},    {"rho", "0.7"},          {"kernel", "7"},     {"pool", "31"},
      {"seed", "42"}};
  CodecOptions p = pooled_options();
  for (const auto& [key, value] : all) EXPECT_TRUE(set_option(p, key, value).ok()) << key;
  EXPECT_EQ(p, paper_options());
  ASSERT_TRUE(set_option(p, "rho", "0.05").ok());
  EXPECT_EQ(describe(p), "paper+rho=0.05");
}

TEST(CodecOptions, BadValuesNameTheKey) {
  CodecOptions o;
  const std::pair<const char*, const char*> bad[] = {
      {"layout", "dense"}, {"widths", "3"}, {"window", "0"}, {"window", "x"}, {"kernel", "6"},
      {"rho", "1.5"},      {"rho", ""},     {"seed", "-1"},  {"pool", "2"},   {"scale", ""},
  };
  for (const auto& [key, value] : bad) {
    const Status s = set_option(o, key, value);
    ASSERT_FALSE(s.ok()) << key;
    EXPECT_EQ(s.error().param, key);
  }
  EXPECT_FALSE(set_option(o, "nonsense", "1").ok());
  EXPECT_EQ(o, pooled_options());
  EXPECT_FALSE(profile_options("other").ok());
}

}  // namespace
}  // namespace akv::kv
