// Anchor positions: pooled scores, the exact top share by radix select, the seeded uniform share.
#include "kernels/cuda/codec/numeric.h"

namespace akv::kernels::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kBins = 2048;

__global__ void __launch_bounds__(256) pool_kernel(CodecLayer layer, SelectParams p) {
  const int64_t prefix = layer.prefix();
  const int64_t t = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (t >= prefix) return;
  const float* mean = p.mean_alpha + blockIdx.y * prefix;
  const int half = p.kernel / 2;
  const int64_t begin = max(int64_t{0}, t - half), end = min(prefix, t - half + p.kernel);
  double sum = 0;
  for (int64_t i = begin; i < end; ++i) sum += mean[i];
  p.score[blockIdx.y * prefix + t] = static_cast<float>(sum / p.kernel);
}

// Scores are not negative, so that their bits order as they do.
struct Cut {
  uint32_t bits;  // of the lowest score that is taken
  int64_t equal;  // how many of that very score are taken, lowest positions first
};

// One digit of the radix select: among the scores whose bits above shift + width are those of
// `cut`.
__device__ void select_digit(const float* score, int64_t prefix, int shift, int width,
                             uint32_t* histogram, int64_t* scan, Cut* cut) {
  for (int i = threadIdx.x; i < kBins; i += kThreads) histogram[i] = 0;
  __syncthreads();
  const Cut known = *cut;
  const int above = shift + width;
  for (int64_t t = threadIdx.x; t < prefix; t += kThreads) {
    const uint32_t bits = __float_as_uint(score[t]);
    if (above < 32 && (bits >> (above & 31)) != (known.bits >> (above & 31))) continue;
    atomicAdd(&histogram[(bits >> shift) & ((1u << width) - 1)], 1u);
  }
  __syncthreads();
  // Thread i owns the two bins that are 2 i and 2 i + 1 from the top.
  const int high = kBins - 1 - 2 * static_cast<int>(threadIdx.x);
  const int64_t a = histogram[high], b = histogram[high - 1];
  int64_t total;
  const int64_t before = block_scan(a + b, scan, &total);
  int digit = -1;
  int64_t left = known.equal - before;
  if (left > 0 && left <= a + b) {
    digit = left <= a ? high : high - 1;
    if (left > a) left -= a;
  }
  __syncthreads();
  if (digit >= 0) {
    cut->bits |= static_cast<uint32_t>(digit) << shift;
    cut->equal = left;
  }
  __syncthreads();
}

// Writes the chosen positions in ascending order; every thread walks a range of its own.
__device__ void collect_top(const float* score, int64_t prefix, const Cut& cut, int64_t* scan,
                            int32_t* out) {
  const int64_t begin = threadIdx.x * prefix / kThreads,
                end = (threadIdx.x + 1) * prefix / kThreads;
  int64_t above = 0, equal = 0;
  for (int64_t t = begin; t < end; ++t) {
    const uint32_t bits = __float_as_uint(score[t]);
    above += bits > cut.bits;
    equal += bits == cut.bits;
  }
  int64_t total;
  const int64_t equal_before = block_scan(equal, scan, &total);
  int64_t place = block_scan(above, scan, &total) + min(equal_before, cut.equal);
  int64_t rank = equal_before;
  for (int64_t t = begin; t < end; ++t) {
    const uint32_t bits = __float_as_uint(score[t]);
    const bool tie = bits == cut.bits;
    if (bits > cut.bits || (tie && rank < cut.equal)) out[place++] = static_cast<int32_t>(t);
    rank += tie;
  }
}

// Entries of the ascending list [n] that are below `bound` after `gap` times their index is taken
// off: with gap 1 the chosen positions before the bound-th one that is not chosen.
__device__ int count_below(const int32_t* list, int n, int64_t bound, int gap) {
  int low = 0, high = n;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (static_cast<int64_t>(list[middle]) - static_cast<int64_t>(gap) * middle < bound) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// What the partial shuffle draws as its j-th element, as an index into the unchosen positions. A
// swap at step i leaves position pick[i] with what stood at i; later steps may read it there.
__device__ int64_t drawn(const int32_t* pick, int j) {
  int64_t place = pick[j];
  for (int i = j - 1; i >= 0; --i) {
    if (pick[i] == place) place = i;
  }
  return place;
}

__global__ void __launch_bounds__(kThreads) select_kernel(CodecLayer layer, SelectParams p) {
  __shared__ uint32_t histogram[kBins];
  __shared__ int64_t scan[33];
  __shared__ Cut cut;
  const int64_t prefix = layer.prefix();
  const int selected = p.k - layer.window, top = p.rho_percent * selected / 100;
  const int random = selected - top, head = blockIdx.x;
  const float* score = p.score + head * prefix;
  int32_t* best = p.scratch + static_cast<int64_t>(head) * 2 * p.k;  // [top], then [random]
  int32_t* draw = best + top;
  int32_t* pick = best + p.k;  // [random]
  int32_t* out = p.positions + static_cast<int64_t>(head) * p.k;
  if (top > 0) {
    if (threadIdx.x == 0) cut = Cut{0, top};
    __syncthreads();
    select_digit(score, prefix, 21, 11, histogram, scan, &cut);
    select_digit(score, prefix, 10, 11, histogram, scan, &cut);
    select_digit(score, prefix, 0, 10, histogram, scan, &cut);
    collect_top(score, prefix, cut, scan, best);
  }
  const uint64_t seed =
      p.seed ^ (static_cast<uint64_t>(p.layer_index) << 32) ^ static_cast<uint64_t>(p.first + head);
  const uint64_t n = static_cast<uint64_t>(prefix - top);
  for (int j = threadIdx.x; j < random; j += kThreads) {
    const uint64_t at = static_cast<uint64_t>(j);
    pick[j] = static_cast<int32_t>(at + split_mix(seed, at) % (n - at));
  }
  __syncthreads();
  for (int j = threadIdx.x; j < random; j += kThreads) {
    const int64_t index = drawn(pick, j);
    draw[j] = static_cast<int32_t>(index + count_below(best, top, index + 1, 1));
  }
  __syncthreads();
  for (int i = threadIdx.x; i < selected; i += kThreads) {
    const int32_t own = best[i];
    int place = i < top ? i : count_below(best, top, own, 0);
    for (int j = 0; j < random; ++j) place += draw[j] < own;
    out[place] = own;
  }
  for (int w = threadIdx.x; w < layer.window; w += kThreads) {
    out[selected + w] = static_cast<int32_t>(prefix + w);
  }
}

}  // namespace

void select_anchors(const CodecLayer& layer, const SelectParams& p, DeviceStream stream) {
  const unsigned blocks = static_cast<unsigned>((layer.prefix() + 255) / 256);
  const unsigned heads = static_cast<unsigned>(p.heads);
  AKV_LAUNCH(pool_kernel, dim3(blocks, heads), dim3(256), 0, stream, layer, p);
  AKV_LAUNCH(select_kernel, dim3(heads), dim3(kThreads), 0, stream, layer, p);
}

}  // namespace akv::kernels::cuda
