// What device code on the shim runs on: the current thread and block, barriers and warp operations.
// Included by the shim's device headers; the schedule itself is in block.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <cuda_shim_types.h>

namespace cuda_shim {

constexpr int kWarpLanes = 32;
constexpr unsigned char kPoison = 0xCD;

// One cp.async that was issued and not yet waited for.
struct AsyncCopy {
  void* to;
  const void* from;
  int bytes;
  bool valid;
};

struct Thread {
  uint3 index{};
  int lane = 0;
  int warp = 0;
  int linear = 0;
  const char* waits_for = nullptr;  // for messages; null while it runs or may run
  uint32_t waits_mask = 0;
  std::vector<AsyncCopy> copies;  // oldest first
  std::vector<size_t> groups;     // ends, in copies, of the committed groups
};

// The block that the calling OS thread runs.
struct BlockView {
  uint3 index{};
  uint3 block_dim{};
  uint3 grid_dim{};
  void* dynamic_shared = nullptr;
};

inline constinit thread_local Thread* t_thread = nullptr;
inline constinit thread_local BlockView t_block{};

inline void* dynamic_shared() { return t_block.dynamic_shared; }

// Does the work of a warp operation for the lanes of `arrived`: lanes[l] is what lane l handed in.
using WarpWork = void (*)(void* const* lanes, uint32_t arrived);

// Waits until all live lanes of `mask` are here with the same work; the last one does it.
void warp_operation(uint32_t mask, WarpWork work, const char* name, void* lane);

enum class BarrierKind { kPlain, kOr, kAnd, kCount };

// __syncthreads and its reducing forms (id 0), or a named barrier over `threads` threads.
int block_barrier(BarrierKind kind, int predicate, const char* name);
void named_barrier(int id, int threads);

// A point at which random order may let another thread go first.
void maybe_preempt();

uint32_t live_lanes();

// Ends the kernel as failed: the message, where it happened and what each thread waits for.
[[noreturn]] void fail_kernel(const char* message);

// Where random order is asked for.
extern bool g_preempt;

}  // namespace cuda_shim
