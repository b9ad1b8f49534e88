// Barriers, shuffles, votes and atomics: the same on the shim and on a device.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.h"
#include "tests/cuda_shim/device_array.h"

namespace cuda_shim_test {
namespace {

constexpr unsigned kAll = 0xffffffffu;

__global__ void block_sum(const float* x, int n, float* sum) {
  __shared__ float partial[32];
  float value = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    value += x[i];
  }
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAll, value, step);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  value = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0;
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAll, value, step);
  if (threadIdx.x == 0) atomicAdd(sum, value);
}

TEST(Warp, ReducesABlock) {
  std::vector<float> x(10000);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 16);
  const DeviceArray<float> in(x);
  const DeviceArray<float> sum(std::vector<float>{0});
  AKV_LAUNCH(block_sum, 7, 256, 0, akv::DeviceStream{}, in.data(), 10000, sum.data());
  EXPECT_EQ(sum.read()[0], std::accumulate(x.begin(), x.end(), 0.0f));
}

// out[mode][lane]: what each shuffle gives lane, whose value is 100 + lane.
__global__ void shuffles(int width, int operand, int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  const int value = 100 + lane;
  out[lane] = __shfl_sync(kAll, value, operand, width);
  out[32 + lane] = __shfl_xor_sync(kAll, value, operand, width);
  out[64 + lane] = __shfl_up_sync(kAll, value, static_cast<unsigned>(operand), width);
  out[96 + lane] = __shfl_down_sync(kAll, value, static_cast<unsigned>(operand), width);
}

// As the programming guide words it.
std::vector<int> expected_shuffles(int width, int operand) {
  std::vector<int> out(128);
  for (int lane = 0; lane < 32; ++lane) {
    const int first = lane / width * width;
    const int within = lane - first;
    const auto set = [&](int mode, int source) {
      out[static_cast<size_t>(32 * mode + lane)] = 100 + source;
    };
    set(0, first + operand % width);
    // A lane of a later group is out of reach, one of an earlier group is not.
    set(1, (lane ^ operand) < first + width ? lane ^ operand : lane);
    set(2, within >= operand ? lane - operand : lane);
    set(3, within + operand < width ? lane + operand : lane);
  }
  return out;
}

TEST(Warp, ShufflesByEveryWidth) {
  const DeviceArray<int> out(128);
  for (int width = 1; width <= 32; width *= 2) {
    for (int operand = 0; operand < 32; ++operand) {
      AKV_LAUNCH(shuffles, 1, 32, 0, akv::DeviceStream{}, width, operand, out.data());
      EXPECT_EQ(out.read(), expected_shuffles(width, operand)) << width << " " << operand;
    }
  }
}

template <class T>
__global__ void shuffle_typed(T* x) {
  x[threadIdx.x] = __shfl_down_sync(kAll, x[threadIdx.x], 1);
}

TEST(Warp, ShufflesWideTypes) {
  std::vector<double> x(32);
  std::iota(x.begin(), x.end(), 0.5);
  const DeviceArray<double> doubles(x);
  AKV_LAUNCH(shuffle_typed<double>, 1, 32, 0, akv::DeviceStream{}, doubles.data());
  std::vector<double> want(x.begin() + 1, x.end());
  want.push_back(x.back());
  EXPECT_EQ(doubles.read(), want);
  const DeviceArray<unsigned long long> words(std::vector<unsigned long long>(32, 1ull << 40));
  AKV_LAUNCH(shuffle_typed<unsigned long long>, 1, 32, 0, akv::DeviceStream{}, words.data());
  EXPECT_EQ(words.read(), std::vector<unsigned long long>(32, 1ull << 40));
}

__global__ void votes(const int* x, unsigned* out) {
  const int lane = static_cast<int>(threadIdx.x);
  out[lane] = __ballot_sync(kAll, x[lane] > 2);
  out[32 + lane] = static_cast<unsigned>(__any_sync(kAll, x[lane] == 5)) << 1 |
                   static_cast<unsigned>(__all_sync(kAll, x[lane] < 6));
  out[64 + lane] = __match_any_sync(kAll, x[lane]);
  out[96 + lane] = __reduce_add_sync(kAll, static_cast<unsigned>(x[lane]));
  out[128 + lane] = static_cast<unsigned>(__reduce_min_sync(kAll, x[lane] - 3));
}

TEST(Warp, Votes) {
  std::vector<int> x(32);
  unsigned above = 0;
  for (int i = 0; i < 32; ++i) {
    x[static_cast<size_t>(i)] = i % 6;
    if (i % 6 > 2) above |= 1u << i;
  }
  const DeviceArray<int> in(x);
  const DeviceArray<unsigned> out(160);
  AKV_LAUNCH(votes, 1, 32, 0, akv::DeviceStream{}, in.data(), out.data());
  const std::vector<unsigned> got = out.read();
  for (size_t lane = 0; lane < 32; ++lane) {
    unsigned same = 0;
    for (size_t i = lane % 6; i < 32; i += 6) same |= 1u << i;
    EXPECT_EQ(got[lane], above);
    EXPECT_EQ(got[32 + lane], 3u);
    EXPECT_EQ(got[64 + lane], same);
    EXPECT_EQ(got[96 + lane], 76u);  // five times 0 + … + 5, and 0 + 1
    EXPECT_EQ(got[128 + lane], static_cast<unsigned>(-3));
  }
}

