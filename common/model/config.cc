#include "common/model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "common/model/gguf.h"

namespace akv::model {
namespace {

// What the architectures differ in. A family is a row here, not a branch in the graph.
struct Family {
  std::string_view arch;
  kernels::RopePairs pairs;  // as the GGUF converter lays out the rows of wq and wk
  bool qkv_bias;             // always has them; the others may
  bool qk_norm;
};
constexpr Family kFamilies[] = {
    {"llama", kernels::RopePairs::kInterleaved, false, false},
    {"qwen2", kernels::RopePairs::kHalf, true, false},
    {"qwen3", kernels::RopePairs::kHalf, false, true},
};

// Keys (behind "arch.") that change the arithmetic in a way that the graph does not compute. Absent
// or zero is fine; ignoring them would give wrong text with HTTP 200.
constexpr std::string_view kUnsupportedCounts[] = {"expert_count", "attention.sliding_window",
                                                   "nextn_predict_layers"};
constexpr std::string_view kUnsupportedScales[] = {
    "attention.scale",        "logit_scale",
    "residual_scale",         "embedding_scale",
    "attn_logit_softcapping", "final_logit_softcapping",
    "attention.clamp_kqv",    "rope.scaling.attn_factor",
};

constexpr uint64_t kMaxCount = 1u << 24;  // layers, widths, vocabulary; keeps products in 64 bits
constexpr uint64_t kMaxContext = kernels::RopeTable::kDefaultMaxPositions;

class ConfigReader {
 public:
  ConfigReader(const GgufFile& file, std::string arch) : file_(file) {
    config_.arch = std::move(arch);
  }
  Result<ModelConfig> read(const Family& family, int64_t max_context);

 private:
  std::string key(std::string_view suffix) const {
    return fmt::format("{}.{}", config_.arch, suffix);
  }
  Error bad(std::string_view suffix, const std::string& what, Code code = Code::kInvalidArgument) {
    return make_error(code, fmt::format("GGUF {}: key '{}': {}", file_.name(), key(suffix), what),
                      key(suffix));
  }
  Status refuse_unsupported();
  Status read_counts();
  Status read_heads();
  Status read_rope(const Family& family);
  Status read_rope_scaling();
  Status read_context(int64_t max_context);
  Result<int> count(std::string_view suffix);
  Result<int> count_or(std::string_view suffix, int fallback);

