#include "kernels/cuda/launch.h"
#include "kernels/cuda/sampling/philox.h"
#include "kernels/cuda/sampling/select.h"
#include "kernels/sampling.h"

namespace akv::kernels::cuda {
namespace {

constexpr float kGreedyBelow = 1e-5f;  // model::sample's

// Weights lie in (0, 1]; as integers of this scale 2^18 of them add up without overflow, and what
// is lost of each is below 2^-44 of the best one's.
constexpr float kMassScale = 0x1.0p44f;

// The best token: the first in the order. -1 where a logit is not finite.
__device__ Cut best_token(const float* logits, int64_t vocab, SelectShared& shared) {
  Mass best = 0;
  bool finite = true;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < vocab; i += kSampleThreads) {
    const float x = logits[i];
    finite = finite && x - x == 0.0f;
    const Mass at =
        static_cast<Mass>(order_key(x)) << 32 | (0xffffffffu - static_cast<uint32_t>(i));
    best = at > best ? at : best;
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const Mass other = __shfl_xor_sync(kFullWarp, best, step);
    best = other > best ? other : best;
  }
  if (threadIdx.x % kWarp == 0) shared.warps[threadIdx.x / kWarp] = best;
  const bool all_finite = __syncthreads_and(finite ? 1 : 0) != 0;
  for (int i = 0; i < kSampleWarps; ++i) {
    best = shared.warps[i] > best ? shared.warps[i] : best;
  }
  const auto id = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(best));
  return {static_cast<uint32_t>(best >> 32), all_finite ? id : -1};
}

struct Row {
  const float* logits;
  int64_t vocab;
  SampleRule rule;
  Cut cut;         // what is left to draw from
  float top;       // the best logit
  float* weights;  // [vocab], relative to the best

  __device__ bool kept(int32_t id) const { return cut.keeps(order_key(logits[id]), id); }
  __device__ Mass mass(int32_t id) const {
    return kept(id) ? static_cast<Mass>(weights[id] * kMassScale) : 0;
  }
  __device__ void fill_weights() const {
    for (auto i = static_cast<int32_t>(threadIdx.x); i < vocab; i += kSampleThreads) {
      weights[i] = expf((logits[i] - top) / rule.temperature);
    }
    __syncthreads();
  }
  __device__ Mass total_mass(SelectShared& shared) const {
    Mass sum = 0;
    for (auto i = static_cast<int32_t>(threadIdx.x); i < vocab; i += kSampleThreads) sum += mass(i);
    return block_total(sum, shared);
  }
};

// Drops what is below min_p times the best probability; the best stays.
__device__ void keep_min_p(Row& row, const Cut& best) {
  // In double: products and sums of floats are then rounded as two float operations are.
  const auto log_p = static_cast<float>(log(static_cast<double>(row.rule.min_p)));
  const auto drop = static_cast<float>(static_cast<double>(row.rule.temperature) * log_p);
  const auto floor = static_cast<float>(static_cast<double>(row.top) + drop);
  row.cut = floor > row.top ? best : Cut{order_key(floor), 0x7fffffff};
}

// True where it kept fewer than there were.
__device__ bool keep_top_k(Row& row, SelectShared& shared) {
  if (row.rule.top_k <= 0) return false;
  Mass kept = 0;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < row.vocab; i += kSampleThreads) {
    kept += row.kept(i) ? 1 : 0;
  }
  kept = block_total(kept, shared);
  const auto k = static_cast<Mass>(row.rule.top_k);
  if (k >= kept) return false;
  row.cut = cross_by_order(row.logits, row.vocab, k - 1, shared,
                           [&](int32_t i) -> Mass { return row.kept(i) ? 1 : 0; });
  return true;
}

// The smallest best set of at least top_p of the mass that is left.
__device__ void keep_top_p(Row& row, SelectShared& shared) {
  const Mass total = row.total_mass(shared);
  const double wanted = ceil(static_cast<double>(row.rule.top_p) * static_cast<double>(total));
  Mass threshold = wanted >= 1.0 ? static_cast<Mass>(wanted) - 1 : 0;
  threshold = threshold < total ? threshold : total - 1;
  row.cut = cross_by_order(row.logits, row.vocab, threshold, shared,
                           [&](int32_t i) { return row.mass(i); });
}

__device__ int32_t draw(const Row& row, bool in_order, SelectShared& shared) {
  const Mass total = row.total_mass(shared);
  const double uniform = philox_uniform(row.rule.seed, row.rule.position);
  auto threshold = static_cast<Mass>(uniform * static_cast<double>(total));
  threshold = threshold < total ? threshold : total - 1;
  const auto mass = [&](int32_t i) { return row.mass(i); };
  if (in_order) return cross_by_order(row.logits, row.vocab, threshold, shared, mass).id;
  return cross_by_id(row.vocab, threshold, shared, mass);
}

// A block per row: penalties of a batch differ, and a row's logits stay in L2.
__global__ void __launch_bounds__(kSampleThreads, 1)
    sample_kernel(const float* logits, int64_t vocab, const SampleRule* rules, int32_t* tokens,
                  float* weights) {
  AKV_DYNAMIC_SHARED(SelectShared, shared);
  const int64_t at = blockIdx.x * vocab;
  Row row{logits + at, vocab, rules[blockIdx.x], Cut{}, 0.0f, weights + at};
  const Cut best = best_token(row.logits, vocab, *shared);
  int32_t token = best.id;
  if (best.id >= 0 && row.rule.temperature >= kGreedyBelow) {
    row.top = row.logits[best.id];
    row.fill_weights();
    if (row.rule.min_p > 0.0f) keep_min_p(row, best);
    bool in_order = keep_top_k(row, *shared);
    if (row.rule.top_p < 1.0f) {
      keep_top_p(row, *shared);
      in_order = true;
    }
    token = draw(row, in_order, *shared);
  }
  if (threadIdx.x == 0) tokens[blockIdx.x] = token;
}

}  // namespace

void sample(const float* logits, int64_t rows, int64_t vocab, const SampleRule* rules,
            int32_t* tokens, void* scratch, DeviceStream stream) {
  if (rows == 0) return;
  AKV_SHARED_ATTRIBUTE(sample_kernel, sizeof(SelectShared));
  AKV_LAUNCH(sample_kernel, static_cast<unsigned>(rows), kSampleThreads, sizeof(SelectShared),
             stream, logits, vocab, rules, tokens, static_cast<float*>(scratch));
}

size_t sample_scratch_bytes(int64_t rows, int64_t vocab) {
  return static_cast<size_t>(rows * vocab) * sizeof(float);
}

}  // namespace akv::kernels::cuda
