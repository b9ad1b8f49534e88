// Intrinsics and 16-bit arithmetic: the same on the shim and on a device, up to the error that a
// device's approximations are allowed.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.h"
#include "tests/cuda_shim/device_array.h"

namespace cuda_shim_test {
namespace {

using namespace akv::kernels::cuda;  // NOLINT: the functions under test

__global__ void words(uint32_t a, uint32_t b, uint32_t* out) {
  out[0] = prmt(a, b, 0x7410);
  out[1] = prmt(a, b, 0xc8f0);             // bytes 4, 0 and 7 by their signs, byte 0
  out[2] = lop3<0xe8>(a, b, 0x0ff0f00fu);  // majority
  out[3] =
      static_cast<uint32_t>(__popc(a)) << 16 | static_cast<uint32_t>(__clz(static_cast<int>(b)));
  out[4] = __brev(a);
  out[5] = static_cast<uint32_t>(__ffs(static_cast<int>(b)));
  out[6] = __byte_perm(a, b, 0x3625);
  out[7] = __funnelshift_r(a, b, 12);
  out[8] = __umulhi(a, b);
  out[9] = static_cast<uint32_t>(__dp4a(static_cast<int>(a), static_cast<int>(b), -5));
  out[10] = __fns(a, 0, 3);
}

TEST(Arithmetic, Words) {
  const DeviceArray<uint32_t> out(11);
  AKV_LAUNCH(words, 1, 1, 0, akv::DeviceStream{}, 0x81c3a577u, 0x00f02b9eu, out.data());
  const std::vector<uint32_t> got = out.read();
  EXPECT_EQ(got[0], 0x009ea577u);
  EXPECT_EQ(got[1], 0xff000077u);
  EXPECT_EQ(got[2], (0x81c3a577u & 0x00f02b9eu) | (0x81c3a577u & 0x0ff0f00fu) |
                        (0x00f02b9eu & 0x0ff0f00fu));
  EXPECT_EQ(got[3], 16u << 16 | 8u);
  EXPECT_EQ(got[4], 0xeea5c381u);
  EXPECT_EQ(got[5], 2u);
  EXPECT_EQ(got[6], 0x81f0c32bu);
  EXPECT_EQ(got[7], 0xb9e81c3au);
  EXPECT_EQ(got[8], static_cast<uint32_t>(uint64_t{0x81c3a577u} * 0x00f02b9eu >> 32));
  // 0x77 * 0x9e(-98) + 0xa5(-91) * 0x2b + 0xc3(-61) * 0xf0(-16) + 0x81 * 0 - 5
  EXPECT_EQ(static_cast<int>(got[9]), 119 * -98 - 91 * 43 + 61 * 16 - 5);
  EXPECT_EQ(got[10], 2u);
}

__global__ void reals(const float* x, float* out, int n) {
  for (int i = 0; i < n; ++i) {
    out[4 * i] = exp2_approx(x[i]);
    out[4 * i + 1] = rcp_approx(x[i]);
    out[4 * i + 2] = rsqrtf(fabsf(x[i]));
    out[4 * i + 3] = __expf(x[i]);
  }
}

TEST(Arithmetic, Approximations) {
  const std::vector<float> x = {-20.5f, -1.25f, -0.125f, 0.375f, 1.0f, 2.75f, 10.1f};
  const DeviceArray<float> in(x);
  const DeviceArray<float> out(4 * x.size());
  AKV_LAUNCH(reals, 1, 1, 0, akv::DeviceStream{}, in.data(), out.data(),
             static_cast<int>(x.size()));
  const std::vector<float> got = out.read();
  for (size_t i = 0; i < x.size(); ++i) {
    const double v = x[i];
    EXPECT_NEAR(got[4 * i] / std::exp2(v), 1.0, 1e-6) << v;
    EXPECT_NEAR(got[4 * i + 1] * v, 1.0, 1e-6) << v;
    EXPECT_NEAR(got[4 * i + 2] * std::sqrt(std::fabs(v)), 1.0, 1e-6) << v;
    EXPECT_NEAR(got[4 * i + 3] / std::exp(v), 1.0, 1e-5) << v;
  }
}

__global__ void exp2_ends(float* out) {
  out[0] = exp2_approx(-INFINITY);
  out[1] = exp2_approx(-140.0f);  // subnormal: flushed
  out[2] = exp2_approx(0.0f);
  out[3] = rcp_approx(INFINITY);
}

TEST(Arithmetic, Exp2OfNothingIsZero) {
  const DeviceArray<float> out(4);
  AKV_LAUNCH(exp2_ends, 1, 1, 0, akv::DeviceStream{}, out.data());
  EXPECT_EQ(out.read(), (std::vector<float>{0, 0, 1, 0}));
}

__global__ void conversions(const float* x, int* out, int n) {
  for (int i = 0; i < n; ++i) {
    out[i] = __float2int_rn(x[i]);
    out[n + i] = __float2int_rz(x[i]);
    out[2 * n + i] = static_cast<int>(__float2uint_rn(x[i]));
  }
}

TEST(Arithmetic, ConversionsRoundAndSaturate) {
  const std::vector<float> x = {2.5f, 3.5f, -2.5f, -0.75f, 3e9f, -3e9f};
  const DeviceArray<float> in(x);
  const DeviceArray<int> out(18);
  AKV_LAUNCH(conversions, 1, 1, 0, akv::DeviceStream{}, in.data(), out.data(), 6);
  const int most = std::numeric_limits<int>::max();
  const int least = std::numeric_limits<int>::min();
  EXPECT_EQ(out.read(), (std::vector<int>{2, 4, -2, -1, most, least,  //
                                          2, 3, -2, 0, most, least,   //
                                          2, 4, 0, 0, static_cast<int>(3000000000u), 0}));
}

// Sums, products and fused multiply-adds of 16-bit numbers, two at a time.
template <class Pair>
__global__ void small_arithmetic(const Pair* x, Pair* out, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const Pair a = x[i];
  const Pair b = x[(i * 7 + 1) % n];
  const Pair c = x[(i * 13 + 5) % n];
  out[3 * i] = __hadd2(a, b);
  out[3 * i + 1] = __hmul2(a, b);
  out[3 * i + 2] = __hfma2(a, b, c);
}

// x + rest, where rest is far smaller than x, rounded once to `bits` bits of mantissa with
// exponents from least_exponent on.
double round_once(long double x, long double rest, int bits, int least_exponent, double most) {
  if (x == 0 || std::isnan(x)) return static_cast<double>(x);
  const int exponent = std::max(std::ilogb(x), least_exponent);
  const long double unit = std::ldexp(1.0L, exponent - bits);
  const long double units = x / unit;
  long double rounded = std::nearbyint(units);
  const bool tie = std::fabs(units - std::trunc(units)) == 0.5L;
  if (tie && rest != 0) rounded = rest > 0 ? std::ceil(units) : std::floor(units);
  if (std::fabs(rounded * unit) > most) return std::copysign(INFINITY, static_cast<double>(x));
  return static_cast<double>(rounded * unit);
}

std::vector<uint32_t> pairs_of_small_numbers(uint16_t exponent_mask, int count) {
  std::vector<uint32_t> words(static_cast<size_t>(count));
  uint32_t state = 12345;
  for (uint32_t& word : words) {
    do {
      state = state * 1664525u + 1013904223u;
      word = state ^ state >> 11;
    } while ((word & exponent_mask) == exponent_mask ||
             (word >> 16 & exponent_mask) == exponent_mask);  // finite ones
  }
  return words;
}

struct Numbers {
  float (*widen)(uint16_t bits);
  uint16_t exponent_mask;
  int bits;
  int least_exponent;
  double most;
};

// Each half of each result against the exact one, rounded once.
void expect_rounded_once(const std::vector<uint32_t>& x, const std::vector<uint32_t>& got,
                         const Numbers& numbers) {
  const size_t n = x.size();
  for (size_t i = 0; i < n; ++i) {
    for (int half = 0; half < 2; ++half) {
      const auto value = [&](uint32_t word) -> long double {
        return numbers.widen(static_cast<uint16_t>(word >> (16 * half)));
      };
      const long double a = value(x[i]);
      const long double b = value(x[(i * 7 + 1) % n]);
      const long double c = value(x[(i * 13 + 5) % n]);
      const long double product = a * b;
      const long double fused = product + c;
      // What the sum lost: its exponents may lie farther apart than 64 bits.
      const long double part = fused - product;
      const long double lost = (product - (fused - part)) + (c - part);
      const long double sums[3] = {a + b, product, fused};
      for (size_t op = 0; op < 3; ++op) {
        long double rest = op == 2 ? lost : 0;
        if (op == 0) rest = std::fabs(a) > std::fabs(b) ? b - (sums[0] - a) : a - (sums[0] - b);
        const double want =
            round_once(sums[op], rest, numbers.bits, numbers.least_exponent, numbers.most);
        EXPECT_EQ(static_cast<double>(value(got[3 * i + op])), want)
            << static_cast<double>(a) << " " << static_cast<double>(b) << " "
            << static_cast<double>(c) << " operation " << op;
      }
    }
  }
}

float widen_half(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
float widen_bfloat(uint16_t bits) { return __bfloat162float(__ushort_as_bfloat16(bits)); }

TEST(Arithmetic, HalvesRoundOnce) {
  const std::vector<uint32_t> x = pairs_of_small_numbers(0x7c00, 4096);
  const DeviceArray<uint32_t> in(x);
  const DeviceArray<uint32_t> out(3 * 4096);
  AKV_LAUNCH(small_arithmetic<__half2>, 32, 128, 0, akv::DeviceStream{},
             reinterpret_cast<const __half2*>(in.data()), reinterpret_cast<__half2*>(out.data()),
             4096);
  expect_rounded_once(x, out.read(), {widen_half, 0x7c00, 10, -14, 65504.0});
}

TEST(Arithmetic, BfloatsRoundOnce) {
  const std::vector<uint32_t> x = pairs_of_small_numbers(0x7f80, 4096);
  const DeviceArray<uint32_t> in(x);
  const DeviceArray<uint32_t> out(3 * 4096);
  AKV_LAUNCH(small_arithmetic<__nv_bfloat162>, 32, 128, 0, akv::DeviceStream{},
             reinterpret_cast<const __nv_bfloat162*>(in.data()),
             reinterpret_cast<__nv_bfloat162*>(out.data()), 4096);
  expect_rounded_once(x, out.read(), {widen_bfloat, 0x7f80, 7, -126, 0x1.fep127});
}

}  // namespace
}  // namespace cuda_shim_test
