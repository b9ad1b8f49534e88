// What tests ask of the shim beyond CUDA's own API: faults, orders, figures.
#pragma once

#include <cstdint>
#include <string>

#include "tests/support/cuda_shim/block.h"
#include "tests/support/cuda_shim/include/cuda_runtime_api.h"

namespace cuda_shim {

enum class Driver { kPresent, kNone, kTooOld };

// All off by default. The environment gives the first values: AKV_SHIM_DRIVER=none|old,
// AKV_SHIM_DEVICES=N, AKV_SHIM_MEMORY_BYTES=N, AKV_SHIM_FAIL_LAUNCH=N, AKV_SHIM_LOSE_DEVICE=N.
struct Faults {
  Driver driver = Driver::kPresent;
  int devices = 1;
  uint64_t memory_bytes = uint64_t{8} << 30;  // of the device; more is out of memory
  uint64_t fail_launch = 0;  // the n-th kernel launch from now fails as it runs; 0: none
  uint64_t lose_device =
      0;  // from the n-th call of the API from now on the device is gone; 0: never
  cudaError_t lost_error = cudaErrorECCUncorrectable;
};

// Sets the faults; counters start anew.
void set_faults(const Faults& faults);
Faults faults();

// Drops all pending work and the sticky error, as a new process would have it, and sets the faults
// to those of the environment. Memory stays allocated.
void reset();

// Why the last failed kernel failed; empty where none did.
std::string last_failure();

uint64_t launches();      // kernels put into streams or graphs since the last set_faults or reset
uint64_t device_bytes();  // allocated now
size_t pending_work();    // entries of all streams

}  // namespace cuda_shim
