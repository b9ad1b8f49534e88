// Runs the blocks of a grid, one after the other, on the calling OS thread.
#pragma once

#include <cstdint>
#include <string>

#include "tests/support/cuda_shim/include/cuda_shim_types.h"

namespace cuda_shim {

// In which order the threads of a block get their turn.
struct Order {
  enum class Kind { kForward, kReverse, kRandom };
  Kind kind = Kind::kForward;
  uint64_t seed = 0;
};

// From AKV_SHIM_ORDER: forward (default), reverse, random:SEED. Ends the process on other text.
Order order_from_environment();
void set_order(Order order);
Order order();

struct Grid {
  const char* kernel = "";
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  void (*invoke)(const void* closure) = nullptr;  // runs the kernel's body for the current thread
  const void* closure = nullptr;
};

// Empty, or why the kernel failed (a barrier or warp operation that not all threads reach, a bad
// address of a collective). A failed grid is given up at once.
std::string run_grid(const Grid& grid);

}  // namespace cuda_shim
