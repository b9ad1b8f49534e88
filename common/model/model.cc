#include "common/model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "common/model/gguf.h"
#include "common/model/vocab_loader.h"
#include "kernels/dequant.h"
#include "kernels/rope.h"

namespace akv::model {
namespace {

constexpr size_t kFingerprintEdgeBytes = 4096;  // of each end of a tensor

// Identity without reading the weights: the head, and the edges of each tensor.
Sha256Digest fingerprint_of(const GgufFile& file) {
  Sha256 hash;
  hash.update(file.head_bytes().data(), file.head_bytes().size());
  for (const GgufTensor& tensor : file.tensors()) {
    const size_t edge = std::min(kFingerprintEdgeBytes, tensor.data.size());
    hash.update(tensor.data.data(), edge);
    hash.update(tensor.data.data() + (tensor.data.size() - edge), edge);
  }
  return hash.finish();
}

// tokenizer.* entries in key order, so that a converter's order does not matter.
Sha256Digest tokenizer_hash_of(const GgufFile& file) {
  std::vector<const GgufFile::Entry*> entries;
  for (const GgufFile::Entry& entry : file.metadata()) {
    if (entry.key.starts_with("tokenizer.")) entries.push_back(&entry);
  }
  std::sort(entries.begin(), entries.end(),
            [](const auto* a, const auto* b) { return a->key < b->key; });
  Sha256 hash;
  for (const GgufFile::Entry* entry : entries) {
    const uint64_t sizes[2] = {entry->key.size(), entry->bytes.size()};
    hash.update(sizes, sizeof(sizes));
    hash.update(entry->key.data(), entry->key.size());
    hash.update(entry->bytes.data(), entry->bytes.size());
  }
  return hash.finish();
}

}  // namespace

// Binds a file's tensors to the graph's roles. Every tensor of the file must find its role: one
// that the graph would ignore means that the graph computes another model.
class ModelBuilder {
 public:
  ModelBuilder(Model& model, const LoadOptions& options)
      : model_(model), file_(*model.file_), options_(options) {}
  Status build();

 private:
  Status bind_embedding();
  Status bind_head();
  Status bind_rope_factors();
  Status bind_layer(int index);
  Status bind_biases(int index, LayerWeights& layer);
  Status bind_head_norms(int index, LayerWeights& layer);
  Status check_all_used() const;
  Result<const GgufTensor*> take(const std::string& name, uint64_t cols, uint64_t rows);
  Status matrix(const std::string& name, int rows, int cols, Matrix& out);
  Status vector(const std::string& name, int size, const float*& out);
  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }
  Error bad(std::string_view name, const std::string& what,
            Code code = Code::kInvalidArgument) const {
    return make_error(code, fmt::format("GGUF {}: tensor '{}': {}", file_.name(), name, what),
                      std::string(name));
  }

  Model& model_;
  const GgufFile& file_;
  LoadOptions options_;
  std::unordered_set<std::string_view> used_;
};

// rows 0: a vector of `cols`.
Result<const GgufTensor*> ModelBuilder::take(const std::string& name, uint64_t cols,
                                             uint64_t rows) {
  const GgufTensor* tensor = file_.find_tensor(name);
  if (tensor == nullptr) return bad(name, "missing");
  const std::array<uint64_t, 4> want{cols, std::max<uint64_t>(rows, 1), 1, 1};
  if (tensor->dims != want) {
    return bad(name, fmt::format("shape {}, expected {}", tensor->shape(),
                                 rows == 0 ? fmt::format("[{}]", cols)
                                           : fmt::format("[{}, {}]", cols, rows)));
  }
  used_.insert(tensor->name);
  return tensor;
}

Status ModelBuilder::matrix(const std::string& name, int rows, int cols, Matrix& out) {
  AKV_ASSIGN_OR_RETURN(const GgufTensor* tensor,
                       take(name, static_cast<uint64_t>(cols), static_cast<uint64_t>(rows)));
  out = Matrix{tensor->data.data(), tensor->type, rows, cols};
  return {};
}

