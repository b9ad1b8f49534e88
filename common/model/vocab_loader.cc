#include "common/model/vocab_loader.h"

#include <fmt/format.h>

#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/model/gguf.h"

namespace akv::model {
namespace {

Error bad(const GgufFile& file, std::string_view key, const std::string& what) {
  return make_error(Code::kInvalidArgument,
                    fmt::format("GGUF {}: key '{}': {}", file.name(), key, what), std::string(key));
}

// Wraps an array accessor's error with the key's name.
template <class T>
Result<T> named(const GgufFile& file, std::string_view key, Result<T> result) {
  if (!result.ok()) return bad(file, key, result.error().message);
  return result;
}

Result<std::vector<std::string>> strings(const GgufFile& file, std::string_view key,
                                         const GgufArray& array) {
  AKV_ASSIGN_OR_RETURN(const std::vector<std::string_view> views,
                       named(file, key, array.strings()));
  return std::vector<std::string>(views.begin(), views.end());
}

Status read_tokens(const GgufFile& file, int vocab, VocabData& out) {
  constexpr std::string_view kKey = "tokenizer.ggml.tokens";
  AKV_ASSIGN_OR_RETURN(const GgufArray tokens, file.get_array(kKey));
  if (tokens.count != static_cast<uint64_t>(vocab)) {
    return bad(file, kKey,
               fmt::format("{} tokens, but the embedding has {} rows", tokens.count, vocab));
  }
  AKV_ASSIGN_OR_RETURN(out.pieces, strings(file, kKey, tokens));
  return {};
}

Status read_types(const GgufFile& file, VocabData& out) {
  constexpr std::string_view kKey = "tokenizer.ggml.token_type";
  AKV_ASSIGN_OR_RETURN(const auto array, file.find_array(kKey));
  if (!array.has_value()) return {};
  AKV_ASSIGN_OR_RETURN(const std::vector<int64_t> types, named(file, kKey, array->integers()));
  if (types.size() != out.pieces.size()) {
    return bad(file, kKey, fmt::format("{} types for {} tokens", types.size(), out.pieces.size()));
  }
  out.types.reserve(types.size());
  for (const int64_t type : types) {
    if (type < 0 || type > std::numeric_limits<int32_t>::max()) {
      return bad(file, kKey, fmt::format("type {}", type));
    }
    out.types.push_back(static_cast<int32_t>(type));
  }
  return {};
}

Status read_scores(const GgufFile& file, VocabData& out) {
  constexpr std::string_view kKey = "tokenizer.ggml.scores";
  AKV_ASSIGN_OR_RETURN(const auto array, file.find_array(kKey));
  if (!array.has_value()) return {};
  AKV_ASSIGN_OR_RETURN(out.scores, named(file, kKey, array->floats()));
  if (out.scores.size() != out.pieces.size()) {
    return bad(file, kKey,
               fmt::format("{} scores for {} tokens", out.scores.size(), out.pieces.size()));
  }
  return {};
}

Status read_id(const GgufFile& file, std::string_view key, int vocab, int32_t& out) {
  AKV_ASSIGN_OR_RETURN(const auto id, file.find_uint(key));
  if (!id.has_value()) return {};
  // Converters write 2^32 - 1 for "none".
  if (*id == std::numeric_limits<uint32_t>::max()) return {};
  if (*id >= static_cast<uint64_t>(vocab)) {
    return bad(file, key, fmt::format("token {} of a vocabulary of {}", *id, vocab));
  }
  out = static_cast<int32_t>(*id);
  return {};
}

}  // namespace

Result<VocabData> load_vocab(const GgufFile& file, int vocab) {
  VocabData out;
  AKV_ASSIGN_OR_RETURN(out.model, file.get_string("tokenizer.ggml.model"));
  AKV_ASSIGN_OR_RETURN(const auto pre, file.find_string("tokenizer.ggml.pre"));
  out.pre = pre.value_or("");
  AKV_RETURN_IF_ERROR(read_tokens(file, vocab, out));
  AKV_RETURN_IF_ERROR(read_types(file, out));
  AKV_RETURN_IF_ERROR(read_scores(file, out));
  constexpr std::string_view kMerges = "tokenizer.ggml.merges";
  AKV_ASSIGN_OR_RETURN(const auto merges, file.find_array(kMerges));
  if (merges.has_value()) {
    AKV_ASSIGN_OR_RETURN(out.merges, strings(file, kMerges, *merges));
  }
  const std::pair<std::string_view, int32_t*> ids[] = {
      {"tokenizer.ggml.bos_token_id", &out.bos},     {"tokenizer.ggml.eos_token_id", &out.eos},
      {"tokenizer.ggml.eot_token_id", &out.eot},     {"tokenizer.ggml.eom_token_id", &out.eom},
      {"tokenizer.ggml.unknown_token_id", &out.unk}, {"tokenizer.ggml.padding_token_id", &out.pad},
  };
  for (const auto& [key, id] : ids) AKV_RETURN_IF_ERROR(read_id(file, key, vocab, *id));
  AKV_ASSIGN_OR_RETURN(out.add_bos, file.find_bool("tokenizer.ggml.add_bos_token"));
  AKV_ASSIGN_OR_RETURN(out.add_eos, file.find_bool("tokenizer.ggml.add_eos_token"));
  AKV_ASSIGN_OR_RETURN(const auto chat, file.find_string("tokenizer.chat_template"));
  out.chat_template = chat.value_or("");
  return out;
}

}  // namespace akv::model
