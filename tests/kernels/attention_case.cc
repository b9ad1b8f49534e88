#include "tests/kernels/attention_case.h"

#include <cmath>

namespace akv::testing {
namespace {

using kernels::CompressedSideView;

std::vector<bf16> random_rows(size_t n, float size, std::mt19937_64& rng) {
  std::normal_distribution<float> normal(0.0f, size);
  std::vector<bf16> out(n);
  for (bf16& x : out) x = to_bf16(normal(rng));
  return out;
}

std::vector<uint8_t> random_bytes(size_t n, std::mt19937_64& rng) {
  std::vector<uint8_t> out(n);
  for (uint8_t& x : out) x = static_cast<uint8_t>(rng());
  return out;
}

}  // namespace

void CompressedCase::fill(const CaseOptions& o, float size, std::mt19937_64& rng, Side* side,
                          CompressedSideView* view) {
  const int prefix = o.tokens - o.window;
  const auto count = static_cast<size_t>(prefix), words = (count + 63) / 64;
  const auto dim = static_cast<size_t>(o.head_dim);
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  side->mask.resize(words);
  side->mask4.resize(words);
  for (size_t t = 0; t < count; ++t) {
    const auto slot = rng() % static_cast<uint64_t>(o.anchors);
    side->slots8.push_back(static_cast<uint8_t>(slot));
    side->slots16.push_back(static_cast<uint16_t>(slot));
    const float gamma = (uniform(rng) < 0.2f ? -1.0f : 1.0f) * (0.3f + uniform(rng));
    side->gamma16.push_back(to_bf16(gamma));
    // Around gamma = 1 (n = 81), either sign, and now and then 0.
    const uint64_t n = uniform(rng) < 0.02f ? 0 : 60 + rng() % 28;
    side->gamma8.push_back(static_cast<uint8_t>(n | (gamma < 0 && n != 0 ? 128u : 0u)));
    const double u = static_cast<double>(uniform(rng));
    const uint64_t bit = uint64_t{1} << (t % 64);
    if (u < o.density2 + o.density4) side->mask[t / 64] |= bit;
    if (u < o.density4) side->mask4[t / 64] |= bit;
  }
  uint32_t n2 = 0, n4 = 0;
  for (size_t w = 0; w < words; ++w) {
    side->prefix2.push_back(n2);
    side->prefix4.push_back(n4);
    n2 += static_cast<uint32_t>(std::popcount(side->mask[w] & ~side->mask4[w]));
    n4 += static_cast<uint32_t>(std::popcount(side->mask4[w]));
  }
  side->codes2 = random_bytes(n2 * dim / 4, rng);
  side->codes4 = random_bytes(n4 * dim / 2, rng);
  const auto scale = [&] { return (0.1f + 0.2f * uniform(rng)) * size; };
  for (uint32_t i = 0; i < n2; ++i) side->scale2_bf16.push_back(to_bf16(scale()));
  for (uint32_t i = 0; i < n4; ++i) side->scale4_bf16.push_back(to_bf16(scale()));
  for (uint32_t i = 0; i < n2; ++i) side->scale2_f32.push_back(scale());
  for (uint32_t i = 0; i < n4; ++i) side->scale4_f32.push_back(scale());
  side->anchors = random_rows(static_cast<size_t>(o.anchors) * dim, size, rng);

  view->slots8 = o.slots16 ? nullptr : side->slots8.data();
  view->slots16 = o.slots16 ? side->slots16.data() : nullptr;
  view->gamma8 = o.log8 ? side->gamma8.data() : nullptr;
  view->gamma16 = o.log8 ? nullptr : side->gamma16.data();
  view->mask = side->mask.data();
  view->mask4 = o.density4 > 0 ? side->mask4.data() : nullptr;
  view->prefix2 = side->prefix2.data();
  view->prefix4 = o.density4 > 0 ? side->prefix4.data() : nullptr;
  view->n2 = n2;
  view->n4 = n4;
  view->codes2 = side->codes2.data();
  view->codes4 = side->codes4.data();
  view->scale2_bf16 = o.scale_f32 ? nullptr : side->scale2_bf16.data();
  view->scale4_bf16 = o.scale_f32 ? nullptr : side->scale4_bf16.data();
  view->scale2_f32 = o.scale_f32 ? side->scale2_f32.data() : nullptr;
  view->scale4_f32 = o.scale_f32 ? side->scale4_f32.data() : nullptr;
  view->anchors = side->anchors.data();
}

CompressedCase::CompressedCase(const CaseOptions& o)
    : sides_(static_cast<size_t>(2 * o.kv_heads)), heads_(static_cast<size_t>(o.kv_heads)) {
  std::mt19937_64 rng(o.seed);
  for (int d = 0; d < o.head_dim; ++d) signs_.push_back((rng() & 1) != 0 ? -1.0f : 1.0f);
  for (size_t h = 0; h < heads_.size(); ++h) {
    fill(o, o.key_size, rng, &sides_[2 * h], &heads_[h].key);
    fill(o, 1.0f, rng, &sides_[2 * h + 1], &heads_[h].value);
  }
  view_.tokens = o.tokens;
  view_.prefix = o.tokens - o.window;
  view_.window = o.window;
  view_.anchors = o.anchors;
  view_.head_dim = o.head_dim;
  view_.kv_heads = o.kv_heads;
  view_.key_domain_post = o.post;
  view_.signs = signs_.data();
  view_.heads = heads_.data();
}

DenseCase::DenseCase(int tokens, int kv_heads, int head_dim, uint64_t seed) {
  std::mt19937_64 rng(seed);
  const auto n = static_cast<size_t>(tokens) * static_cast<size_t>(kv_heads * head_dim);
  k_ = random_rows(n, 1.0f, rng);
  v_ = random_rows(n, 1.0f, rng);
  view_ = {tokens, head_dim, kv_heads, k_.data(), v_.data()};
}

SuffixCase::SuffixCase(int tokens, int kv_heads, int head_dim, uint64_t seed) {
  std::mt19937_64 rng(seed);
  const auto size =
      static_cast<size_t>(kOffset + 2 * kernels::kSuffixPageTokens * kv_heads * head_dim);
  for (int t = 0; t < tokens; t += kernels::kSuffixPageTokens) {
    memory_.push_back(random_rows(size, 1.0f, rng));
  }
  for (const auto& page : memory_) pages_.push_back(page.data());
}

kernels::SuffixView SuffixCase::view(int tokens) const { return {pages_.data(), kOffset, tokens}; }

std::vector<float> random_queries(int heads, int head_dim, uint64_t seed, float size) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal(0.0f, size);
  std::vector<float> out(static_cast<size_t>(heads * head_dim));
  for (float& x : out) x = normal(rng);
  return out;
}

double relative_l2(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    difference += (x - y) * (x - y);
    size += y * y;
  }
  return std::sqrt(difference / size);
}

}  // namespace akv::testing