Status ModelBuilder::vector(const std::string& name, int size, const float*& out) {
  AKV_ASSIGN_OR_RETURN(const GgufTensor* tensor, take(name, static_cast<uint64_t>(size), 0));
  std::vector<float>& values = model_.vectors_.emplace_back(static_cast<size_t>(size));
  kernels::dequantize_rows(Matrix{tensor->data.data(), tensor->type, 1, size}, 0, 1, values.data());
  if (!std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); })) {
    return bad(name, "holds a value that is not finite");
  }
  out = values.data();
  return {};
}

Status ModelBuilder::bind_embedding() {
  constexpr const char* kName = "token_embd.weight";
  const GgufTensor* tensor = file_.find_tensor(kName);
  if (tensor == nullptr) return bad(kName, "missing");
  constexpr uint64_t kMaxVocab = 1u << 24;
  if (tensor->n_dims != 2 || tensor->dims[1] > kMaxVocab) {
    return bad(kName, fmt::format("shape {}, expected [{}, vocabulary]", tensor->shape(),
                                  model_.config_.d_model));
  }
  model_.config_.vocab = static_cast<int>(tensor->dims[1]);
  const std::string key = model_.config_.arch + ".vocab_size";
  AKV_ASSIGN_OR_RETURN(const auto stated, file_.find_uint(key));
  if (stated.has_value() && *stated != tensor->dims[1]) {
    return bad(kName, fmt::format("{} rows, but key '{}' says {}", tensor->dims[1], key, *stated));
  }
  return matrix(kName, model_.config_.vocab, model_.config_.d_model, model_.embedding_);
}

Status ModelBuilder::bind_head() {
  const ModelConfig& config = model_.config_;
  AKV_RETURN_IF_ERROR(vector("output_norm.weight", config.d_model, model_.output_norm_));
  model_.config_.tied = !has("output.weight");
  if (!config.tied) return matrix("output.weight", config.vocab, config.d_model, model_.head_);
  model_.head_ = model_.embedding_;
  return {};
}

Status ModelBuilder::bind_rope_factors() {
  constexpr const char* kName = "rope_freqs.weight";
  if (!has(kName)) return {};
  const int half = model_.config_.rope.rope_dim / 2;
  const float* factors = nullptr;
  AKV_RETURN_IF_ERROR(vector(kName, half, factors));
  for (int j = 0; j < half; ++j) {
    if (!(factors[j] > 0.0f)) return bad(kName, fmt::format("factor {} is {}", j, factors[j]));
  }
  model_.config_.rope.freq_factors.assign(factors, factors + half);
  return {};
}

Status ModelBuilder::bind_layer(int index) {
  const ModelConfig& c = model_.config_;
  LayerWeights& layer = model_.layers_.emplace_back();
  const auto name = [index](std::string_view role) {
    return fmt::format("blk.{}.{}.weight", index, role);
  };
  AKV_RETURN_IF_ERROR(vector(name("attn_norm"), c.d_model, layer.attn_norm));
  AKV_RETURN_IF_ERROR(matrix(name("attn_q"), c.q_dim(), c.d_model, layer.wq));
  AKV_RETURN_IF_ERROR(matrix(name("attn_k"), c.kv_dim(), c.d_model, layer.wk));
  AKV_RETURN_IF_ERROR(matrix(name("attn_v"), c.kv_dim(), c.d_model, layer.wv));
  AKV_RETURN_IF_ERROR(matrix(name("attn_output"), c.d_model, c.q_dim(), layer.wo));
  AKV_RETURN_IF_ERROR(vector(name("ffn_norm"), c.d_model, layer.ffn_norm));
  AKV_RETURN_IF_ERROR(matrix(name("ffn_gate"), c.d_ff, c.d_model, layer.w_gate));
  AKV_RETURN_IF_ERROR(matrix(name("ffn_up"), c.d_ff, c.d_model, layer.w_up));
  AKV_RETURN_IF_ERROR(matrix(name("ffn_down"), c.d_model, c.d_ff, layer.w_down));
  AKV_RETURN_IF_ERROR(bind_biases(index, layer));
  return bind_head_norms(index, layer);
}

