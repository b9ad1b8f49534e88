// Products for few and for many rows: one body for every backend.
#include <cmath>
#include <cstring>

#include "kernels/dequant.h"
#include "kernels/reference/model_ops.h"
#include "tests/kernels/ops.h"
#include "tests/kernels/support.h"

namespace akv::kernels {
namespace {

// Every output is within tolerance * sum |x||w| of the exact product.
void expect_near(const Floats& y, const Floats& x, int64_t m, const Matrix& w, double tolerance,
                 const Floats* before = nullptr) {
  ASSERT_EQ(y.size(), static_cast<size_t>(m * w.rows));
  for (int64_t n = 0; n < w.rows; ++n) {
    std::vector<double> column(static_cast<size_t>(w.cols));
    for (int64_t k = 0; k < w.cols; ++k)
      column[static_cast<size_t>(k)] = reference::weight(w, n, k);
    for (int64_t i = 0; i < m; ++i) {
      const auto at = static_cast<size_t>(i * w.rows + n);
      double want = before != nullptr ? static_cast<double>((*before)[at]) : 0.0;
      double magnitude = std::abs(want);
      for (int64_t k = 0; k < w.cols; ++k) {
        const double term = column[static_cast<size_t>(k)] *
                            static_cast<double>(x[static_cast<size_t>(i * w.cols + k)]);
        want += term;
        magnitude += std::abs(term);
      }
      ASSERT_NEAR(y[at], want, tolerance * magnitude)
          << type_name(w.type) << " " << w.rows << "x" << w.cols << " m " << m << " row " << i
          << " output " << n;
    }
  }
}

class MatmulOpsTest : public OpsTest {};
AKV_FOR_EACH_BACKEND(MatmulOpsTest);

// Rows of 576 columns are no multiple of 16 bytes in most formats, 21 outputs no whole tile.
TEST_P(MatmulOpsTest, LowbitMatchesTheReference) {
  for (TensorType type : kAllTypes) {
    const bool wide = block_size(type) == 256;
    for (int64_t cols : {wide ? 256 : 64, wide ? 768 : 576}) {
      const StoredMatrix w(type, 21, cols, 11);
      for (int m : {1, 3, 9, 16}) {
        const auto x = random_floats(static_cast<size_t>(m * cols), 12);
        expect_near(ops().matmul_lowbit(x, m, {w.view})[0], x, m, w.view, 1e-6);
      }
    }
  }
}

// Outlying activations must not lose the small ones: what a split into too few parts would do.
TEST_P(MatmulOpsTest, LowbitKeepsTheRangeOfF32) {
  const StoredMatrix w(TensorType::kQ8_0, 16, 320, 13);
  auto x = random_floats(2 * 320, 14);
  for (size_t i = 0; i < x.size(); i += 7) x[i] *= 3e4f;
  for (size_t i = 0; i < x.size(); i += 5) x[i] *= 1e-6f;
  expect_near(ops().matmul_lowbit(x, 2, {w.view})[0], x, 2, w.view, 1e-6);
}

TEST_P(MatmulOpsTest, LowbitRowsBitsDoNotDependOnTheBatch) {
  for (TensorType type : {TensorType::kQ4_1, TensorType::kQ6_K, TensorType::kF16}) {
    const int64_t cols = 2304, outputs = 37;
    const StoredMatrix w(type, outputs, cols, 15);
    const auto x = random_floats(static_cast<size_t>(16 * cols), 16);
    Floats alone;
    for (int i = 0; i < 16; ++i) {
      const Floats row(x.begin() + i * cols, x.begin() + (i + 1) * cols);
      const auto y = ops().matmul_lowbit(row, 1, {w.view})[0];
      alone.insert(alone.end(), y.begin(), y.end());
    }
    for (int m : {2, 8, 9, 16}) {
      const Floats part(x.begin(), x.begin() + m * cols);
      const auto y = ops().matmul_lowbit(part, m, {w.view})[0];
      ASSERT_EQ(std::memcmp(y.data(), alone.data(), y.size() * sizeof(float)), 0)
          << type_name(type) << " m " << m;
    }
  }
}

TEST_P(MatmulOpsTest, LowbitProductsOfOneInput) {
  const StoredMatrix q(TensorType::kQ4_1, 40, 512, 17), k(TensorType::kQ6_K, 19, 512, 18),
      v(TensorType::kQ4_1, 3, 512, 19);
  const auto x = random_floats(2 * 512, 20);
  const auto y = ops().matmul_lowbit(x, 2, {q.view, k.view, v.view});
  const Matrix* const matrices[] = {&q.view, &k.view, &v.view};
  for (size_t i = 0; i < 3; ++i) expect_near(y[i], x, 2, *matrices[i], 1e-6);
}

TEST_P(MatmulOpsTest, LowbitPlainFormatsTakeAnyNumberOfColumns) {
  for (TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kBF16}) {
    for (int64_t cols : {8, 40, 104, 136}) {
      const StoredMatrix w(type, 5, cols, 21);
      const auto x = random_floats(static_cast<size_t>(9 * cols), 22);
      expect_near(ops().matmul_lowbit(x, 9, {w.view})[0], x, 9, w.view, 1e-6);
    }
  }
}

TEST_P(MatmulOpsTest, GemmMatchesTheReference) {
  for (const auto& [outputs, cols] : {std::pair<int64_t, int64_t>{24, 96}, {200, 64}, {131, 40}}) {
    const StoredMatrix w(TensorType::kBF16, outputs, cols, 23);
    for (int64_t m : {1, 16, 150}) {
      const auto x = random_floats(static_cast<size_t>(m * cols), 24);
      expect_near(ops().gemm(x, m, w.view, nullptr), x, m, w.view, ops().gemm_tolerance());
    }
  }
  const StoredMatrix w(TensorType::kQ4_K, 64, 256, 25);
  const auto x = random_floats(20 * 256, 26);
  expect_near(ops().gemm(x, 20, w.view, nullptr), x, 20, w.view, ops().gemm_tolerance());
}

TEST_P(MatmulOpsTest, GemmAccumulates) {
  const StoredMatrix w(TensorType::kQ8_0, 70, 96, 27);
  const auto x = random_floats(50 * 96, 28), before = random_floats(50 * 70, 29);
  expect_near(ops().gemm(x, 50, w.view, &before), x, 50, w.view, ops().gemm_tolerance(), &before);
}

TEST_P(MatmulOpsTest, GemmRowsBitsDoNotDependOnTheChunk) {
  const int64_t cols = 192, outputs = 70, m = 140;
  const StoredMatrix w(TensorType::kQ4_1, outputs, cols, 30);
  const auto x = random_floats(static_cast<size_t>(m * cols), 31);
  const auto whole = ops().gemm(x, m, w.view, nullptr);
  int64_t row = 0;
  for (int64_t rows : {1, 17, 122}) {
    const Floats part(x.begin() + row * cols, x.begin() + (row + rows) * cols);
    const auto y = ops().gemm(part, rows, w.view, nullptr);
    ASSERT_EQ(std::memcmp(whole.data() + row * outputs, y.data(), y.size() * sizeof(float)), 0);
    row += rows;
  }
  ASSERT_EQ(row, m);
}

}  // namespace
}  // namespace akv::kernels
