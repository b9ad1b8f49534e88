#include "tests/device/device_kernels.h"

#include "kernels/cuda/launch.h"

namespace akv {
namespace {

__global__ void add_one_kernel(int* x, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) x[i] += 1;
}

}  // namespace

void add_one(int* x, int n, DeviceStream stream) {
  AKV_LAUNCH(add_one_kernel, (n + 127) / 128, 128, 0, stream, x, n);
}

void launch_wrongly(DeviceStream stream) {
  AKV_LAUNCH(add_one_kernel, 1, 4096, 0, stream, nullptr, 0);
}

}  // namespace akv
