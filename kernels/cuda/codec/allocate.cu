// Which residuals are stored: the longest prefix of all increments by falling priority whose cost
// fits. A radix select over the bits of the priorities finds the increment where the budget ends;
// increments of exactly that priority are then taken in order.
#include "kernels/codec.h"
#include "kernels/cuda/codec/numeric.h"

namespace akv::kernels::cuda {
namespace {

constexpr int kBins = 2048;
constexpr int kPasses = 6;
constexpr int kSelectThreads = 256;
constexpr int kSelectTokens = 8192;  // of a block: their cost fits 32 bits
constexpr int kFinishThreads = 1024;

// Digits from the top: 11 bits each, the last 9.
__device__ __forceinline__ int digit_shift(int pass) {
  return pass + 1 < kPasses ? 53 - 11 * pass : 0;
}
__device__ __forceinline__ int digit_width(int pass) { return pass + 1 < kPasses ? 11 : 9; }

struct Cut {
  uint64_t bits;  // of the priority where the budget ends
  uint64_t left;  // bytes for increments of that very priority
  uint32_t all;   // everything fits
};

struct Scratch {
  uint64_t* cost;   // [kPasses][2][kBins]
  Cut* cut;         // [2]
  uint64_t* masks;  // [2][H * words][4]: above and at the cut, first and second increments
};

struct Work {
  AllocateParams p;
  Scratch s;
};

Scratch divide(const AllocateParams& p) {
  Scratch s;
  s.cost = static_cast<uint64_t*>(p.scratch);
  s.cut = reinterpret_cast<Cut*>(s.cost + kPasses * 2 * kBins);
  s.masks = reinterpret_cast<uint64_t*>(s.cut + 2);
  return s;
}

// As kv::priority2 and priority4.
struct Priorities {
  uint64_t first, second;
};
__device__ __forceinline__ Priorities priorities(double utility, const AllocateParams& p,
                                                 int side) {
  const double first = utility * (1 - kEta2) / static_cast<double>(p.cost2[side]);
  const double second = utility * (kEta2 - kEta4) / static_cast<double>(p.cost4);
  return {static_cast<uint64_t>(__double_as_longlong(first)),
          static_cast<uint64_t>(__double_as_longlong(second))};
}

// Adds up the cost of increments by one digit of their priority, among those that share the digits
// found so far. Positive doubles order as their bits do.
__global__ void __launch_bounds__(kSelectThreads) cost_kernel(Work w, int pass) {
  __shared__ uint32_t cost[kBins];
  const AllocateParams& p = w.p;
  const int side = blockIdx.y, shift = digit_shift(pass), above = shift + digit_width(pass);
  const uint32_t mask = (1u << digit_width(pass)) - 1;
  const Cut cut = w.s.cut[side];
  if (cut.all != 0) return;
  for (int i = threadIdx.x; i < kBins; i += kSelectThreads) cost[i] = 0;
  __syncthreads();
  const int64_t n = p.kv_heads * p.prefix;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kSelectTokens;
  const int64_t end = min(n, begin + kSelectTokens);
  const auto offer = [&](uint64_t bits, uint32_t bytes) {
    if (above < 64 && (bits >> (above & 63)) != (cut.bits >> (above & 63))) return;
    atomicAdd(&cost[static_cast<uint32_t>(bits >> shift) & mask], bytes);
  };
  for (int64_t i = begin + threadIdx.x; i < end; i += kSelectThreads) {
    const double utility = p.utility[side * n + i];
    if (!(utility > 0)) continue;
    const Priorities q = priorities(utility, p, side);
    offer(q.first, p.cost2[side]);
    if (p.two_widths) offer(q.second, p.cost4);
  }
  __syncthreads();
  uint64_t* total = w.s.cost + (static_cast<int64_t>(pass) * 2 + side) * kBins;
  for (int i = threadIdx.x; i < kBins; i += kSelectThreads) {
    if (cost[i] != 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(total + i),
                static_cast<unsigned long long>(cost[i]));
    }
  }
}

// Finds the digit in which the budget ends. One block a side.
__global__ void __launch_bounds__(kFinishThreads) digit_kernel(Work w, int pass) {
  __shared__ uint64_t scan[33];
  const int side = blockIdx.x;
  Cut& cut = w.s.cut[side];
  const Cut known = cut;
  if (known.all != 0) return;
  const uint64_t left = pass == 0 ? w.p.bytes[side] : known.left;
  const uint64_t* cost = w.s.cost + (static_cast<int64_t>(pass) * 2 + side) * kBins;
  const int high = kBins - 1 - 2 * static_cast<int>(threadIdx.x);
  const uint64_t a = cost[high], b = cost[high - 1];
  uint64_t total;
  const uint64_t before = block_scan(a + b, scan, &total);
  if (total <= left) {
    // Only at the first digit: later ones are of a bin that does not fit.
    if (threadIdx.x == 0) cut.all = 1;
    return;
  }
  if (before <= left && before + a + b > left) {
    const bool first = before + a > left;
    cut.bits = known.bits | static_cast<uint64_t>(first ? high : high - 1) << digit_shift(pass);
    cut.left = left - before - (first ? 0 : a);
  }
}

// One warp a mask word.
__global__ void __launch_bounds__(256) classify_kernel(Work w) {
  const AllocateParams& p = w.p;
  const int lane = threadIdx.x % 32, side = blockIdx.y;
  const int64_t words = (p.prefix + 63) / 64, n = p.kv_heads * p.prefix;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * 8 + threadIdx.x / 32;
  if (index >= p.kv_heads * words) return;
  const Cut cut = w.s.cut[side];
  const int64_t head = index / words, first = index % words * 64;
  uint64_t masks[4] = {0, 0, 0, 0};
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int64_t t = first + part * 32 + lane;
    const double utility = t < p.prefix ? p.utility[side * n + head * p.prefix + t] : 0.0;
    bool flags[4] = {false, false, false, false};
    if (utility > 0) {
      const Priorities q = priorities(utility, p, side);
      flags[0] = cut.all != 0 || q.first > cut.bits;
      flags[1] = p.two_widths && (cut.all != 0 || q.second > cut.bits);
      flags[2] = cut.all == 0 && q.first == cut.bits;
      flags[3] = p.two_widths && cut.all == 0 && q.second == cut.bits;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint64_t votes = __ballot_sync(kAllLanes, flags[i]);
      masks[i] |= votes << (32 * part);
    }
  }
  if (lane < 4) {
    const uint64_t mine = lane == 0   ? masks[0]
                          : lane == 1 ? masks[1]
                          : lane == 2 ? masks[2]
                                      : masks[3];
    w.s.masks[(side * p.kv_heads * words + index) * 4 + lane] = mine;
  }
}

