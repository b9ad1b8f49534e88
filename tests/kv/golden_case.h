// A file of the format of golden/codec: one layer's tensors and, per profile and head, everything
// an independent implementation made of them. Used by codec_check and by tests.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/kv/plan.h"
#include "kernels/rope.h"
#include "kernels/types.h"

namespace akv::kv::testing {

struct GoldenSide {
  std::vector<uint16_t> slot;     // [P]
  std::vector<float> gamma;       // [P], stored values
  std::vector<float> utility;     // [P], -1 on anchors
  std::vector<uint8_t> bits;      // [P]
  std::vector<uint8_t> codes[2];  // [n2][D], [n4][D], one code a byte
  std::vector<float> scale[2];    // [n2], [n4]
  std::vector<float> hat;         // [S][D]
};

struct GoldenHead {
  std::vector<int32_t> anchors;  // [k]
  std::vector<float> score;      // [P]
  GoldenSide side[2];            // K, V
};

struct GoldenPlan {
  int k = 0;
  uint64_t base = 0, full = 0, spare = 0, bytes = 0;
};

struct GoldenProfile {
  GoldenPlan plan;
  std::vector<GoldenHead> heads;
  std::vector<float> attention;  // [Hq][D]
};

struct GoldenCase {
  std::string name;  // the file's name
  int64_t tokens = 0;
  int kv_heads = 0, head_dim = 0, group = 0, window = 0, layer = 0;
  double theta = 0;
  uint64_t seed = 42;
  kernels::RopeParams rope;
  std::vector<bf16> k, v, q;  // [S,H,D], [S,H,D], [W,Hq,D]
  std::vector<float> q_new;   // [Hq][D]
  std::vector<float> full_attention;
  std::map<std::string, GoldenProfile> profiles;

  int heads() const { return kv_heads * group; }
  int64_t prefix() const { return tokens - window; }
  // A shape with just enough layers for the case's layer index.
  KvShape shape() const { return {layer + 1, heads(), kv_heads, head_dim}; }
};

// Errors name what is absent, of another size or out of range.
Result<GoldenCase> load_golden_case(const std::string& path);

}  // namespace akv::kv::testing