// The halves of a warp go their own ways, then meet again.
__global__ void divergent(int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  int value = lane;
  if (lane < 16) {
    value = __shfl_sync(0x0000ffffu, value, 3);
    __syncwarp(0x0000ffffu);
  } else {
    for (int i = 0; i < 3; ++i) value += __shfl_xor_sync(0xffff0000u, value, 1);
  }
  __syncwarp();
  out[lane] = __shfl_xor_sync(kAll, value, 16);
}

TEST(Warp, HalvesDivergeAndMeet) {
  const DeviceArray<int> out(32);
  AKV_LAUNCH(divergent, 1, 32, 0, akv::DeviceStream{}, out.data());
  const std::vector<int> got = out.read();
  for (int lane = 0; lane < 16; ++lane) {
    const int partner = lane + 16;
    const int pair = partner + (partner ^ 1);
    EXPECT_EQ(got[static_cast<size_t>(lane)], 4 * pair) << lane;  // the sum doubles twice
    EXPECT_EQ(got[static_cast<size_t>(partner)], 3);
  }
}

__global__ void block_votes(int* out) {
  const int t = static_cast<int>(threadIdx.x);
  const int any = __syncthreads_or(t == 77);
  const int none = __syncthreads_or(t > 1000);
  const int all = __syncthreads_and(t < 96);
  const int some = __syncthreads_and(t != 5);
  const int count = __syncthreads_count(t % 3 == 0);
  if (t == 95) {
    out[0] = any != 0;
    out[1] = none != 0;
    out[2] = all != 0;
    out[3] = some != 0;
    out[4] = count;
  }
}

TEST(Warp, BlockVotes) {
  const DeviceArray<int> out(5);
  AKV_LAUNCH(block_votes, 1, 96, 0, akv::DeviceStream{}, out.data());
  EXPECT_EQ(out.read(), (std::vector<int>{1, 0, 1, 0, 32}));
}

// Two pairs of warps hand a number over, each pair at a barrier of its own.
__global__ void named_barriers(int* out) {
  __shared__ int handed[2];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int pair = warp / 2;
  if (threadIdx.x % 64 == 0) handed[pair] = 40 + pair;
  akv::kernels::cuda::named_barrier(1 + pair, 64);
  if (threadIdx.x % 64 == 63) out[pair] = handed[pair];
}

TEST(Warp, NamedBarriers) {
  const DeviceArray<int> out(2);
  AKV_LAUNCH(named_barriers, 1, 128, 0, akv::DeviceStream{}, out.data());
  EXPECT_EQ(out.read(), (std::vector<int>{40, 41}));
}

__global__ void atomics(int* ints, unsigned* words, float* floats, double* doubles,
                        unsigned long long* wide) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  atomicAdd(&ints[0], i);
  atomicMax(&ints[1], i);
  atomicMin(&ints[2], -i);
  atomicSub(&ints[3], 1);
  atomicOr(&words[0], 1u << (i % 32));
  atomicAnd(&words[1], ~(1u << (i % 16)));
  atomicXor(&words[2], static_cast<unsigned>(i));
  atomicInc(&words[3], 9);
  atomicAdd(&floats[0], 0.5f);
  atomicAdd(&doubles[0], 0.25);
  atomicAdd(&wide[0], 1ull << 33);
  unsigned seen = words[4];
  unsigned old;
  do {  // + 2 by compare and swap
    old = seen;
    seen = atomicCAS(&words[4], old, old + 2);
  } while (seen != old);
  atomicExch(&words[5], 7u);
}

TEST(Warp, Atomics) {
  const DeviceArray<int> ints(std::vector<int>{0, -1, 1, 0});
  const DeviceArray<unsigned> words(std::vector<unsigned>{0, kAll, 0, 0, 0, 0});
  const DeviceArray<float> floats(std::vector<float>{0});
  const DeviceArray<double> doubles(std::vector<double>{0});
  const DeviceArray<unsigned long long> wide(std::vector<unsigned long long>{0});
  AKV_LAUNCH(atomics, 4, 64, 0, akv::DeviceStream{}, ints.data(), words.data(), floats.data(),
             doubles.data(), wide.data());
  EXPECT_EQ(ints.read(), (std::vector<int>{255 * 128, 255, -255, -256}));
  EXPECT_EQ(words.read(), (std::vector<unsigned>{kAll, 0xffff0000u, 0, 256 % 10, 512, 7}));
  EXPECT_EQ(floats.read()[0], 128.0f);
  EXPECT_EQ(doubles.read()[0], 64.0);
  EXPECT_EQ(wide.read()[0], 256ull << 33);
}

__global__ void indices(int* out) {
  const dim3 size = gridDim;
  const unsigned block = blockIdx.x + size.x * (blockIdx.y + size.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  out[block * threads + thread] = static_cast<int>(block * 1000 + thread);
}

TEST(Warp, IndicesInThreeDimensions) {
  const DeviceArray<int> out(24 * 30);
  AKV_LAUNCH(indices, dim3(2, 3, 4), dim3(5, 3, 2), 0, akv::DeviceStream{}, out.data());
  const std::vector<int> got = out.read();
  for (int i = 0; i < 24 * 30; ++i) EXPECT_EQ(got[static_cast<size_t>(i)], i / 30 * 1000 + i % 30);
}

}  // namespace
}  // namespace cuda_shim_test
