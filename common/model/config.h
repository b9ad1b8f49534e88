// What a model is, as data: one layer graph reads it, no architecture forks the code.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace akv::model {

class GgufFile;

// Which coordinates RoPE turns together: (2i, 2i+1) or (i, i + dim/2).
enum class RopePairs { kInterleaved, kHalf };

struct RopeConfig {
  double base = 10000.0;  // theta of the frequencies base^(-2i/dim)
  int dim = 0;            // leading coordinates of a head that turn; rest pass
  RopePairs pairs = RopePairs::kInterleaved;
  double position_scale = 1.0;      // linear scaling: angles are position * scale * freq
  std::vector<float> freq_factors;  // [dim/2], divides each frequency; empty: all 1
};

// Llama family, read from a GGUF's metadata and the presence of tensors. Validated: every count is
// positive, heads is a multiple of kv_heads, head_dim and rope.dim are even.
struct ModelConfig {
  std::string arch;  // "llama", "qwen2", "qwen3"
  std::string name;  // general.name, or the file's name without directory and .gguf
  int layers = 0;
  int d_model = 0;
  int d_ff = 0;
  int heads = 0;               // Hq, query heads
  int kv_heads = 0;            // H
  int head_dim = 0;            // D; heads * head_dim may differ from d_model (qwen3)
  int vocab = 0;               // rows of the embedding
  int64_t context_length = 0;  // positions that RoPE has tables for
  double rms_eps = 1e-5;
  RopeConfig rope;
  bool qkv_bias = false;  // q += b etc. before QK-norm and RoPE
  bool qk_norm = false;   // per-head RMSNorm of q and k, before RoPE
  bool tied = false;      // logits by the embedding matrix

  int q_dim() const { return heads * head_dim; }
  int kv_dim() const { return kv_heads * head_dim; }
};

// Reads the config. Errors name the key: missing, of another type, out of range; kUnsupported for
// an architecture or a feature (experts, sliding window, yarn) that the graph does not compute.
// `max_context` > 0 lowers context_length.
Result<ModelConfig> read_config(const GgufFile& file, int64_t max_context);

}  // namespace akv::model
