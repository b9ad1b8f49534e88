// What matmul_lowbit's host code hands to its kernels: one launch per format.
#pragma once

#include <cstdint>

#include "kernels/device_stream.h"
#include "kernels/gemv.h"
#include "kernels/types.h"

namespace akv::kernels::cuda {

// Outputs from which a block takes 32 of them instead of 16: the activations, which every block
// reads, then cost half, and there are still blocks for every multiprocessor.
inline constexpr int64_t kManyRows = 8192;

struct LowbitMatrix {
  const uint8_t* data = nullptr;
  float* y = nullptr;
  int64_t rows = 0;
  int64_t row_bytes = 0;
  int64_t tiles = 0;  // blocks of the launch; set by it
  int grain = 2;      // bytes that row borders are multiples of: 16, 4 or 2
};

struct LowbitArgs {
  const float* x = nullptr;
  int64_t cols = 0;
  int m = 0;
  bool accumulate = false;
  LowbitMatrix products[kMaxLowbitProducts];
};

// All products of args are of this format. One instantiation per format, a few to a file.
template <TensorType Type>
void run_lowbit(const LowbitArgs& args, int products, DeviceStream stream);

}  // namespace akv::kernels::cuda
