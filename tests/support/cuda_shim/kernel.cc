// Kernel launches: checked as the runtime checks them, then work of a stream.
#include <algorithm>
#include <cstdio>

#include "tests/support/cuda_shim/block.h"
#include "tests/support/cuda_shim/include/cuda_shim_launch.h"
#include "tests/support/cuda_shim/runtime.h"

namespace cuda_shim {
namespace {

constexpr size_t kSharedDefault = size_t{48} << 10;
constexpr int kSharedOptIn = 227 << 10;  // sm_90; what fits sm_80 alone is the author's to know

bool valid_configuration(const dim3& grid, const dim3& block) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  return grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.x <= 0x7fffffffu && grid.y <= 65535 &&
         grid.z <= 65535 && threads > 0 && threads <= 1024 && block.z <= 64;
}

size_t allowed_shared_bytes(const Runtime& r, const void* function) {
  const auto it = r.dynamic_shared_limit.find(function);
  return it == r.dynamic_shared_limit.end()
             ? kSharedDefault
             : std::max(kSharedDefault, static_cast<size_t>(it->second));
}

cudaError_t run_kernel(Runtime& r, const Grid& grid, uint64_t launch) {
  std::string failure = run_grid(grid);
  if (failure.empty() && r.faults.fail_launch != 0 && launch == r.faults.fail_launch) {
    failure = std::string("kernel ") + grid.kernel + ": made to fail by the test";
  }
  if (failure.empty()) return cudaSuccess;
  std::fprintf(stderr, "cuda_shim: %s\n", failure.c_str());
  r.failure = failure;
  return cudaErrorLaunchFailure;
}

}  // namespace

cudaError_t enqueue_kernel(const char* name, const void* function, dim3 grid, dim3 block,
                           size_t shared_bytes, cudaStream_t stream,
                           std::shared_ptr<const void> closure, void (*run)(const void* closure)) {
  return call([&](Runtime& r) {
    cudaStream_t found = find_stream(r, stream);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    if (!valid_configuration(grid, block)) return cudaErrorInvalidConfiguration;
    if (shared_bytes > allowed_shared_bytes(r, function)) return cudaErrorInvalidValue;
    const uint64_t launch = ++r.launches;
    return enqueue(r, found, [&r, name, grid, block, shared_bytes, closure, run, launch] {
      return run_kernel(r, Grid{name, grid, block, shared_bytes, run, closure.get()}, launch);
    });
  });
}

cudaError_t set_function_attribute(const void* function, cudaFuncAttribute attribute, int value) {
  return call([&](Runtime& r) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || value > kSharedOptIn) return cudaErrorInvalidValue;
    r.dynamic_shared_limit[function] = value;
    return cudaSuccess;
  });
}

cudaError_t get_function_attributes(cudaFuncAttributes* attributes, const void* function) {
  return call([&](Runtime& r) {
    *attributes = {};
    attributes->maxThreadsPerBlock = 1024;
    attributes->maxDynamicSharedSizeBytes = static_cast<int>(allowed_shared_bytes(r, function));
    return cudaSuccess;
  });
}

cudaError_t blocks_per_multiprocessor(int* blocks, const void* function, int threads,
                                      size_t shared_bytes) {
  return call([&](Runtime& r) {
    *blocks = 0;
    if (threads <= 0 || threads > 1024) return cudaErrorInvalidValue;
    if (shared_bytes > allowed_shared_bytes(r, function)) return cudaSuccess;
    const int by_threads = 2048 / ((threads + 31) / 32 * 32);
    const auto by_shared = static_cast<int>((size_t{228} << 10) / (shared_bytes + 1024));
    *blocks = std::min({by_threads, by_shared, 32});
    return cudaSuccess;
  });
}

}  // namespace cuda_shim
