// Fragment layouts of mma and ldmatrix, cp.async: the same on the shim and on a device.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.h"
#include "tests/cuda_shim/device_array.h"

namespace cuda_shim_test {
namespace {

using namespace akv::kernels::cuda;  // NOLINT: the functions under test

enum class Format { kBf16, kF16 };

__device__ uint32_t pair(const uint16_t* p, int stride) {
  return static_cast<uint32_t>(p[stride]) << 16 | p[0];
}

// c [16, 8] += a [16, 16] b [16, 8], fragments filled element by element as PTX numbers them.
template <Format F>
__global__ void multiply(const uint16_t* a, const uint16_t* b, float* c) {
  const int g = static_cast<int>(threadIdx.x) / 4;
  const int t = static_cast<int>(threadIdx.x) % 4;
  const uint32_t ra[4] = {pair(a + g * 16 + 2 * t, 1), pair(a + (g + 8) * 16 + 2 * t, 1),
                          pair(a + g * 16 + 2 * t + 8, 1), pair(a + (g + 8) * 16 + 2 * t + 8, 1)};
  const uint32_t rb[2] = {pair(b + 2 * t * 8 + g, 8), pair(b + (2 * t + 8) * 8 + g, 8)};
  float d[4] = {c[g * 8 + 2 * t], c[g * 8 + 2 * t + 1], c[(g + 8) * 8 + 2 * t],
                c[(g + 8) * 8 + 2 * t + 1]};
  if constexpr (F == Format::kBf16) {
    mma_bf16(d, ra, rb);
  } else {
    mma_f16(d, ra, rb);
  }
  c[g * 8 + 2 * t] = d[0];
  c[g * 8 + 2 * t + 1] = d[1];
  c[(g + 8) * 8 + 2 * t] = d[2];
  c[(g + 8) * 8 + 2 * t + 1] = d[3];
}

// The same with the fragments loaded by ldmatrix, as kernels do: a row-major, b row-major [k, n].
__global__ void multiply_by_ldmatrix(const uint16_t* a, const uint16_t* b, float* c) {
  __shared__ __align__(16) uint16_t sa[16 * 16];
  __shared__ __align__(16) uint16_t sb[16 * 8];
  const int lane = static_cast<int>(threadIdx.x);
  cp_async<16>(sa + lane * 8, a + lane * 8);
  if (lane < 16) cp_async<16>(sb + lane * 8, b + lane * 8);
  cp_async_commit();
  cp_async_wait<0>();
  __syncwarp();
  uint32_t ra[4];
  uint32_t rb[2];
  ldmatrix_x4(ra, sa + lane % 16 * 16 + lane / 16 * 8);
  ldmatrix_x2_trans(rb, sb + lane % 16 * 8);
  float d[4] = {0, 0, 0, 0};
  mma_bf16(d, ra, rb);
  const int g = lane / 4;
  const int t = lane % 4;
  for (int i = 0; i < 4; ++i) c[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = d[i];
}

struct Problem {
  std::vector<uint16_t> a, b;
  std::vector<float> c, want;
};

uint16_t narrow(float x, Format format) {
  if (format == Format::kBf16) return __bfloat16_as_ushort(__float2bfloat16_rn(x));
  return __half_as_ushort(__float2half_rn(x));
}
float widen(uint16_t x, Format format) {
  if (format == Format::kBf16) return __bfloat162float(__ushort_as_bfloat16(x));
  return __half2float(__ushort_as_half(x));
}

Problem make_problem(Format format, bool add) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> value(-2, 2);
  Problem p{std::vector<uint16_t>(256), std::vector<uint16_t>(128), std::vector<float>(128),
            std::vector<float>(128)};
  for (uint16_t& x : p.a) x = narrow(value(random), format);
  for (uint16_t& x : p.b) x = narrow(value(random), format);
  for (float& x : p.c) x = add ? value(random) : 0.0f;
  for (size_t i = 0; i < 16; ++i) {
    for (size_t j = 0; j < 8; ++j) {
      double sum = p.c[i * 8 + j];
      for (size_t k = 0; k < 16; ++k) {
        sum += double{widen(p.a[i * 16 + k], format)} * double{widen(p.b[k * 8 + j], format)};
      }
      p.want[i * 8 + j] = static_cast<float>(sum);
    }
  }
  return p;
}

void expect_near(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-5) << i;
}

TEST(Mma, Bf16) {
  const Problem p = make_problem(Format::kBf16, true);
  const DeviceArray<uint16_t> a(p.a), b(p.b);
  const DeviceArray<float> c(p.c);
  AKV_LAUNCH(multiply<Format::kBf16>, 1, 32, 0, akv::DeviceStream{}, a.data(), b.data(), c.data());
  expect_near(c.read(), p.want);
}

TEST(Mma, F16) {
  const Problem p = make_problem(Format::kF16, true);
  const DeviceArray<uint16_t> a(p.a), b(p.b);
  const DeviceArray<float> c(p.c);
  AKV_LAUNCH(multiply<Format::kF16>, 1, 32, 0, akv::DeviceStream{}, a.data(), b.data(), c.data());
  expect_near(c.read(), p.want);
}

TEST(Mma, Bf16ByLdmatrixAndCpAsync) {
  const Problem p = make_problem(Format::kBf16, false);
  const DeviceArray<uint16_t> a(p.a), b(p.b);
  const DeviceArray<float> c(128);
  AKV_LAUNCH(multiply_by_ldmatrix, 1, 32, 0, akv::DeviceStream{}, a.data(), b.data(), c.data());
  expect_near(c.read(), p.want);
}

__device__ uint32_t four_bytes(const int8_t* p, int stride) {
  uint32_t r = 0;
  for (int i = 0; i < 4; ++i)
    r |= static_cast<uint32_t>(static_cast<uint8_t>(p[i * stride])) << (8 * i);
  return r;
}

// c [16, 8] += a [16, 32] b [32, 8] in bytes.
__global__ void multiply_s8(const int8_t* a, const int8_t* b, int32_t* c) {
  const int g = static_cast<int>(threadIdx.x) / 4;
  const int t = static_cast<int>(threadIdx.x) % 4;
  uint32_t ra[4];
  for (int i = 0; i < 4; ++i) {
    ra[i] = four_bytes(a + (g + i % 2 * 8) * 32 + 4 * t + i / 2 * 16, 1);
  }
  const uint32_t rb[2] = {four_bytes(b + 4 * t * 8 + g, 8),
                          four_bytes(b + (4 * t + 16) * 8 + g, 8)};
  int32_t d[4];
  for (int i = 0; i < 4; ++i) d[i] = c[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
  mma_s8(d, ra, rb);
  for (int i = 0; i < 4; ++i) c[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = d[i];
}

TEST(Mma, SignedBytes) {
  std::mt19937 random(5);
  std::uniform_int_distribution<int> byte(-128, 127);
  std::vector<int8_t> a(16 * 32), b(32 * 8);
  std::vector<int32_t> c(128), want(128);
  for (int8_t& x : a) x = static_cast<int8_t>(byte(random));
  for (int8_t& x : b) x = static_cast<int8_t>(byte(random));
  for (size_t i = 0; i < 128; ++i) {
    c[i] = want[i] = byte(random);
    for (size_t k = 0; k < 32; ++k) want[i] += a[i / 8 * 32 + k] * b[k * 8 + i % 8];
  }
  const DeviceArray<int8_t> da(a), db(b);
  const DeviceArray<int32_t> dc(c);
  AKV_LAUNCH(multiply_s8, 1, 32, 0, akv::DeviceStream{}, da.data(), db.data(), dc.data());
  EXPECT_EQ(dc.read(), want);
}

__global__ void multiply_tf32(const float* a, const float* b, float* c) {
  const int g = static_cast<int>(threadIdx.x) / 4;
  const int t = static_cast<int>(threadIdx.x) % 4;
  const uint32_t ra[4] = {to_tf32(a[g * 8 + t]), to_tf32(a[(g + 8) * 8 + t]),
                          to_tf32(a[g * 8 + t + 4]), to_tf32(a[(g + 8) * 8 + t + 4])};
  const uint32_t rb[2] = {to_tf32(b[t * 8 + g]), to_tf32(b[(t + 4) * 8 + g])};
  float d[4] = {0, 0, 0, 0};
  mma_tf32(d, ra, rb);
  for (int i = 0; i < 4; ++i) c[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = d[i];
}

TEST(Mma, Tf32) {
  // Integers up to 1024 are exact in tf32; 2049 is rounded to 2050, away from zero.
  std::vector<float> a(128), b(64), want(128);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i % 37) - 18;
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i % 23) - 11;
  a[0] = 2049;
  for (size_t i = 0; i < 16; ++i) {
    for (size_t j = 0; j < 8; ++j) {
      for (size_t k = 0; k < 8; ++k) {
        want[i * 8 + j] += (i + k == 0 ? 2050.0f : a[i * 8 + k]) * b[k * 8 + j];
      }
    }
  }
  const DeviceArray<float> da(a), db(b), c(128);
  AKV_LAUNCH(multiply_tf32, 1, 32, 0, akv::DeviceStream{}, da.data(), db.data(), c.data());
  EXPECT_EQ(c.read(), want);
}

// out[lane][form of 6][4]: registers of every form of ldmatrix, over matrices whose element is
// 256 * matrix + 16 * row + column.
__global__ void load_matrices(uint32_t* out) {
  AKV_DYNAMIC_SHARED(uint16_t, shared);
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = 0; i < 8; ++i) {
    shared[lane * 8 + i] = static_cast<uint16_t>(lane / 8 * 256 + lane % 8 * 16 + i);
  }
  __syncwarp();
  uint32_t x1[1], x2[2], x4[4], t1[1], t2[2], t4[4];
  const uint16_t* row = shared + lane * 8;
  ldmatrix_x1(x1, row);
  ldmatrix_x2(x2, row);
  ldmatrix_x4(x4, row);
  ldmatrix_x1_trans(t1, row);
  ldmatrix_x2_trans(t2, row);
  ldmatrix_x4_trans(t4, row);
  uint32_t* mine = out + lane * 14;
  mine[0] = x1[0];
  mine[1] = t1[0];
  for (int i = 0; i < 2; ++i) {
    mine[2 + i] = x2[i];
    mine[4 + i] = t2[i];
  }
  for (int i = 0; i < 4; ++i) {
    mine[6 + i] = x4[i];
    mine[10 + i] = t4[i];
  }
}

TEST(Mma, Ldmatrix) {
  const DeviceArray<uint32_t> out(32 * 14);
  AKV_LAUNCH(load_matrices, 1, 32, 512, akv::DeviceStream{}, out.data());
  const std::vector<uint32_t> got = out.read();
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const uint32_t i = lane / 4;
    const uint32_t j = 2 * (lane % 4);
    const auto straight = [&](uint32_t m) {
      return (256 * m + 16 * i + j + 1) << 16 | (256 * m + 16 * i + j);
    };
    const auto transposed = [&](uint32_t m) {
      return (256 * m + 16 * (j + 1) + i) << 16 | (256 * m + 16 * j + i);
    };
    const uint32_t* mine = got.data() + lane * 14;
    EXPECT_EQ(mine[0], straight(0)) << lane;
    EXPECT_EQ(mine[1], transposed(0)) << lane;
    for (uint32_t m = 0; m < 2; ++m) {
      EXPECT_EQ(mine[2 + m], straight(m)) << lane;
      EXPECT_EQ(mine[4 + m], transposed(m)) << lane;
    }
    for (uint32_t m = 0; m < 4; ++m) {
      EXPECT_EQ(mine[6 + m], straight(m)) << lane;
      EXPECT_EQ(mine[10 + m], transposed(m)) << lane;
    }
  }
}

