// Which positions become anchors (anchorkv.md sections 1 and 2). Per KV head, on one thread.
#pragma once

#include <cstdint>
#include <vector>

namespace akv::kernels {

// score[t] = average of mean_alpha over `kernel` positions around t, zero outside [0, prefix),
// divisor `kernel` (Eq. 14). Both [prefix].
void pool_scores(const float* mean_alpha, int64_t prefix, int kernel, float* score);

// The `top` positions of highest score (ties: the lower position) and `random` of the others, drawn
// without replacement by a partial Fisher-Yates shuffle of SplitMix64(seed). out: [top + random],
// ascending. top + random <= prefix. `order` is scratch.
void select_anchors(const float* score, int64_t prefix, int64_t top, int64_t random, uint64_t seed,
                    std::vector<int32_t>& order, int32_t* out);

// The generator's seed for a layer and KV head.
inline uint64_t anchor_seed(uint64_t seed, int layer, int head) {
  return seed ^ (static_cast<uint64_t>(layer) << 32) ^ static_cast<uint64_t>(head);
}

}  // namespace akv::kernels
