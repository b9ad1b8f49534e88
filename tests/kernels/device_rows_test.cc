// Rows of the residual stream at rest: what comes back is what went in, to 11 bits.
#include <cmath>
#include <limits>

#include "kernels/packed_rows.h"
#include "tests/kernels/device_array.h"
#include "tests/kernels/support.h"

namespace akv::kernels {
namespace {

using Floats = std::vector<float>;

struct Packed {
  std::vector<uint16_t> values;
  Floats scales, back;
};

Packed through(const Floats& x, int64_t rows) {
  const auto dim = static_cast<int64_t>(x.size()) / rows;
  DeviceArray<float> in(x), out(x.size()), scales(static_cast<size_t>(rows));
  DeviceArray<uint16_t> values(x.size());
  cuda::pack_rows(in.data(), rows, dim, values.data(), scales.data(), {});
  cuda::unpack_rows(values.data(), scales.data(), rows, dim, out.data(), {});
  return {values.read(), scales.read(), out.read()};
}

TEST(PackedRows, KeepElevenBitsAndTheRangeOfTheRow) {
  for (const size_t dim : {1, 7, 64, 576, 1027, 4096}) {
    const size_t rows = 5;
    Floats x = random_floats(rows * dim, 81);
    const float sizes[] = {1.0f, 3e30f, 2e-30f, 700.0f, 1e-3f};
    for (size_t i = 0; i < x.size(); ++i) x[i] *= sizes[i / dim];
    // Outliers, as residual streams have them: the others keep their bits.
    if (dim > 7) x[3] *= 2000.0f, x[dim + 5] *= 50.0f;
    const Packed packed = through(x, rows);
    for (size_t r = 0; r < rows; ++r) {
      float largest = 0;
      for (size_t i = 0; i < dim; ++i) largest = std::max(largest, std::abs(x[r * dim + i]));
      EXPECT_EQ(std::exp2(std::round(std::log2(packed.scales[r]))), packed.scales[r]);
      for (size_t i = r * dim; i < (r + 1) * dim; ++i) {
        const float tolerance = std::max(std::abs(x[i]) * 0x1p-11f, largest * 0x1p-38f);
        ASSERT_NEAR(packed.back[i], x[i], tolerance) << dim << " row " << r << " of " << largest;
      }
    }
  }
}

TEST(PackedRows, KeepZerosInfinitiesAndNans) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Floats x = {0, 0, -0.0f, 0, /**/ 1, -inf, 2, 3, /**/ 1, nan, 2, 3, 1e-45f, 0, 0, 0};
  const Packed packed = through(x, 4);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(packed.back[i], 0.0f);
  EXPECT_EQ(packed.back[5], -inf);
  EXPECT_EQ(packed.back[6], 2.0f);
  EXPECT_TRUE(std::isnan(packed.back[9]));
  EXPECT_EQ(packed.back[11], 3.0f);
  EXPECT_NEAR(packed.back[12], 0.0f, 1e-37f);
}

// A row comes back the same whatever its neighbours and its place are.
TEST(PackedRows, DoNotDependOnEachOther) {
  const size_t dim = 96;
  const Floats x = random_floats(3 * dim, 83);
  const Floats last(x.begin() + 2 * dim, x.end());
  const Packed all = through(x, 3), alone = through(last, 1);
  for (size_t i = 0; i < dim; ++i) {
    ASSERT_EQ(all.values[2 * dim + i], alone.values[i]);
    ASSERT_EQ(all.back[2 * dim + i], alone.back[i]);
  }
}

// Packing what was unpacked changes nothing: a prompt may rest as often as it likes.
TEST(PackedRows, StayWhenPackedAgain) {
  const Floats x = random_floats(2 * 576, 84);
  const Packed once = through(x, 2), twice = through(once.back, 2);
  EXPECT_EQ(once.back, twice.back);
}

}  // namespace
}  // namespace akv::kernels
