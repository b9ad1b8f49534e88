#include "kernels/anchor_select.h"

#include <algorithm>
#include <numeric>

#include "kernels/codec.h"

namespace akv::kernels {

void pool_scores(const float* mean_alpha, int64_t prefix, int kernel, float* score) {
  const int half = kernel / 2;
  for (int64_t t = 0; t < prefix; ++t) {
    const int64_t begin = std::max<int64_t>(0, t - half);
    const int64_t end = std::min<int64_t>(prefix, t - half + kernel);
    double sum = 0;
    for (int64_t i = begin; i < end; ++i) sum += mean_alpha[i];
    score[t] = static_cast<float>(sum / kernel);
  }
}

void select_anchors(const float* score, int64_t prefix, int64_t top, int64_t random, uint64_t seed,
                    std::vector<int32_t>& order, int32_t* out) {
  order.resize(prefix);
  std::iota(order.begin(), order.end(), 0);
  const auto better = [score](int32_t a, int32_t b) {
    return score[a] != score[b] ? score[a] > score[b] : a < b;
  };
  if (top > 0 && top < prefix) {
    std::nth_element(order.begin(), order.begin() + top, order.end(), better);
  }
  std::copy(order.begin(), order.begin() + top, out);
  std::sort(out, out + top);
  // What is left, in increasing order, is what the draw's indices refer to.
  int32_t* left = order.data();
  const int32_t* skip = out;
  for (int32_t t = 0; t < prefix; ++t) {
    if (skip != out + top && *skip == t) {
      ++skip;
    } else {
      *left++ = t;
    }
  }
  left = order.data();
  const uint64_t n = static_cast<uint64_t>(prefix - top);
  SplitMix64 rng(seed);
  for (int64_t j = 0; j < random; ++j) {
    const uint64_t pick = static_cast<uint64_t>(j) + rng.next() % (n - static_cast<uint64_t>(j));
    std::swap(left[j], left[pick]);
  }
  std::copy(left, left + random, out + top);
  std::sort(out, out + top + random);
}

}  // namespace akv::kernels