Status ModelBuilder::bind_biases(int index, LayerWeights& layer) {
  const ModelConfig& c = model_.config_;
  if (!c.qkv_bias) return {};
  const auto name = [index](char which) {
    return fmt::format("blk.{}.attn_{}.bias", index, which);
  };
  AKV_RETURN_IF_ERROR(vector(name('q'), c.q_dim(), layer.bq));
  AKV_RETURN_IF_ERROR(vector(name('k'), c.kv_dim(), layer.bk));
  return vector(name('v'), c.kv_dim(), layer.bv);
}

Status ModelBuilder::bind_head_norms(int index, LayerWeights& layer) {
  const ModelConfig& c = model_.config_;
  if (!c.qk_norm) return {};
  const auto name = [index](char which) {
    return fmt::format("blk.{}.attn_{}_norm.weight", index, which);
  };
  AKV_RETURN_IF_ERROR(vector(name('q'), c.head_dim, layer.q_norm));
  return vector(name('k'), c.head_dim, layer.k_norm);
}

Status ModelBuilder::check_all_used() const {
  for (const GgufTensor& tensor : file_.tensors()) {
    if (!used_.contains(tensor.name)) {
      return bad(tensor.name,
                 fmt::format("architecture '{}' as computed here has no use for it: results would "
                             "be wrong",
                             model_.config_.arch),
                 Code::kUnsupported);
    }
  }
  return {};
}

Status ModelBuilder::build() {
  AKV_ASSIGN_OR_RETURN(model_.config_, read_config(file_, options_.max_context));
  ModelConfig& config = model_.config_;
  AKV_RETURN_IF_ERROR(bind_embedding());
  AKV_RETURN_IF_ERROR(bind_head());
  AKV_RETURN_IF_ERROR(bind_rope_factors());
  // Present in layer 0 means present in all: a layer without them is then a missing tensor.
  config.qkv_bias |= has("blk.0.attn_q.bias");
  config.qk_norm |= has("blk.0.attn_q_norm.weight");
  // A count that the tables cannot hold is found by the first missing tensor; reserve no more.
  model_.layers_.reserve(std::min(static_cast<size_t>(config.layers), file_.tensors().size()));
  for (int i = 0; i < config.layers; ++i) AKV_RETURN_IF_ERROR(bind_layer(i));
  AKV_RETURN_IF_ERROR(check_all_used());
  AKV_ASSIGN_OR_RETURN(VocabData vocab, load_vocab(file_, config.vocab));
  model_.vocab_ = std::make_unique<const VocabData>(std::move(vocab));
  model_.rope_ = std::make_unique<const kernels::RopeTable>(config.rope, config.context_length);
  model_.fingerprint_ = fingerprint_of(file_);
  model_.tokenizer_hash_ = tokenizer_hash_of(file_);
  return {};
}

Model::Model() = default;
Model::~Model() = default;

Result<std::shared_ptr<const Model>> Model::create(std::unique_ptr<const GgufFile> file,
                                                   const LoadOptions& options) {
  std::shared_ptr<Model> model(new Model());
  model->file_ = std::move(file);
  AKV_RETURN_IF_ERROR(ModelBuilder(*model, options).build());
  return std::shared_ptr<const Model>(std::move(model));
}

Result<std::shared_ptr<const Model>> Model::load(const std::string& path,
                                                 const LoadOptions& options) {
  AKV_ASSIGN_OR_RETURN(std::unique_ptr<const GgufFile> file, GgufFile::open(path));
  return create(std::move(file), options);
}

}  // namespace akv::model
