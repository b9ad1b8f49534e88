// What the tests of model operators share: instruction sets as a parameter, random tensors.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/dequant.h"
#include "kernels/isa.h"
#include "kernels/types.h"

namespace akv::kernels {

// Runs each test once per instruction set; those that the CPU lacks are skipped and so counted.
class IsaTest : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!isa_supported(GetParam())) GTEST_SKIP() << isa_name(GetParam()) << " is not on this CPU";
    isa_.emplace(GetParam());
  }

 private:
  std::optional<ScopedIsa> isa_;
};

inline std::string isa_param_name(const testing::TestParamInfo<Isa>& param) {
  return isa_name(param.param);
}

#define AKV_FOR_EACH_ISA(suite)                                                                \
  INSTANTIATE_TEST_SUITE_P(                                                                    \
      Isa, suite, testing::Values(Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16), \
      isa_param_name)

inline std::vector<float> random_floats(size_t n, uint32_t seed, float scale = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

inline std::vector<bf16> random_bf16(size_t n, uint32_t seed) {
  std::vector<bf16> values(n);
  const auto floats = random_floats(n, seed);
  for (size_t i = 0; i < n; ++i) values[i] = to_bf16(floats[i]);
  return values;
}

inline constexpr TensorType kAllTypes[] = {TensorType::kF32,  TensorType::kF16,  TensorType::kBF16,
                                           TensorType::kQ4_0, TensorType::kQ4_1, TensorType::kQ5_0,
                                           TensorType::kQ5_1, TensorType::kQ8_0, TensorType::kQ4_K,
                                           TensorType::kQ5_K, TensorType::kQ6_K};

// Random stored bytes with sane scales, and the view of them.
struct StoredMatrix {
  std::vector<uint8_t> bytes;
  Matrix view;

  StoredMatrix(TensorType type, int64_t rows, int64_t cols, uint32_t seed) {
    bytes.resize(static_cast<size_t>(rows) * row_bytes(type, cols));
    view = Matrix{bytes.data(), type, rows, cols};
    std::mt19937 random(seed);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    if (type == TensorType::kF32) {
      const auto floats = random_floats(static_cast<size_t>(rows * cols), seed);
      std::memcpy(bytes.data(), floats.data(), bytes.size());
      return;
    }
    const size_t block = block_bytes(type);
    for (size_t at = 0; at < bytes.size(); at += block) set_scales(type, at, random);
  }
  StoredMatrix(const StoredMatrix&) = delete;

 private:
  void set_half(size_t at, std::mt19937& random) {
    // 0.008 to 0.03, either sign: exponent 8 or 9 of 31.
    const uint32_t bits = random();
    const uint32_t half = (bits & 0x83ffu) | (8 + (bits >> 20 & 1)) << 10;
    bytes[at] = static_cast<uint8_t>(half);
    bytes[at + 1] = static_cast<uint8_t>(half >> 8);
  }
  void set_scales(TensorType type, size_t at, std::mt19937& random) {
    if (type == TensorType::kBF16) {
      const uint16_t bits = to_bf16(static_cast<float>(random() % 2001) / 1000.0f - 1.0f).bits;
      std::memcpy(bytes.data() + at, &bits, 2);
      return;
    }
    set_half(type == TensorType::kQ6_K ? at + 208 : at, random);
    if (type == TensorType::kQ4_1 || type == TensorType::kQ5_1 || type == TensorType::kQ4_K ||
        type == TensorType::kQ5_K) {
      set_half(at + 2, random);
    }
  }
};

}  // namespace akv::kernels