__device__ __forceinline__ uint64_t lowest_bits(uint64_t mask, int64_t n) {
  if (n >= __popcll(mask)) return mask;
  uint64_t kept = 0;
  for (int64_t i = 0; i < n; ++i) {
    kept |= mask & (~mask + 1);
    mask &= mask - 1;
  }
  return kept;
}

// How many increments at the cut are taken: all first ones before any second one, and none after
// one that does not fit.
struct Ties {
  int64_t first, second;
};
__device__ Ties count_ties(const AllocateParams& p, const uint64_t* masks, int64_t words,
                           uint64_t left, int side, uint64_t* scan) {
  uint64_t at_cut = 0;
  for (int64_t i = threadIdx.x; i < words; i += kFinishThreads)
    at_cut += __popcll(masks[i * 4 + 2]);
  uint64_t total;
  block_scan(at_cut, scan, &total);
  const uint64_t fits = left / p.cost2[side];
  if (fits < total) return {static_cast<int64_t>(fits), 0};
  const uint64_t rest = p.two_widths ? (left - total * p.cost2[side]) / p.cost4 : 0;
  return {static_cast<int64_t>(total), static_cast<int64_t>(rest)};
}

// Masks, prefix counts and head offsets of one side; one block a side walks its words in order.
__global__ void __launch_bounds__(kFinishThreads) finish_kernel(Work w) {
  __shared__ uint64_t scan[33];
  const AllocateParams& p = w.p;
  const int side = blockIdx.x, per_head = p.two_widths ? 2 : 1;
  const int64_t words = (p.prefix + 63) / 64, all_words = p.kv_heads * words;
  const uint64_t* masks = w.s.masks + side * all_words * 4;
  uint64_t* out = p.masks + side * all_words * per_head;
  uint32_t* prefixes = p.prefixes + side * all_words * per_head;
  uint32_t* first = p.first + side * p.kv_heads * 2;
  uint32_t* count = p.count + side * p.kv_heads * 2;
  const Ties ties = count_ties(p, masks, all_words, w.s.cut[side].left, side, scan);
  // Two counts in one sum: of the 2-bit (low) and 4-bit residuals so far.
  uint64_t ties_before = 0, stored_before = 0;
  for (int64_t base = 0; base < all_words; base += kFinishThreads) {
    const int64_t i = base + threadIdx.x;
    const bool inside = i < all_words;
    const uint64_t at2 = inside ? masks[i * 4 + 2] : 0, at4 = inside ? masks[i * 4 + 3] : 0;
    uint64_t total;
    const uint64_t rank = ties_before + block_scan(static_cast<uint64_t>(__popcll(at2)) |
                                                       static_cast<uint64_t>(__popcll(at4)) << 32,
                                                   scan, &total);
    ties_before += total;
    const int64_t left2 = max(int64_t{0}, ties.first - static_cast<int64_t>(rank & 0xffffffffu));
    const int64_t left4 = max(int64_t{0}, ties.second - static_cast<int64_t>(rank >> 32));
    const uint64_t any = inside ? masks[i * 4] | lowest_bits(at2, left2) : 0;
    const uint64_t four = inside ? masks[i * 4 + 1] | lowest_bits(at4, left4) : 0;
    const uint64_t stored =
        static_cast<uint64_t>(__popcll(any & ~four)) | static_cast<uint64_t>(__popcll(four)) << 32;
    const uint64_t before = stored_before + block_scan(stored, scan, &total);
    stored_before += total;
    if (!inside) continue;
    const int64_t head = i / words, word = i % words;
    const int64_t at = head * per_head * words + word;
    out[at] = any;
    prefixes[at] = static_cast<uint32_t>(before);
    if (p.two_widths) {
      out[at + words] = four;
      prefixes[at + words] = static_cast<uint32_t>(before >> 32);
    }
    if (word == 0) {
      first[head * 2] = static_cast<uint32_t>(before);
      first[head * 2 + 1] = static_cast<uint32_t>(before >> 32);
    }
  }
  __syncthreads();
  // Counts are per head.
  for (int64_t i = threadIdx.x; i < all_words * per_head; i += kFinishThreads) {
    prefixes[i] -= first[i / words / per_head * 2 + i / words % per_head];
  }
  const uint32_t stored[2] = {static_cast<uint32_t>(stored_before),
                              static_cast<uint32_t>(stored_before >> 32)};
  int32_t* offsets = p.head_offsets + side * (p.kv_heads + 1);
  for (int head = threadIdx.x; head < p.kv_heads; head += kFinishThreads) {
    for (int wide = 0; wide < 2; ++wide) {
      const uint32_t end = head + 1 < p.kv_heads ? first[(head + 1) * 2 + wide] : stored[wide];
      count[head * 2 + wide] = end - first[head * 2 + wide];
    }
    offsets[head] = static_cast<int32_t>(first[head * 2] + first[head * 2 + 1]);
  }
  if (threadIdx.x == 0) offsets[p.kv_heads] = static_cast<int32_t>(stored[0] + stored[1]);
}

}  // namespace

