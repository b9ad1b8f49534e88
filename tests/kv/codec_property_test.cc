// Properties that hold for every state: section 7's output error bound, projection errors, eta of
// both scale rules, exactness of anchors and window, and independence of the number of workers.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "common/base/worker_pool.h"
#include "common/kv/layer_encoder.h"
#include "kernels/codec.h"
#include "kernels/isa.h"
#include "kernels/reference/anchor_codec.h"
#include "kernels/residual_codec.h"
#include "tests/kv/state_fixture.h"

namespace akv::kv {
namespace {

namespace ref = kernels::reference;
using testing::CaseSpec;
using testing::GoldenCase;
using testing::seal_state;
using testing::SealedState;

PlanRequest request(const CodecOptions& options, double theta = 0.3) {
  PlanRequest r;
  r.options = options;
  r.theta = theta;
  r.min_compress_tokens = 1;
  return r;
}

struct Rebuilt {
  std::vector<float> k, v;
};

Rebuilt rebuild(const SealedState& s) {
  const StateView view = StateView::create(s.buffer.bytes(), s.plan);
  Rebuilt r;
  r.k.resize(s.inputs.k.size());
  r.v.resize(s.inputs.v.size());
  reconstruct_layer(*view.compressed(0), *s.rope, r.k.data(), r.v.data());
  return r;
}

ref::Row row_of(const std::vector<float>& x, const GoldenCase& c, int64_t t, int h) {
  const float* p = x.data() + (t * c.kv_heads + h) * c.head_dim;
  return ref::Row(p, p + c.head_dim);
}
ref::Row row_of(const std::vector<bf16>& x, const GoldenCase& c, int64_t t, int h) {
  return ref::to_row(x.data() + (t * c.kv_heads + h) * c.head_dim, c.head_dim);
}

double distance(const ref::Row& a, const ref::Row& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

// |y - yhat| <= sum_t alphahat_t |V_t - Vhat_t| + 2 Vmax tanh(mu), mu = |q| max |K - Khat| / sqrt
// D.
void expect_bound(const SealedState& s) {
  const GoldenCase& c = s.inputs;
  const Rebuilt hat = rebuild(s);
  for (int q = 0; q < c.heads(); ++q) {
    const int h = q / c.group;
    ref::Rows k, v, k_hat, v_hat;
    double worst_key = 0, largest_value = 0;
    for (int64_t t = 0; t < c.tokens; ++t) {
      k.push_back(ref::rope(c.rope, row_of(c.k, c, t, h), t));
      k_hat.push_back(ref::rope(c.rope, row_of(hat.k, c, t, h), t));
      v.push_back(row_of(c.v, c, t, h));
      v_hat.push_back(row_of(hat.v, c, t, h));
      worst_key = std::max(worst_key, distance(k.back(), k_hat.back()));
      largest_value = std::max(largest_value, std::sqrt(ref::dot(v.back(), v.back())));
    }
    const float* x = c.q_new.data() + int64_t{q} * c.head_dim;
    const ref::Row query(x, x + c.head_dim);
    const auto full = ref::attend(query, k, v, c.tokens);
    const auto compressed = ref::attend(query, k_hat, v_hat, c.tokens);
    double bound = 0;
    for (int64_t t = 0; t < c.tokens; ++t) {
      bound += compressed.alpha[t] * distance(v[t], v_hat[t]);
    }
    const double mu = std::sqrt(ref::dot(query, query)) * worst_key / std::sqrt(double(c.head_dim));
    bound += 2 * largest_value * std::tanh(mu);
    EXPECT_LE(distance(full.y, compressed.y), bound * (1 + 1e-9)) << "head " << q;
  }
}

TEST(CodecProperty, OutputErrorBound) {
  for (const CodecOptions& o : {paper_options(), pooled_options()}) {
    for (uint32_t seed : {1u, 2u, 3u}) {
      CaseSpec spec;
      spec.seed = seed;
      spec.noise = 0.1 * seed;
      const SealedState s = seal_state(spec, 1, request(o));
      ASSERT_TRUE(s.status.ok());
      expect_bound(s);
    }
  }
}

// Without a residual a row's error is its projection's; anchors and window are exact.
TEST(CodecProperty, ProjectionErrorAndExactAnchors) {
  for (const CodecOptions& o : {paper_options(), pooled_options()}) {
    CaseSpec spec;
    spec.tokens = 300;
    const SealedState s = seal_state(spec, 1, request(o, 0.25));
    ASSERT_TRUE(s.status.ok());
    const GoldenCase& c = s.inputs;
    const Rebuilt hat = rebuild(s);
    const StateView view = StateView::create(s.buffer.bytes(), s.plan);
    int bare = 0;
    for (int h = 0; h < c.kv_heads; ++h) {
      const auto& side = view.compressed(0)->heads[h].key;
      for (int64_t t = 0; t < c.tokens; ++t) {
        const ref::Row x = row_of(c.k, c, t, h);
        const double error = distance(x, row_of(hat.k, c, t, h));
        if (t >= c.prefix()) {
          EXPECT_EQ(error, 0.0);
          continue;
        }
        const int slot = side.slots8 ? side.slots8[t] : side.slots16[t];
        const double gamma =
            side.gamma8 ? kernels::log8_table()[side.gamma8[t]] : to_float(side.gamma16[t]);
        const ref::Row anchor = ref::to_row(side.anchors + int64_t{slot} * c.head_dim, c.head_dim);
        ref::Row projected = anchor;
        for (double& p : projected) p *= gamma;
        const bool has = (side.mask[t >> 6] >> (t & 63)) & 1;
        if (!has) {
          ++bare;
          EXPECT_LE(error, distance(x, projected) * (1 + 1e-5) + 1e-6);
        }
      }
    }
    EXPECT_GT(bare, 100);
  }
}

// Relative energy that a residual leaves, on Gaussian rows.
double eta(int dim, int bits, bool least_squares, bool bf16_scale) {
  std::mt19937 rng(11);
  std::normal_distribution<float> normal;
  double left = 0, total = 0;
  std::vector<float> x(dim);
  std::vector<uint8_t> codes(dim);
  for (int row = 0; row < 4000; ++row) {
    for (float& v : x) v = normal(rng);
    float scale = kernels::quantize_row(x.data(), dim, bits, least_squares, codes.data());
    if (bf16_scale) scale = to_float(to_bf16(scale));
    for (int i = 0; i < dim; ++i) {
      const float level = bits == 2 ? kernels::kLevels2[codes[i]] : kernels::kLevels4[codes[i]];
      left += std::pow(double(x[i]) - double(scale) * level, 2);
      total += double(x[i]) * x[i];
    }
  }
  return left / total;
}

TEST(CodecProperty, EtaOfTheScaleRules) {
  for (int dim : {64, 128, 256}) {
    const double lsq = eta(dim, 2, true, false), stored = eta(dim, 2, true, true);
    const double absmax = eta(dim, 2, false, false), four = eta(dim, 4, true, true);
    std::printf("eta D=%d: lsq %.4f, lsq in bf16 %.4f, absmax %.4f, lsq 4 bits %.5f\n", dim, lsq,
                stored, absmax, four);
    // The optimum of a Gaussian source is 0.1175; fitting each row's own scale beats it a little.
    EXPECT_NEAR(lsq, kernels::kEta2, 0.008);
    EXPECT_LT(lsq, kernels::kEta2);
    EXPECT_NEAR(stored, lsq, 1e-4);
    EXPECT_NEAR(four, kernels::kEta4, 0.002);
    // The paper's rule read literally: kernels.md 5.5 measured 0.228 at D=64 and 0.266 at 128.
    EXPECT_NEAR(absmax, dim == 64 ? 0.228 : dim == 128 ? 0.266 : 0.305, 0.01);
  }
}

TEST(CodecProperty, RecordsDoNotDependOnWorkersOrRepetition) {
  CaseSpec spec;
  spec.tokens = 1500;
  spec.kv_heads = 3;
  for (const CodecOptions& o : {paper_options(), pooled_options()}) {
    const SealedState one = seal_state(spec, 2, request(o, 0.2));
    WorkerPool pool(3);
    const SealedState three = seal_state(spec, 2, request(o, 0.2), parallel_view(pool));
    ASSERT_TRUE(one.status.ok());
    ASSERT_TRUE(three.status.ok());
    const auto a = one.buffer.bytes(), b = three.buffer.bytes();
    ASSERT_EQ(a.size(), b.size());
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin()));
  }
}

// Every point of the option space encodes, verifies, and rebuilds better than nothing.
TEST(CodecProperty, EveryOptionCombination) {
  CaseSpec spec;
  spec.tokens = 280;
  spec.kv_heads = 1;
  spec.head_dim = 32;
  const char* options[][3] = {{"layout", "paper", "compact"}, {"coefficient", "bf16", "log8"},
                              {"scale", "absmax", "lsq"},     {"scale_type", "fp32", "bf16"},
                              {"domain", "pre", "post"},      {"ranking", "eq6", "pooled"},
                              {"widths", "2", "2+4"},         {"k", "paper", "pooled"}};
  for (int point = 0; point < 256; ++point) {
    CodecOptions o;
    for (int i = 0; i < 8; ++i) {
      ASSERT_TRUE(set_option(o, options[i][0], options[i][1 + ((point >> i) & 1)]).ok());
    }
    const SealedState s = seal_state(spec, 1, request(o, 0.45));
    ASSERT_TRUE(s.status.ok()) << describe(o) << ": " << s.status.error().message;
    const Status ok = verify_record(s.buffer.record(s.plan, 0), 0, s.plan, s.checksum);
    ASSERT_TRUE(ok.ok()) << describe(o) << ": " << ok.error().message;
    EXPECT_LE(double(s.plan.total_bytes), 0.45 * double(s.plan.dense_bytes));
    const Rebuilt hat = rebuild(s);
    double error = 0, energy = 0;
    for (size_t i = 0; i < hat.k.size(); ++i) {
      error += std::pow(double(hat.k[i]) - to_float(s.inputs.k[i]), 2);
      energy += std::pow(double(to_float(s.inputs.k[i])), 2);
    }
    EXPECT_LT(error, 0.2 * energy) << describe(o);
  }
}

// Whole-state bytes at 20x with residuals of both widths, as the engine holds them.
TEST(CodecProperty, TwentyTimesSmaller) {
  CaseSpec spec;
  spec.tokens = 4096;
  spec.kv_heads = 3;
  spec.group = 3;
  const SealedState s = seal_state(spec, 1, request(pooled_options(), 0.05));
  ASSERT_TRUE(s.status.ok());
  EXPECT_TRUE(s.plan.reachable);
  EXPECT_LE(s.buffer.size() * 20, s.plan.dense_bytes);
  EXPECT_EQ(s.buffer.size(), s.plan.total_bytes);
  const StateView view = StateView::create(s.buffer.bytes(), s.plan);
  uint64_t residuals = 0;
  for (int h = 0; h < 3; ++h) {
    const auto& head = view.compressed(0)->heads[h];
    residuals += head.key.n2 + head.key.n4 + head.value.n2 + head.value.n4;
  }
  EXPECT_GT(residuals, 500u);
}

}  // namespace
}  // namespace akv::kv
