// Norm, RoPE, activations, formats: one body for every backend.
#include <algorithm>
#include <cmath>

#include "kernels/dequant.h"
#include "kernels/reference/model_ops.h"
#include "tests/kernels/ops.h"
#include "tests/kernels/support.h"

namespace akv::kernels {
namespace {

class ElementwiseOpsTest : public OpsTest {};
AKV_FOR_EACH_BACKEND(ElementwiseOpsTest);

TEST_P(ElementwiseOpsTest, RmsnormMatchesTheReference) {
  for (int dim : {1, 5, 64, 96, 128, 576, 1027}) {
    const int64_t rows = dim > 500 ? 3 : 21;
    const auto x = random_floats(static_cast<size_t>(rows * dim), 31, 3.0f);
    const auto weights = random_floats(static_cast<size_t>(dim), 32);
    const auto out = ops().rmsnorm(x, dim, weights, 1e-5f);
    std::vector<double> want(x.size());
    reference::rmsnorm(x.data(), rows, dim, weights.data(), 1e-5, want.data());
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(out[i], want[i], 2e-6 * std::abs(want[i])) << dim << " " << i;
    }
  }
}

TEST_P(ElementwiseOpsTest, SiluMulMatchesTheReference) {
  for (size_t n : {1, 19, 1028, 1029}) {
    auto gate = random_floats(n, 33, 8.0f);
    const auto up = random_floats(n, 34);
    if (n > 10) gate[0] = 200.0f, gate[1] = -200.0f, gate[2] = 0.0f, gate[3] = -90.0f;
    const auto out = ops().silu_mul(gate, up);
    std::vector<double> want(n);
    reference::silu_mul(gate.data(), up.data(), static_cast<int64_t>(n), want.data());
    for (size_t i = 0; i < n; ++i) {
      const double relative = 5e-7 + 1e-7 * std::abs(gate[i]);
      ASSERT_NEAR(out[i], want[i], relative * std::abs(want[i]) + 1e-34) << gate[i];
    }
  }
}

TEST_P(ElementwiseOpsTest, AddsVectorsAndBiases) {
  for (size_t dim : {333, 336}) {
    const auto x = random_floats(7 * dim, 35), y = random_floats(7 * dim, 36),
               bias = random_floats(dim, 37);
    const auto sum = ops().add(x, y), biased = ops().add_bias(x, bias);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(sum[i], x[i] + y[i]);
      ASSERT_EQ(biased[i], x[i] + bias[i % dim]);
    }
  }
}

TEST_P(ElementwiseOpsTest, RopeMatchesTheReferenceAtEveryDistance) {
  const std::vector<int64_t> positions = {0, 1, 255, 256, 8191, 131071, 1000003};
  for (RopePairs pairs : {RopePairs::kHalf, RopePairs::kInterleaved}) {
    for (const auto& [dim, rotated] : {std::pair{64, 0}, {128, 64}, {80, 40}, {96, 0}, {256, 0}}) {
      RopeParams params;
      params.head_dim = dim;
      params.rope_dim = rotated;
      params.base = 100000.0;
      params.pairs = pairs;
      const RopeTable table(params);
      const int heads = 3;
      const size_t rows = positions.size();
      const auto x = random_floats(rows * heads * static_cast<size_t>(dim), 38);
      const auto out = ops().rope(table, x, heads, positions);
      for (size_t v = 0; v < rows * heads; ++v) {
        const size_t at = v * static_cast<size_t>(dim);
        const std::vector<double> in(x.begin() + static_cast<long>(at),
                                     x.begin() + static_cast<long>(at) + dim);
        std::vector<double> want(in.size());
        reference::rope(params, in.data(), positions[v / heads], want.data());
        for (size_t d = 0; d < want.size(); ++d) {
          ASSERT_NEAR(out[at + d], want[d], 8e-6) << dim << " vector " << v << " dim " << d;
        }
      }
    }
  }
}

// Whole matrices and rows of them, exactly as the format says.
TEST_P(ElementwiseOpsTest, ExpandsEveryFormat) {
  for (TensorType type : kAllTypes) {
    const StoredMatrix w(type, 5, 512, 7);
    const auto whole = ops().dequantize(w.view);
    const std::vector<int32_t> ids = {4, 0, 4, 2};
    const auto rows = ops().embed(w.view, ids);
    ASSERT_EQ(whole.size(), 5u * 512u);
    ASSERT_EQ(rows.size(), 4u * 512u);
    for (int64_t i = 0; i < 5 * 512; ++i) {
      const auto want = static_cast<float>(reference::weight(w.view, i / 512, i % 512));
      ASSERT_EQ(akv::to_float(whole[static_cast<size_t>(i)]), akv::to_float(akv::to_bf16(want)))
          << type_name(type) << " element " << i;
    }
    for (int64_t i = 0; i < 4 * 512; ++i) {
      const int32_t id = ids[static_cast<size_t>(i / 512)];
      const auto want = static_cast<float>(reference::weight(w.view, id, i % 512));
      ASSERT_EQ(rows[static_cast<size_t>(i)], want) << type_name(type) << " element " << i;
    }
  }
}

TEST_P(ElementwiseOpsTest, ExpandsPlainRowsOfAnyLength) {
  for (TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kBF16}) {
    for (int64_t cols : {1, 7, 33, 40}) {
      const StoredMatrix w(type, 3, cols, static_cast<uint32_t>(cols));
      const auto whole = ops().dequantize(w.view);
      const auto row = ops().embed(w.view, {2});
      for (int64_t i = 0; i < 3 * cols; ++i) {
        const auto want = static_cast<float>(reference::weight(w.view, i / cols, i % cols));
        ASSERT_EQ(whole[static_cast<size_t>(i)].bits, akv::to_bf16(want).bits);
        if (i >= 2 * cols) {
          ASSERT_EQ(row[static_cast<size_t>(i - 2 * cols)], want);
        }
      }
    }
  }
}

TEST_P(ElementwiseOpsTest, ConversionsRoundToNearestEven) {
  for (size_t n : {103, 104}) {
    auto x = random_floats(n, 3, 100.0f);
    x[0] = NAN;
    x[1] = INFINITY;
    x[2] = -0.0f;
    x[3] = 1.00390625f;  // half way, to even below
    x[4] = 1.01171875f;  // half way, to even above
    x[5] = 3.4e38f;      // rounds to infinity
    const auto narrow = ops().to_bf16(x);
    const auto wide = ops().to_float(narrow);
    EXPECT_TRUE(std::isnan(akv::to_float(narrow[0])));
    EXPECT_TRUE(std::isnan(wide[0]));
    for (size_t i = 1; i < n; ++i) {
      EXPECT_EQ(narrow[i].bits, akv::to_bf16(x[i]).bits) << i;
      EXPECT_EQ(wide[i], akv::to_float(narrow[i])) << i;
    }
  }
}

}  // namespace
}  // namespace akv::kernels
