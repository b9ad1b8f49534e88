// Barriers, shuffles and votes.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <cuda_shim_block.h>

inline void __syncthreads() {
  cuda_shim::block_barrier(cuda_shim::BarrierKind::kPlain, 0, "__syncthreads");
}
inline int __syncthreads_or(int predicate) {
  return cuda_shim::block_barrier(cuda_shim::BarrierKind::kOr, predicate, "__syncthreads_or");
}
inline int __syncthreads_and(int predicate) {
  return cuda_shim::block_barrier(cuda_shim::BarrierKind::kAnd, predicate, "__syncthreads_and");
}
inline int __syncthreads_count(int predicate) {
  return cuda_shim::block_barrier(cuda_shim::BarrierKind::kCount, predicate, "__syncthreads_count");
}

namespace cuda_shim {

inline void sync_work(void* const*, uint32_t) {}

enum class Shuffle { kIndex, kXor, kUp, kDown };

template <class T>
struct ShuffleLane {
  T value;
  int operand;
  int width;
  T result;
};

// The lane that `lane` reads from: the segments and bounds of PTX's shfl.
inline int shuffle_source(Shuffle mode, int lane, int operand, int width) {
  const int first = lane & ~(width - 1);
  const int last = first + width - 1;
  switch (mode) {
    case Shuffle::kIndex:
      return first | (operand & (width - 1));
    case Shuffle::kXor:
      return (lane ^ operand) <= last ? (lane ^ operand) & 31 : lane;
    case Shuffle::kUp:
      return lane - operand >= first ? lane - operand : lane;
    case Shuffle::kDown:
      return lane + operand <= last ? lane + operand : lane;
  }
  return lane;
}

template <class T, Shuffle Mode>
void shuffle_work(void* const* lanes, uint32_t arrived) {
  for (uint32_t rest = arrived; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    auto* self = static_cast<ShuffleLane<T>*>(lanes[lane]);
    const int source = shuffle_source(Mode, lane, self->operand, self->width);
    if ((arrived >> source & 1) != 0) {
      self->result = static_cast<const ShuffleLane<T>*>(lanes[source])->value;
    } else {  // reading from a lane that does not take part is undefined
      std::memset(static_cast<void*>(&self->result), kPoison, sizeof(T));
    }
  }
}

template <Shuffle Mode, class T>
T shuffle(uint32_t mask, T value, int operand, int width, const char* name) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  if (width <= 0 || width > 32 || (width & (width - 1)) != 0) {
    fail_kernel("the width of a shuffle is not a power of two up to 32");
  }
  ShuffleLane<T> lane{value, operand, width, value};
  warp_operation(mask, shuffle_work<T, Mode>, name, &lane);
  return lane.result;
}

struct VoteLane {
  uint64_t value;
  uint32_t result;
};

inline void ballot_work(void* const* lanes, uint32_t arrived) {
  uint32_t votes = 0;
  for (uint32_t rest = arrived; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    if (static_cast<VoteLane*>(lanes[lane])->value != 0) votes |= uint32_t{1} << lane;
  }
  for (uint32_t rest = arrived; rest != 0; rest &= rest - 1) {
    static_cast<VoteLane*>(lanes[std::countr_zero(rest)])->result = votes;
  }
}

inline void match_work(void* const* lanes, uint32_t arrived) {
  for (uint32_t rest = arrived; rest != 0; rest &= rest - 1) {
    auto* self = static_cast<VoteLane*>(lanes[std::countr_zero(rest)]);
    self->result = 0;
    for (uint32_t other = arrived; other != 0; other &= other - 1) {
      const int lane = std::countr_zero(other);
      if (static_cast<VoteLane*>(lanes[lane])->value == self->value) {
        self->result |= uint32_t{1} << lane;
      }
    }
  }
}

// Sums, minima, … of 32-bit integers over the warp (__reduce_*_sync).
enum class Reduce { kAdd, kMin, kMax, kAnd, kOr, kXor };

