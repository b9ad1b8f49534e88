// A loaded model: config, views of its weights, vocabulary and identity.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/result.h"
#include "common/model/config.h"
#include "kernels/types.h"

namespace akv::kernels {
class RopeTable;
}

namespace akv::model {

class GgufFile;
struct VocabData;

// Views into the mapped file, in stored (low-bit) format. Norms and biases are f32 owned by Model.
struct LayerWeights {
  Matrix wq;                         // [Hq*D, d]
  Matrix wk;                         // [H*D, d]
  Matrix wv;                         // [H*D, d]
  Matrix wo;                         // [d, Hq*D]
  Matrix w_gate;                     // [ff, d]
  Matrix w_up;                       // [ff, d]
  Matrix w_down;                     // [d, ff]
  const float* attn_norm = nullptr;  // [d]
  const float* ffn_norm = nullptr;   // [d]
  const float* bq = nullptr;         // [Hq*D], null where the model has none
  const float* bk = nullptr;         // [H*D]
  const float* bv = nullptr;         // [H*D]
  const float* q_norm = nullptr;     // [D], null where the model has none
  const float* k_norm = nullptr;     // [D]
};

struct LoadOptions {
  int64_t max_context = 0;  // positions; 0: what the file says
};

// Immutable after load, shared by all threads. Loading maps the file and reads the tables: no
// weight is expanded, so it takes milliseconds plus the vocabulary.
class Model {
 public:
  // Errors: those of GgufFile::open and read_config; kInvalidArgument naming the tensor that is
  // missing, of a wrong shape, or that the graph would ignore; the vocabulary's size against the
  // embedding's rows.
  static Result<std::shared_ptr<const Model>> load(const std::string& path,
                                                   const LoadOptions& options = {});
  // The same over a parsed file.
  static Result<std::shared_ptr<const Model>> create(std::unique_ptr<const GgufFile> file,
                                                     const LoadOptions& options = {});
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const { return config_; }
  // REQUIRES: 0 <= i < config().layers.
  const LayerWeights& layer(int i) const { return layers_[static_cast<size_t>(i)]; }
  const Matrix& embedding() const { return embedding_; }     // [vocab, d]
  const Matrix& head() const { return head_; }               // [vocab, d]; embedding() if tied
  const float* output_norm() const { return output_norm_; }  // [d]
  const kernels::RopeTable& rope() const { return *rope_; }  // positions [0, context_length)
  const VocabData& vocab() const { return *vocab_; }         // common/model/vocab_data.h
  const GgufFile& file() const { return *file_; }

  // SHA-256 over header, metadata, tensor table and the first and last 4 KiB of each tensor: two
  // nodes may exchange a state only if it is equal on both.
  const Sha256Digest& fingerprint() const { return fingerprint_; }
  // SHA-256 over the tokenizer.* metadata alone.
  const Sha256Digest& tokenizer_hash() const { return tokenizer_hash_; }

 private:
  friend class ModelBuilder;
  Model();

  std::unique_ptr<const GgufFile> file_;
  ModelConfig config_;
  std::vector<LayerWeights> layers_;
  Matrix embedding_;
  Matrix head_;
  const float* output_norm_ = nullptr;
  std::vector<std::vector<float>> vectors_;  // norms and biases as f32; LayerWeights point here
  std::unique_ptr<const kernels::RopeTable> rope_;
  std::unique_ptr<const VocabData> vocab_;
  Sha256Digest fingerprint_{};
  Sha256Digest tokenizer_hash_{};
};

}  // namespace akv::model
