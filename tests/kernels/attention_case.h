// Random compressed and dense layers for the attention tests and benchmark: owners of what the
// views point at. Sizes are free, contents are not hostile (slots < k, masks within P).
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "kernels/compressed_attention.h"
#include "kernels/types.h"

namespace akv::testing {

struct CaseOptions {
  int tokens = 512;
  int window = 32;
  int anchors = 48;
  int heads = 3;
  int kv_heads = 1;
  int head_dim = 64;
  bool post = true;
  bool log8 = true;
  bool slots16 = false;
  bool scale_f32 = false;
  double density2 = 0.1;   // share of tokens with a 2-bit residual, either side
  double density4 = 0.05;  // and with a 4-bit one; 0: no mask4 at all
  float key_size = 1.0f;   // standard deviation of the anchors' keys
  uint64_t seed = 1;
};

class CompressedCase {
 public:
  explicit CompressedCase(const CaseOptions& options);
  const kernels::CompressedLayerView& view() const { return view_; }

 private:
  struct Side {
    std::vector<uint8_t> slots8, gamma8;
    std::vector<uint16_t> slots16;
    std::vector<bf16> gamma16, scale2_bf16, scale4_bf16, anchors;
    std::vector<float> scale2_f32, scale4_f32;
    std::vector<uint64_t> mask, mask4;
    std::vector<uint32_t> prefix2, prefix4;
    std::vector<uint8_t> codes2, codes4;
  };
  void fill(const CaseOptions& options, float size, std::mt19937_64& rng, Side* side,
            kernels::CompressedSideView* view);

  std::vector<Side> sides_;
  std::vector<kernels::CompressedHeadView> heads_;
  std::vector<float> signs_;
  kernels::CompressedLayerView view_;
};

class DenseCase {
 public:
  DenseCase(int tokens, int kv_heads, int head_dim, uint64_t seed);
  const kernels::DenseLayerView& view() const { return view_; }

 private:
  std::vector<bf16> k_, v_;
  kernels::DenseLayerView view_;
};

// Pages with a layer offset that is not 0.
class SuffixCase {
 public:
  SuffixCase(int tokens, int kv_heads, int head_dim, uint64_t seed);
  kernels::SuffixView view(int tokens) const;

 private:
  static constexpr int64_t kOffset = 32;
  std::vector<std::vector<bf16>> memory_;
  std::vector<const bf16*> pages_;
};

std::vector<float> random_queries(int heads, int head_dim, uint64_t seed, float size = 1.0f);

// |a - b| / |b|.
double relative_l2(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace akv::testing
