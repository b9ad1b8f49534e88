#include "common/base/worker_pool.h"
#include "kernels/activation.h"
#include "kernels/norm.h"
#include "kernels/reference/model_ops.h"
#include "kernels/rope.h"
#include "tests/kernels/support.h"

namespace akv::kernels {
namespace {

class ElementwiseTest : public IsaTest {};
AKV_FOR_EACH_ISA(ElementwiseTest);

TEST_P(ElementwiseTest, RmsnormMatchesTheReference) {
  WorkerPool pool(2);
  for (int dim : {1, 5, 64, 576, 1027}) {
    const int64_t rows = 70;
    const auto x = random_floats(static_cast<size_t>(rows * dim), 31, 3.0f);
    const auto weights = random_floats(static_cast<size_t>(dim), 32);
    std::vector<float> out(x.size());
    std::vector<double> want(x.size());
    rmsnorm(x.data(), rows, dim, weights.data(), 1e-5f, out.data(), parallel_view(pool));
    reference::rmsnorm(x.data(), rows, dim, weights.data(), 1e-5, want.data());
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(out[i], want[i], 2e-6 * std::abs(want[i])) << dim << " " << i;
    }
    std::vector<float> in_place = x;
    rmsnorm(in_place.data(), rows, dim, weights.data(), 1e-5f, in_place.data(), serial());
    EXPECT_EQ(in_place, out);
  }
}

TEST_P(ElementwiseTest, SiluMulMatchesTheReference) {
  WorkerPool pool(2);
  for (int64_t n : {1, 19, 100003}) {
    auto gate = random_floats(static_cast<size_t>(n), 33, 8.0f);
    const auto up = random_floats(static_cast<size_t>(n), 34);
    if (n > 10) {
      gate[0] = 200.0f;
      gate[1] = -200.0f;
      gate[2] = 0.0f;
      gate[3] = -90.0f;
    }
    std::vector<float> out(gate.size());
    std::vector<double> want(gate.size());
    silu_mul(gate.data(), up.data(), n, out.data(), parallel_view(pool));
    reference::silu_mul(gate.data(), up.data(), n, want.data());
    for (size_t i = 0; i < out.size(); ++i) {
      // The exponent's own rounding grows with it; exp(87) and up is cut, true values < 1e-35.
      const double relative = 5e-7 + 1e-7 * std::abs(gate[i]);
      ASSERT_NEAR(out[i], want[i], relative * std::abs(want[i]) + 1e-34) << gate[i];
    }
  }
}

TEST_P(ElementwiseTest, AddsVectorsAndBiases) {
  WorkerPool pool(2);
  const auto x = random_floats(90001, 35), y = random_floats(90001, 36);
  auto sum = x;
  add(sum.data(), y.data(), static_cast<int64_t>(sum.size()), parallel_view(pool));
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(sum[i], x[i] + y[i]);

  auto biased = random_floats(200 * 333, 37);
  const auto before = biased;
  add_bias(biased.data(), 200, 333, y.data(), parallel_view(pool));
  for (size_t i = 0; i < biased.size(); ++i) ASSERT_EQ(biased[i], before[i] + y[i % 333]);
}

RopeParams rope_params(RopePairs pairs, int head_dim, int rope_dim, bool factors) {
  RopeParams params;
  params.head_dim = head_dim;
  params.rope_dim = rope_dim;
  params.base = 100000.0;
  params.pairs = pairs;
  const int half = (rope_dim > 0 ? rope_dim : head_dim) / 2;
  for (int j = 0; factors && j < half; ++j) {
    params.freq_factors.push_back(1.0f + static_cast<float>(j % 5));
  }
  return params;
}

TEST_P(ElementwiseTest, RopeMatchesTheReferenceAtEveryDistance) {
  for (RopePairs pairs : {RopePairs::kHalf, RopePairs::kInterleaved}) {
    for (const auto& [dim, rotated] : {std::pair{64, 0}, {128, 64}, {80, 40}, {24, 0}}) {
      const RopeTable table(rope_params(pairs, dim, rotated, dim != 64));
      const int64_t positions[] = {0, 1, 255, 256, 8191, 131071, 1000003};
      const int heads = 3;
      const size_t rows = std::size(positions);
      const auto x = random_floats(rows * heads * static_cast<size_t>(dim), 38);
      auto out = x;
      rope_apply(table, out.data(), static_cast<int64_t>(rows), heads, positions, serial());
      for (size_t v = 0; v < rows * heads; ++v) {
        const size_t at = v * static_cast<size_t>(dim);
        std::vector<double> in(x.begin() + static_cast<long>(at),
                               x.begin() + static_cast<long>(at) + dim),
            want(in.size());
        reference::rope(table.params(), in.data(), positions[v / heads], want.data());
        for (size_t d = 0; d < want.size(); ++d) {
          ASSERT_NEAR(out[at + d], want[d], 1e-6 * 8) << dim << " vector " << v << " dim " << d;
        }
        std::vector<float> back(in.size());
        rope_rotate_back(table, out.data() + at, positions[v / heads], back.data());
        for (size_t d = 0; d < want.size(); ++d) ASSERT_NEAR(back[d], x[at + d], 2e-6);
      }
    }
  }
}

TEST_P(ElementwiseTest, RopeOfConsecutiveRowsEqualsRopeByPosition) {
  WorkerPool pool(2);
  const RopeTable table(rope_params(RopePairs::kHalf, 64, 0, false));
  auto a = random_floats(600 * 9 * 64, 39);
  auto b = a;
  std::vector<int64_t> positions(600);
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = 700 + static_cast<int64_t>(i);
  rope_apply(table, a.data(), 600, 9, positions.data(), serial());
  rope_apply(table, b.data(), 600, 9, int64_t{700}, parallel_view(pool));
  EXPECT_EQ(a, b);
}

TEST(RopeTableTest, BuildsBlocksOnDemandAndOnceForAllThreads) {
  const RopeTable table(rope_params(RopePairs::kHalf, 64, 0, false));
  EXPECT_EQ(table.bytes(), 0);
  EXPECT_EQ(table.cos_row(0)[0], 1.0f);
  const int64_t block_bytes = RopeTable::kBlock * 64 * 4;
  EXPECT_EQ(table.bytes(), block_bytes);
  WorkerPool pool(4);
  std::vector<const float*> seen(64);
  pool.run(64, [&](int task, int) { seen[static_cast<size_t>(task)] = table.cos_row(5000); });
  for (const float* row : seen) EXPECT_EQ(row, seen[0]);
  EXPECT_EQ(table.bytes(), 2 * block_bytes);
  table.reserve(1024);
  EXPECT_EQ(table.bytes(), 5 * block_bytes);
  EXPECT_EQ(table.sin_row(5000), table.cos_row(5000) + 32);
}

TEST(IsaChoice, NamesAndForcing) {
  EXPECT_STREQ(isa_name(Isa::kAvx512Bf16), "avx512bf16");
  const Isa before = active_isa();
  {
    ScopedIsa portable(Isa::kPortable);
    EXPECT_EQ(active_isa(), Isa::kPortable);
    EXPECT_FALSE(amx_available());
  }
  EXPECT_EQ(active_isa(), before);
}

}  // namespace
}  // namespace akv::kernels
