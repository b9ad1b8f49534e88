#include "common/base/worker_pool.h"
#include "kernels/gemm.h"
#include "kernels/gemv.h"
#include "kernels/reference/model_ops.h"
#include "tests/kernels/support.h"

namespace akv::kernels {
namespace {

// The size that rounding errors are relative to: sum |x||w|.
double magnitude(const float* x, const Matrix& w, int64_t row, int64_t n) {
  double sum = 0.0;
  for (int64_t k = 0; k < w.cols; ++k) {
    sum += std::abs(static_cast<double>(x[row * w.cols + k]) * reference::weight(w, n, k));
  }
  return sum;
}

void expect_near(const std::vector<float>& y, const float* x, int64_t m, const Matrix& w,
                 double tolerance, const char* what) {
  std::vector<double> want(static_cast<size_t>(m * w.rows));
  reference::matmul(x, m, w, want.data());
  for (int64_t i = 0; i < m * w.rows; ++i) {
    const double limit = tolerance * magnitude(x, w, i / w.rows, i % w.rows);
    ASSERT_NEAR(y[static_cast<size_t>(i)], want[static_cast<size_t>(i)], limit)
        << what << " row " << i / w.rows << " output " << i % w.rows;
  }
}

class LowbitTest : public IsaTest {};
AKV_FOR_EACH_ISA(LowbitTest);

TEST_P(LowbitTest, MatchesTheReference) {
  for (TensorType type : kAllTypes) {
    const int64_t cols = block_size(type) == 256 ? 768 : 576;
    const StoredMatrix w(type, 21, cols, 11);
    for (int m : {1, 3, 16}) {
      const auto x = random_floats(static_cast<size_t>(m * cols), 12);
      std::vector<float> y(static_cast<size_t>(m) * 21, NAN);
      matmul_lowbit(x.data(), m, w.view, y.data(), serial());
      expect_near(y, x.data(), m, w.view, 1e-6, type_name(type));
    }
  }
}

TEST_P(LowbitTest, ARowsBitsDoNotDependOnTheBatchOrTheWorkers) {
  WorkerPool pool(3);
  for (TensorType type : kAllTypes) {
    const int64_t cols = 2304;  // more than one chunk of scales
    const int64_t outputs = 75;
    const StoredMatrix w(type, outputs, cols, 13);
    const auto x = random_floats(static_cast<size_t>(16 * cols), 14);
    std::vector<float> alone(static_cast<size_t>(16 * outputs));
    for (int i = 0; i < 16; ++i) {
      matmul_lowbit(x.data() + i * cols, 1, w.view, alone.data() + i * outputs, serial());
    }
    for (int m = 2; m <= 16; ++m) {
      std::vector<float> y(static_cast<size_t>(m * outputs), NAN);
      matmul_lowbit(x.data(), m, w.view, y.data(), parallel_view(pool));
      ASSERT_EQ(std::memcmp(y.data(), alone.data(), y.size() * sizeof(float)), 0)
          << type_name(type) << " m " << m;
    }
  }
}

TEST_P(LowbitTest, ProductsOfOneInputShareARegion) {
  WorkerPool pool(2);
  const StoredMatrix q(TensorType::kQ4_1, 576, 576, 15), k(TensorType::kQ8_0, 192, 576, 16),
      v(TensorType::kF16, 3, 576, 17);
  const auto x = random_floats(2 * 576, 18);
  std::vector<float> y[3] = {std::vector<float>(2 * 576), std::vector<float>(2 * 192),
                             std::vector<float>(2 * 3)};
  const LowbitProduct products[] = {
      {q.view, y[0].data()}, {k.view, y[1].data()}, {v.view, y[2].data()}};
  matmul_lowbit(x.data(), 2, products, parallel_view(pool));
  for (int i = 0; i < 3; ++i) expect_near(y[i], x.data(), 2, products[i].w, 1e-6, "joint");
}

TEST_P(LowbitTest, PlainFormatsTakeAnyNumberOfColumns) {
  for (TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kBF16}) {
    for (int64_t cols : {8, 40, 104}) {
      const StoredMatrix w(type, 5, cols, 19);
      const auto x = random_floats(static_cast<size_t>(9 * cols), 20);
      std::vector<float> y(9 * 5, NAN);
      matmul_lowbit(x.data(), 9, w.view, y.data(), serial());
      expect_near(y, x.data(), 9, w.view, 1e-6, type_name(type));
    }
  }
}

// GEMM's own choice of instructions is oneDNN's, so it is parametrised by arithmetic.
class GemmTest : public testing::TestWithParam<Compute> {
 protected:
  void SetUp() override {
    if (GetParam() == Compute::kBf16 && active_isa() != Isa::kAvx512Bf16) {
      GTEST_SKIP() << "no bf16 products on this CPU";
    }
  }
  // bf16: two operands rounded to 8 bits, errors of random sign.
  double tolerance() const { return GetParam() == Compute::kBf16 ? 4e-3 : 1e-6; }
};
INSTANTIATE_TEST_SUITE_P(Compute, GemmTest, testing::Values(Compute::kF32, Compute::kBf16),
                         [](const auto& p) { return std::string(compute_name(p.param)); });

TEST_P(GemmTest, MatchesTheReference) {
  WorkerPool pool(2);
  PackedWeights packed;  // one owner for all shapes and types in turn
  for (TensorType type : kAllTypes) {
    const int64_t cols = block_size(type) == 256 ? 256 : 96;
    for (int64_t outputs : {24, 192, 200}) {
      const StoredMatrix w(type, outputs, cols, 21);
      packed.pack(w.view, GetParam(), parallel_view(pool));
      for (int64_t m : {1, 16, 70}) {
        const auto x = random_floats(static_cast<size_t>(m * cols), 22);
        std::vector<float> y(static_cast<size_t>(m * outputs), NAN);
        gemm(x.data(), m, packed, y.data(), parallel_view(pool));
        expect_near(y, x.data(), m, w.view, tolerance(), type_name(type));
      }
    }
  }
}

// The shapes of a small model, where oneDNN splits K: the split must not depend on the rows.
TEST_P(GemmTest, ARowsBitsDoNotDependOnTheChunkOrTheWorkers) {
  WorkerPool pool(3);
  const std::pair<int64_t, int64_t> shapes[] = {{576, 1536}, {1536, 576}, {576, 192}, {2048, 320}};
  for (const auto& [cols, outputs] : shapes) {
    const StoredMatrix w(TensorType::kQ4_1, outputs, cols, 23);
    PackedWeights packed;
    packed.pack(w.view, GetParam(), serial());
    const int64_t m = 400;
    const auto x = random_floats(static_cast<size_t>(m * cols), 24);
    std::vector<float> whole(static_cast<size_t>(m * outputs)), parts(whole.size());
    gemm(x.data(), m, packed, whole.data(), serial());
    int64_t row = 0;
    for (int64_t rows : {1, 17, 64, 128, 100, 90}) {
      gemm(x.data() + row * cols, rows, packed, parts.data() + row * outputs, parallel_view(pool));
      row += rows;
    }
    ASSERT_EQ(row, m);
    ASSERT_EQ(std::memcmp(whole.data(), parts.data(), whole.size() * sizeof(float)), 0)
        << cols << " -> " << outputs;
  }
}

TEST_P(GemmTest, AccumulatesIntoTheOutput) {
  const StoredMatrix w(TensorType::kQ8_0, 64, 96, 25);
  PackedWeights packed;
  packed.pack(w.view, GetParam(), serial());
  const auto x = random_floats(50 * 96, 26);
  std::vector<float> product(50 * 64), y = random_floats(50 * 64, 27);
  const auto before = y;
  gemm(x.data(), 50, packed, product.data(), serial());
  gemm(x.data(), 50, packed, y.data(), serial(), true);
  for (size_t i = 0; i < y.size(); ++i) {
    ASSERT_NEAR(y[i], before[i] + product[i], 1e-5 * (1 + std::abs(product[i])));
  }
}

TEST_P(GemmTest, RepackingReusesTheBuffer) {
  PackedWeights packed;
  const StoredMatrix a(TensorType::kQ4_1, 192, 96, 28), b(TensorType::kQ4_1, 192, 96, 29);
  packed.pack(a.view, GetParam(), serial());
  const size_t bytes = packed.bytes();
  EXPECT_GE(bytes, 192u * 96u * (GetParam() == Compute::kBf16 ? 2 : 4));
  packed.pack(b.view, GetParam(), serial());
  EXPECT_EQ(packed.bytes(), bytes);
  const auto x = random_floats(16 * 96, 30);
  std::vector<float> y(16 * 192);
  gemm(x.data(), 16, packed, y.data(), serial());
  expect_near(y, x.data(), 16, b.view, tolerance(), "second weights");
  packed.clear();
  EXPECT_EQ(packed.bytes(), 0u);
}

}  // namespace
}  // namespace akv::kernels
