#include <fstream>
#include <iterator>

#include "kernels/reference/model_ops.h"
#include "tests/kernels/support.h"

namespace akv::kernels {
namespace {

class DequantTest : public IsaTest {};
AKV_FOR_EACH_ISA(DequantTest);

std::vector<char> golden(TensorType type) {
  std::string name = type_name(type);
  for (char& c : name) c = static_cast<char>(std::tolower(c));
  std::ifstream file(std::string(AKV_GOLDEN_DIR) + "/kernels/dequant_" + name + ".bin",
                     std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Exactly what the gguf package's dequantize gives (a zero's sign aside).
TEST_P(DequantTest, MatchesGguf) {
  for (TensorType type : kAllTypes) {
    const auto file = golden(type);
    ASSERT_GT(file.size(), 8u) << type_name(type);
    uint32_t shape[2];
    std::memcpy(shape, file.data(), sizeof(shape));
    const int64_t rows = shape[0], cols = shape[1];
    const size_t stored = static_cast<size_t>(rows) * row_bytes(type, cols);
    ASSERT_EQ(file.size(), 8 + stored + static_cast<size_t>(rows * cols) * 4) << type_name(type);
    std::vector<float> expected(static_cast<size_t>(rows * cols));
    std::memcpy(expected.data(), file.data() + 8 + stored, expected.size() * 4);

    const Matrix m{file.data() + 8, type, rows, cols};
    std::vector<float> out(expected.size());
    dequantize_rows(m, 0, rows, out.data());
    EXPECT_EQ(out, expected) << type_name(type);

    std::vector<float> last(static_cast<size_t>(cols));
    dequantize_rows(m, rows - 1, 1, last.data());
    EXPECT_TRUE(std::equal(last.begin(), last.end(), expected.end() - cols)) << type_name(type);

    std::vector<bf16> rounded(expected.size());
    dequantize_rows(m, 0, rows, rounded.data());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(to_float(rounded[i]), to_float(to_bf16(expected[i]))) << type_name(type) << i;
    }
  }
}

// The oracle that the products are tested with agrees with the same files' formats.
TEST_P(DequantTest, MatchesTheReferenceOnRandomBlocks) {
  for (TensorType type : kAllTypes) {
    const StoredMatrix m(type, 2, 1280, 7);
    std::vector<float> out(2 * 1280);
    dequantize_rows(m.view, 0, 2, out.data());
    for (int64_t i = 0; i < 2 * 1280; ++i) {
      const double want = reference::weight(m.view, i / 1280, i % 1280);
      ASSERT_NEAR(out[static_cast<size_t>(i)], want, 1e-6 * std::abs(want)) << type_name(type);
    }
  }
}

TEST_P(DequantTest, PlainRowsOfAnyLength) {
  for (TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kBF16}) {
    for (int64_t cols : {1, 7, 31, 33, 1100}) {
      const StoredMatrix m(type, 2, cols, static_cast<uint32_t>(cols));
      std::vector<float> out(static_cast<size_t>(2 * cols));
      dequantize_rows(m.view, 0, 2, out.data());
      for (int64_t i = 0; i < 2 * cols; ++i) {
        ASSERT_EQ(out[static_cast<size_t>(i)], reference::weight(m.view, i / cols, i % cols));
      }
    }
  }
}

TEST_P(DequantTest, ConversionsRoundToNearestEven) {
  std::vector<float> x = random_floats(103, 3, 100.0f);
  x[0] = NAN;
  x[1] = INFINITY;
  x[2] = -0.0f;
  x[3] = 1.00390625f;  // half way, to even below
  x[4] = 1.01171875f;  // half way, to even above
  x[5] = 3.4e38f;      // rounds to infinity
  std::vector<bf16> narrow(x.size());
  convert_to_bf16(x.data(), static_cast<int64_t>(x.size()), narrow.data());
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(narrow[i].bits, to_bf16(x[i]).bits) << i;

  std::vector<float> wide(x.size());
  convert_to_float(narrow.data(), static_cast<int64_t>(x.size()), wide.data());
  for (size_t i = 1; i < x.size(); ++i) EXPECT_EQ(wide[i], to_float(narrow[i])) << i;
  EXPECT_TRUE(std::isnan(wide[0]));
}

TEST(Formats, SizesAndUnknownTypes) {
  EXPECT_EQ(row_bytes(TensorType::kQ4_1, 576), 360u);
  EXPECT_EQ(row_bytes(TensorType::kQ6_K, 512), 420u);
  EXPECT_EQ(block_size(static_cast<TensorType>(99)), 0);
  EXPECT_EQ(row_bytes(static_cast<TensorType>(99), 576), 0u);
  EXPECT_STREQ(type_name(static_cast<TensorType>(99)), "?");
}

}  // namespace
}  // namespace akv::kernels