size_t allocate_scratch_bytes(int kv_heads, int64_t prefix) {
  const size_t words = static_cast<size_t>(kv_heads) * ((prefix + 63) / 64);
  return kPasses * 2 * kBins * sizeof(uint64_t) + 2 * sizeof(Cut) +
         2 * words * 4 * sizeof(uint64_t);
}

void allocate_residuals(const AllocateParams& p, DeviceStream stream) {
  const Work w{p, divide(p)};
  clear_bytes(p.scratch, kPasses * 2 * kBins * sizeof(uint64_t) + 2 * sizeof(Cut), stream);
  const int64_t n = p.kv_heads * p.prefix, words = p.kv_heads * ((p.prefix + 63) / 64);
  const unsigned blocks = static_cast<unsigned>((n + kSelectTokens - 1) / kSelectTokens);
  for (int pass = 0; pass < kPasses; ++pass) {
    AKV_LAUNCH(cost_kernel, dim3(blocks, 2), dim3(kSelectThreads), 0, stream, w, pass);
    AKV_LAUNCH(digit_kernel, dim3(2), dim3(kFinishThreads), 0, stream, w, pass);
  }
  AKV_LAUNCH(classify_kernel, dim3(static_cast<unsigned>((words + 7) / 8), 2), dim3(256), 0, stream,
             w);
  AKV_LAUNCH(finish_kernel, dim3(2), dim3(kFinishThreads), 0, stream, w);
}

}  // namespace akv::kernels::cuda
