// Barriers, shuffles, votes and atomics: the same on the shim and on a device.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.h"
#include "tests/cuda_shim/device_array.h"

namespace cuda_shim_test {
namespace {

__global__ void block_sum(const float* x, int n, float* sum) {
  __shared__ float partial[32];
  float value = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    value += x[i];
  }
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  value = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0;
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  if (threadIdx.x == 0) atomicAdd(sum, value);
}

TEST(Warp, ReducesABlock) {
  std::vector<float> x(10000);
  std::iota(x.begin(), x.end(), 1.0f);
  for (float& v : x) v = static_cast<float>(static_cast<int>(v) % 16);
  const DeviceArray<float> in(x);
  const DeviceArray<float> sum(std::vector<float>{0});
  AKV_LAUNCH(block_sum, 7, 256, 0, akv::DeviceStream{}, in.data(), 10000, sum.data());
  EXPECT_EQ(sum.read()[0], std::accumulate(x.begin(), x.end(), 0.0f));
}

}  // namespace
}  // namespace cuda_shim_test
