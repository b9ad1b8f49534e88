// Search in a row of logits, by one block: the element at which a running sum over them, in the
// order of tokens or of ids, crosses a threshold. Sums are integers, so that they do not depend on
// the order in which threads add.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/reduce.h"

namespace akv::kernels::cuda {

inline constexpr int kSampleThreads = 512;  // more would spill registers
inline constexpr int kSampleWarps = kSampleThreads / kWarp;
inline constexpr int kBins = 256;

using Mass = unsigned long long;

// The order of tokens, higher logit first, ties to the lower id, as integers: a larger key comes
// first. Both zeros are one.
__device__ __forceinline__ uint32_t order_key(float logit) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// A place in that order: everything up to and including it is kept.
struct Cut {
  uint32_t key = 0;
  int32_t id = 0x7fffffff;
  __device__ bool keeps(uint32_t k, int32_t i) const { return k > key || (k == key && i <= id); }
};

struct SelectShared {
  Mass histogram[kBins][kWarp];  // a column per lane: no two lanes of a warp meet
  Mass bins[kBins];
  Mass warps[kSampleWarps];
  Mass before;  // sum over what comes before the bin or segment that was found
  int found;
};

// Every thread receives the sum over the block.
__device__ __forceinline__ Mass block_total(Mass x, SelectShared& shared) {
  __syncthreads();  // the array's last readers are done
  return block_sum<kSampleThreads>(x, shared.warps);
}

// Of `counts` values in order (one per lane's group of Each), the first at which the running sum
// exceeds threshold; by warp 0. Fills found and before.
template <int Each, class Value>
__device__ __forceinline__ void find_crossing(Mass before, Mass threshold, SelectShared& shared,
                                              Value value) {
  const int lane = static_cast<int>(threadIdx.x);
  Mass own = 0;
#pragma unroll
  for (int i = 0; i < Each; ++i) own += value(lane * Each + i);
  Mass through = own;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const Mass left = __shfl_up_sync(kFullWarp, through, step);
    if (lane >= step) through += left;
  }
  Mass sum = before + through - own;
  if (sum > threshold || before + through <= threshold) return;
  for (int i = 0; i < Each; ++i) {
    const Mass next = sum + value(lane * Each + i);
    if (next > threshold) {
      shared.found = lane * Each + i;
      shared.before = sum;
      return;
    }
    sum = next;
  }
}

// The id at which the running sum of mass(id) over ids in order exceeds threshold, which is below
// the total. A warp sums a segment of ids; the one in which the sum crosses walks it.
template <class MassOf>
__device__ int32_t cross_by_id(int64_t vocab, Mass threshold, SelectShared& shared, MassOf mass) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto segment = static_cast<int32_t>((vocab + kSampleThreads - 1) / kSampleThreads * kWarp);
  const int32_t begin = warp * segment;
  const auto end = static_cast<int32_t>(begin + segment < vocab ? begin + segment : vocab);
  Mass own = 0;
  for (int32_t i = begin + lane; i < end; i += kWarp) own += mass(i);
  own = warp_sum(own);
  __syncthreads();
  if (lane == 0) shared.warps[warp] = own;
  __syncthreads();
  if (warp == 0) {
    find_crossing<1>(0, threshold, shared,
                     [&](int i) { return i < kSampleWarps ? shared.warps[i] : Mass{0}; });
  }
  __syncthreads();
  const bool walks = warp == shared.found;
  Mass before = shared.before;
  __syncthreads();  // before the walk writes what all have read
  if (walks) {
    int32_t id = -1;
    for (int32_t first = begin; first < end && id < 0; first += kWarp) {
      const int32_t i = first + lane;
      Mass through = i < end ? mass(i) : 0;
#pragma unroll
      for (int step = 1; step < kWarp; step *= 2) {
        const Mass left = __shfl_up_sync(kFullWarp, through, step);
        if (lane >= step) through += left;
      }
      const unsigned past = __ballot_sync(kFullWarp, before + through > threshold);
      if (past != 0) id = first + __ffs(static_cast<int>(past)) - 1;
      before += __shfl_sync(kFullWarp, through, kWarp - 1);
    }
    __syncwarp();
    if (lane == 0) shared.found = id;
  }
  __syncthreads();
  return shared.found;
}

// The same in the order of tokens: the cut that keeps everything up to the crossing. mass(id) is
// the same for equal logits. Four passes find the key eight bits at a time, a fifth the id.
template <class MassOf>
__device__ Cut cross_by_order(const float* logits, int64_t vocab, Mass threshold,
                              SelectShared& shared, MassOf mass) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  uint32_t prefix = 0;
  Mass before = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    Mass* flat = &shared.histogram[0][0];
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kBins * kWarp; i += kSampleThreads) flat[i] = 0;
    __syncthreads();
    for (auto i = static_cast<int32_t>(threadIdx.x); i < vocab; i += kSampleThreads) {
      const uint32_t key = order_key(logits[i]);
      if (shift < 24 && key >> (shift + 8) != prefix) continue;
      const Mass m = mass(i);
      if (m != 0) atomicAdd(&shared.histogram[key >> shift & (kBins - 1)][lane], m);
    }
    __syncthreads();
    if (threadIdx.x < kBins) {
      const auto bin = static_cast<int>(threadIdx.x);
      Mass sum = 0;
      for (int i = 0; i < kWarp; ++i) sum += shared.histogram[bin][(i + bin) % kWarp];
      shared.bins[kBins - 1 - bin] = sum;  // best first
    }
    __syncthreads();
    if (threadIdx.x < kWarp) {
      find_crossing<kBins / kWarp>(before, threshold, shared,
                                   [&](int i) { return shared.bins[i]; });
    }
    __syncthreads();
    prefix = prefix << 8 | static_cast<uint32_t>(kBins - 1 - shared.found);
    before = shared.before;
  }
  const int32_t id = cross_by_id(vocab, threshold - before, shared, [&](int32_t i) {
    return order_key(logits[i]) == prefix ? mass(i) : 0;
  });
  return {prefix, id};
}

}  // namespace akv::kernels::cuda