template <class T, Reduce Mode>
void reduce_work(void* const* lanes, uint32_t arrived) {
  bool first = true;
  T result{};
  for (uint32_t rest = arrived; rest != 0; rest &= rest - 1) {
    const auto value = static_cast<T>(
        static_cast<uint32_t>(static_cast<VoteLane*>(lanes[std::countr_zero(rest)])->value));
    if (first) {
      result = value;
    } else if constexpr (Mode == Reduce::kAdd) {
      result = static_cast<T>(static_cast<uint32_t>(result) + static_cast<uint32_t>(value));
    } else if constexpr (Mode == Reduce::kMin) {
      result = value < result ? value : result;
    } else if constexpr (Mode == Reduce::kMax) {
      result = value > result ? value : result;
    } else if constexpr (Mode == Reduce::kAnd) {
      result &= value;
    } else if constexpr (Mode == Reduce::kOr) {
      result |= value;
    } else {
      result ^= value;
    }
    first = false;
  }
  for (uint32_t rest = arrived; rest != 0; rest &= rest - 1) {
    static_cast<VoteLane*>(lanes[std::countr_zero(rest)])->result = static_cast<uint32_t>(result);
  }
}

template <Reduce Mode, class T>
T reduce(uint32_t mask, T value, const char* name) {
  static_assert(sizeof(T) == 4);
  VoteLane lane{static_cast<uint32_t>(value), 0};
  warp_operation(mask, reduce_work<T, Mode>, name, &lane);
  return static_cast<T>(lane.result);
}

}  // namespace cuda_shim

inline void __syncwarp(unsigned mask = 0xffffffffu) {
  cuda_shim::warp_operation(mask, cuda_shim::sync_work, "__syncwarp", nullptr);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  return cuda_shim::shuffle<cuda_shim::Shuffle::kIndex>(mask, value, source, width, "__shfl_sync");
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
  return cuda_shim::shuffle<cuda_shim::Shuffle::kXor>(mask, value, lane_mask, width,
                                                      "__shfl_xor_sync");
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return cuda_shim::shuffle<cuda_shim::Shuffle::kUp>(mask, value, static_cast<int>(delta), width,
                                                     "__shfl_up_sync");
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return cuda_shim::shuffle<cuda_shim::Shuffle::kDown>(mask, value, static_cast<int>(delta), width,
                                                       "__shfl_down_sync");
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  cuda_shim::VoteLane lane{predicate != 0, 0};
  cuda_shim::warp_operation(mask, cuda_shim::ballot_work, "a vote", &lane);
  return lane.result;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
  static_assert(sizeof(T) <= 8);
  cuda_shim::VoteLane lane{0, 0};
  std::memcpy(&lane.value, &value, sizeof(T));
  cuda_shim::warp_operation(mask, cuda_shim::match_work, "__match_any_sync", &lane);
  return lane.result;
}
template <class T>
unsigned __match_all_sync(unsigned mask, T value, int* all) {
  const unsigned same = __match_any_sync(mask, value);
  *all = same == (mask & cuda_shim::live_lanes());
  return *all ? same : 0;
}

#define AKV_SHIM_REDUCE(name, mode)                                        \
  inline unsigned name(unsigned mask, unsigned value) {                    \
    return cuda_shim::reduce<cuda_shim::Reduce::mode>(mask, value, #name); \
  }
#define AKV_SHIM_REDUCE_SIGNED(name, mode)                                 \
  inline int name(unsigned mask, int value) {                              \
    return cuda_shim::reduce<cuda_shim::Reduce::mode>(mask, value, #name); \
  }
AKV_SHIM_REDUCE(__reduce_add_sync, kAdd)
AKV_SHIM_REDUCE(__reduce_min_sync, kMin)
AKV_SHIM_REDUCE(__reduce_max_sync, kMax)
AKV_SHIM_REDUCE(__reduce_and_sync, kAnd)
AKV_SHIM_REDUCE(__reduce_or_sync, kOr)
AKV_SHIM_REDUCE(__reduce_xor_sync, kXor)
AKV_SHIM_REDUCE_SIGNED(__reduce_add_sync, kAdd)
AKV_SHIM_REDUCE_SIGNED(__reduce_min_sync, kMin)
AKV_SHIM_REDUCE_SIGNED(__reduce_max_sync, kMax)
#undef AKV_SHIM_REDUCE
#undef AKV_SHIM_REDUCE_SIGNED

// Lanes converge only where they must, so nobody may rely on more than the calling lane; our
// kernels name their masks. With all lanes live this is what a converged warp sees.
inline unsigned __activemask() { return cuda_shim::live_lanes(); }

// One OS thread runs a block at a time, and other blocks only with atomics: nothing to order.
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) { cuda_shim::maybe_preempt(); }
