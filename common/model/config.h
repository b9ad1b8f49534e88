// What a model is, as data: one layer graph reads it, no architecture forks the code.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/result.h"
#include "kernels/rope.h"

namespace akv::model {

class GgufFile;

// Llama family, read from a GGUF's metadata and the presence of tensors. Validated: every count is
// positive, heads is a multiple of kv_heads, head_dim a multiple of 8 up to 256, rope_dim even.
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
  int64_t context_length = 0;  // positions that the model takes
  double rms_eps = 1e-5;
  kernels::RopeParams rope;  // base, rotated dimensions, pairs, factors: RopeTable's input
  bool qkv_bias = false;     // q += b etc. before QK-norm and RoPE
  bool qk_norm = false;      // per-head RMSNorm of q and k, before RoPE
  bool tied = false;         // logits by the embedding matrix

  int q_dim() const { return heads * head_dim; }
  int kv_dim() const { return kv_heads * head_dim; }
};

// Reads the metadata's part of the config; vocab, tied, rope.freq_factors and optional biases and
// norms follow from the tensors (Model). Errors name the key: missing, of another type, out of
// range; kUnsupported for an architecture or a feature (experts, sliding window, yarn) that the
// graph does not compute. `max_context` > 0 lowers context_length.
Result<ModelConfig> read_config(const GgufFile& file, int64_t max_context);

}  // namespace akv::model