  const GgufFile& file_;
  ModelConfig config_;
};

Result<int> ConfigReader::count(std::string_view suffix) {
  AKV_ASSIGN_OR_RETURN(const uint64_t value, file_.get_uint(key(suffix)));
  if (value < 1 || value > kMaxCount) {
    return bad(suffix, fmt::format("{}; 1 to {} are taken", value, kMaxCount));
  }
  return static_cast<int>(value);
}

Result<int> ConfigReader::count_or(std::string_view suffix, int fallback) {
  if (file_.find(key(suffix)) == nullptr) return fallback;
  return count(suffix);
}

Status ConfigReader::refuse_unsupported() {
  for (const std::string_view suffix : kUnsupportedCounts) {
    AKV_ASSIGN_OR_RETURN(const auto value, file_.find_uint(key(suffix)));
    if (value.value_or(0) != 0) {
      return bad(suffix, fmt::format("{}: not supported", *value), Code::kUnsupported);
    }
  }
  for (const std::string_view suffix : kUnsupportedScales) {
    AKV_ASSIGN_OR_RETURN(const auto value, file_.find_float(key(suffix)));
    if (value.value_or(0.0) != 0.0) {
      return bad(suffix, fmt::format("{}: not supported", *value), Code::kUnsupported);
    }
  }
  AKV_ASSIGN_OR_RETURN(const auto causal, file_.find_bool(key("attention.causal")));
  if (!causal.value_or(true))
    return bad("attention.causal", "false: not supported", Code::kUnsupported);
  return {};
}

Status ConfigReader::read_counts() {
  AKV_ASSIGN_OR_RETURN(config_.layers, count("block_count"));
  AKV_ASSIGN_OR_RETURN(config_.d_model, count("embedding_length"));
  AKV_ASSIGN_OR_RETURN(config_.d_ff, count("feed_forward_length"));
  AKV_ASSIGN_OR_RETURN(const double eps, file_.get_float(key("attention.layer_norm_rms_epsilon")));
  if (!(eps > 0.0 && eps < 1.0)) {
    return bad("attention.layer_norm_rms_epsilon", fmt::format("{}; in (0, 1) is taken", eps));
  }
  config_.rms_eps = eps;
  for (const auto& [suffix, value] : {std::pair{"embedding_length", config_.d_model},
                                      std::pair{"feed_forward_length", config_.d_ff}}) {
    if (value % 8 != 0) return bad(suffix, fmt::format("{} is no multiple of 8", value));
  }
  return {};
}

Status ConfigReader::read_heads() {
  AKV_ASSIGN_OR_RETURN(config_.heads, count("attention.head_count"));
  AKV_ASSIGN_OR_RETURN(config_.kv_heads, count_or("attention.head_count_kv", config_.heads));
  if (config_.heads % config_.kv_heads != 0) {
    return bad("attention.head_count_kv", fmt::format("{} heads are no multiple of {} KV heads",
                                                      config_.heads, config_.kv_heads));
  }
  const bool explicit_dim = file_.find(key("attention.key_length")) != nullptr;
  if (!explicit_dim && config_.d_model % config_.heads != 0) {
    return bad("attention.head_count",
               fmt::format("width {} is no multiple of {} heads", config_.d_model, config_.heads));
  }
  AKV_ASSIGN_OR_RETURN(config_.head_dim,
                       count_or("attention.key_length", config_.d_model / config_.heads));
  AKV_ASSIGN_OR_RETURN(const int value_dim, count_or("attention.value_length", config_.head_dim));
  if (value_dim != config_.head_dim) {
    return bad(
        "attention.value_length",
        fmt::format("{} differs from the key's {}: not supported", value_dim, config_.head_dim),
        Code::kUnsupported);
  }
  if (config_.head_dim % 8 != 0 || config_.head_dim > 256) {
    return bad(
        "attention.key_length",
        fmt::format("heads of {} values; multiples of 8 up to 256 are supported", config_.head_dim),
        Code::kUnsupported);
  }
  return {};
}

Status ConfigReader::read_rope(const Family& family) {
  kernels::RopeParams& rope = config_.rope;
  rope.pairs = family.pairs;
  rope.head_dim = config_.head_dim;
  AKV_ASSIGN_OR_RETURN(rope.rope_dim, count_or("rope.dimension_count", config_.head_dim));
  if (rope.rope_dim % 2 != 0 || rope.rope_dim > config_.head_dim) {
    return bad("rope.dimension_count", fmt::format("{}; even and up to head_dim {} is taken",
                                                   rope.rope_dim, config_.head_dim));
  }
  AKV_ASSIGN_OR_RETURN(const auto base, file_.find_float(key("rope.freq_base")));
  rope.base = base.value_or(10000.0);
  if (!(rope.base > 1.0 && std::isfinite(rope.base))) {
    return bad("rope.freq_base", fmt::format("{}; above 1 is taken", rope.base));
  }
  return read_rope_scaling();
}

Status ConfigReader::read_rope_scaling() {
  AKV_ASSIGN_OR_RETURN(const auto type, file_.find_string(key("rope.scaling.type")));
  AKV_ASSIGN_OR_RETURN(const auto factor, file_.find_float(key("rope.scaling.factor")));
  AKV_ASSIGN_OR_RETURN(const auto old_factor, file_.find_float(key("rope.scale_linear")));
  const std::string_view kind = type.value_or("linear");
  if (kind == "none") return {};
  if (kind != "linear") {
    return bad("rope.scaling.type",
               fmt::format("'{}'; none and linear are supported (Llama-3 "
                           "scaling comes as the tensor rope_freqs.weight)",
                           kind.substr(0, 32)),
               Code::kUnsupported);
  }
  // As llama.cpp: a factor of 0 means none.
  const double divisor = factor.value_or(old_factor.value_or(0.0));
  if (divisor == 0.0) return {};
  if (!(divisor >= 1.0 && std::isfinite(divisor))) {
    return bad("rope.scaling.factor", fmt::format("{}; 1 or more is taken", divisor));
  }
  config_.rope.freq_scale = 1.0 / divisor;
  return {};
}

Status ConfigReader::read_context(int64_t max_context) {
  AKV_ASSIGN_OR_RETURN(const uint64_t length, file_.get_uint(key("context_length")));
  if (length < 1) return bad("context_length", "0");
  config_.context_length = static_cast<int64_t>(std::min(length, kMaxContext));
  if (max_context > 0) config_.context_length = std::min(config_.context_length, max_context);
  return {};
}

Result<ModelConfig> ConfigReader::read(const Family& family, int64_t max_context) {
  config_.qkv_bias = family.qkv_bias;
  config_.qk_norm = family.qk_norm;
  AKV_RETURN_IF_ERROR(refuse_unsupported());
  AKV_RETURN_IF_ERROR(read_counts());
  AKV_RETURN_IF_ERROR(read_heads());
  AKV_RETURN_IF_ERROR(read_rope(family));
  AKV_RETURN_IF_ERROR(read_context(max_context));
  AKV_ASSIGN_OR_RETURN(const auto name, file_.find_string("general.name"));
  if (name.has_value()) config_.name = *name;
  if (config_.name.empty()) {
    config_.name = file_.name().substr(file_.name().find_last_of('/') + 1);
    if (config_.name.ends_with(".gguf")) config_.name.resize(config_.name.size() - 5);
  }
  return config_;
}

}  // namespace

Result<ModelConfig> read_config(const GgufFile& file, int64_t max_context) {
  AKV_ASSIGN_OR_RETURN(const std::string_view arch, file.get_string("general.architecture"));
  for (const Family& family : kFamilies) {
    if (family.arch == arch) return ConfigReader(file, std::string(arch)).read(family, max_context);
  }
  return make_error(Code::kUnsupported,
                    fmt::format("GGUF {}: architecture '{}' is not supported; llama, qwen2 and "
                                "qwen3 are",
                                file.name(), arch.substr(0, 64)),
                    "general.architecture");
}

}  // namespace akv::model