// A ring of two stages: sums of tiles of 32 numbers; tiles past `n` are zeros.
__global__ void ring(const int* x, int n, int tiles, int* sums) {
  __shared__ __align__(16) int stage[2][32];
  const int lane = static_cast<int>(threadIdx.x);
  const auto fetch = [&](int tile) {
    const int i = tile * 32 + lane;
    cp_async<4>(&stage[tile % 2][lane], x + (i < n ? i : 0), i < n);
    cp_async_commit();
  };
  fetch(0);
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) {
      fetch(tile + 1);
      cp_async_wait<1>();
    } else {
      cp_async_wait<0>();
    }
    __syncwarp();
    const int other = stage[tile % 2][31 - lane];
    __syncwarp();
    atomicAdd(&sums[tile], other);
  }
}

TEST(Mma, CpAsyncRingWithZeroFill) {
  std::vector<int> x(100);
  std::vector<int> want(5);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<int>(i * i);
    want[i / 32] += x[i];
  }
  const DeviceArray<int> in(x);
  const DeviceArray<int> sums(std::vector<int>(5));
  AKV_LAUNCH(ring, 1, 32, 0, akv::DeviceStream{}, in.data(), 100, 5, sums.data());
  EXPECT_EQ(sums.read(), want);
}

}  // namespace
}  // namespace cuda_shim_test
