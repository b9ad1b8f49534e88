#include "common/model/tokenizer.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <unordered_map>
#include <utility>

#include "common/base/check.h"
#include "common/model/bpe.h"
#include "common/model/byte_alphabet.h"
#include "common/model/pretokenizer.h"
#include "common/model/special_tokens.h"

namespace akv::model {
namespace {

// Control tokens that end a turn in the models that we serve, whatever else the file names.
constexpr std::string_view kTurnEnds[] = {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>",
                                          "<|end_of_turn|>"};
constexpr std::string_view kOtherEnds[] = {"<|endoftext|>", "<|end_of_text|>", "<|eom_id|>"};

// Remembers, within one call, where the ids of a piece already stand in the output. Direct-mapped:
// bounded, and a collision only costs a second merge.
class PieceCache {
 public:
  explicit PieceCache(size_t text_bytes)
      : slots_(std::bit_ceil(std::clamp<size_t>(text_bytes / 8, 1, kMaxSlots))) {}
  struct Slot {
    std::string_view piece;  // of the caller's text
    size_t begin = 0;
    size_t count = 0;
  };
  Slot& at(std::string_view piece) {
    return slots_[std::hash<std::string_view>{}(piece) & (slots_.size() - 1)];
  }

 private:
  static constexpr size_t kMaxSlots = 4096;
  std::vector<Slot> slots_;
};
constexpr size_t kMaxCachedBytes = 64;

struct EncodeScratch {
  explicit EncodeScratch(size_t text_bytes) : cache(text_bytes) {}
  PieceCache cache;
  BpeScratch bpe;
  std::vector<size_t> ends;
};

void append_copy(std::vector<int32_t>& ids, size_t begin, size_t count) {
  for (size_t i = begin; i < begin + count; ++i) {
    const int32_t id = ids[i];
    ids.push_back(id);
  }
}

using PieceIds = std::unordered_map<std::string_view, int32_t>;

Error bad_vocab(std::string message, std::string param) {
  return make_error(Code::kInvalidArgument, std::move(message), std::move(param));
}

Status check_special_ids(const VocabData& vocab) {
  const std::pair<const char*, int32_t> named[] = {{"tokenizer.ggml.bos_token_id", vocab.bos},
                                                   {"tokenizer.ggml.eos_token_id", vocab.eos},
                                                   {"tokenizer.ggml.eot_token_id", vocab.eot},
                                                   {"tokenizer.ggml.eom_token_id", vocab.eom},
                                                   {"tokenizer.ggml.unknown_token_id", vocab.unk},
                                                   {"tokenizer.ggml.padding_token_id", vocab.pad}};
  for (const auto& [key, id] : named) {
    if (id < -1 || id >= static_cast<int64_t>(vocab.pieces.size())) {
      return bad_vocab("id " + std::to_string(id) + " is outside the vocabulary of " +
                           std::to_string(vocab.pieces.size()),
                       key);
    }
  }
  return {};
}

Status check_sizes(const VocabData& vocab) {
  constexpr size_t kMaxVocab = 1 << 24;
  if (vocab.model != "gpt2") {
    return make_error(
        Code::kUnsupported,
        "tokenizer model \"" + vocab.model + "\" is not implemented; \"gpt2\" (byte-level BPE) is",
        "tokenizer.ggml.model");
  }
  if (vocab.pieces.empty() || vocab.pieces.size() > kMaxVocab) {
    return bad_vocab("a vocabulary of " + std::to_string(vocab.pieces.size()) + " pieces",
                     "tokenizer.ggml.tokens");
  }
  if (!vocab.types.empty() && vocab.types.size() != vocab.pieces.size()) {
    return bad_vocab(std::to_string(vocab.types.size()) + " types for " +
                         std::to_string(vocab.pieces.size()) + " pieces",
                     "tokenizer.ggml.token_type");
  }
  return check_special_ids(vocab);
}

Result<PieceIds> index_pieces(const VocabData& vocab) {
  PieceIds ids;
  ids.reserve(vocab.pieces.size());
  for (size_t i = 0; i < vocab.pieces.size(); ++i) {
    if (vocab.pieces[i].empty()) continue;  // padding of the embedding table: never produced
    const auto [at, fresh] = ids.emplace(vocab.pieces[i], static_cast<int32_t>(i));
    if (!fresh) {
      return bad_vocab("pieces " + std::to_string(at->second) + " and " + std::to_string(i) +
                           " are both \"" + vocab.pieces[i] + "\"",
                       "tokenizer.ggml.tokens");
    }
  }
  return ids;
}

Result<MergeTable> index_merges(const VocabData& vocab, const PieceIds& ids) {
  const auto bad = [&](size_t rank, const char* what) {
    return bad_vocab("merge " + std::to_string(rank) + " (\"" + vocab.merges[rank] + "\") " + what,
                     "tokenizer.ggml.merges");
  };
  MergeTable table(vocab.merges.size());
  for (size_t rank = 0; rank < vocab.merges.size(); ++rank) {
    const std::string& merge = vocab.merges[rank];
    const size_t space = merge.find(' ', 1);
    if (space == std::string::npos || space + 1 == merge.size()) return bad(rank, "has one side");
    const auto left = ids.find(std::string_view(merge).substr(0, space));
    const auto right = ids.find(std::string_view(merge).substr(space + 1));
    if (left == ids.end() || right == ids.end()) return bad(rank, "has an unknown side");
    const auto merged = ids.find(merge.substr(0, space) + merge.substr(space + 1));
    if (merged == ids.end()) return bad(rank, "makes an unknown piece");
    table.insert(left->second, right->second, {static_cast<int32_t>(rank), merged->second});
  }
  return table;
}

void hash_text(Sha256& sha, std::string_view text) {
  const auto size = static_cast<uint64_t>(text.size());
  uint8_t length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<uint8_t>(size >> (8 * i));
  sha.update(length, sizeof(length));
  sha.update(text.data(), text.size());
}

}  // namespace

struct Tokenizer::Impl {
  Impl(Pretokenizer p, Bpe b) : pretokenizer(std::move(p)), bpe(std::move(b)) {}

  Pretokenizer pretokenizer;
  Bpe bpe;
  SpecialTokens specials;
  std::vector<std::string> pieces;  // as bytes
  std::vector<TokenType> types;
  std::unordered_map<std::string_view, int32_t> whole_pieces;  // normal ones, by their bytes
  std::vector<int32_t> ends;
  int32_t bos = -1, eos = -1, eot = -1;
  bool add_bos = false, add_eos = false;
  std::array<bool, 256> covered{};  // bytes that have a piece
  bool covers_all_bytes = false;
  size_t longest_piece = 1;  // bytes
  Sha256Digest hash{};

  Status fill_pieces(const VocabData& vocab, const ByteAlphabet& alphabet);
  void fill_special_ids(const VocabData& vocab);
  void fill_hash(const VocabData& vocab);
  void encode_text(std::string_view text, EncodeScratch& scratch, std::vector<int32_t>& out) const;
  void encode_piece(std::string_view piece, EncodeScratch& scratch,
                    std::vector<int32_t>& out) const;
};

Status Tokenizer::Impl::fill_pieces(const VocabData& vocab, const ByteAlphabet& alphabet) {
  pieces.reserve(vocab.pieces.size());
  for (size_t i = 0; i < vocab.pieces.size(); ++i) {
    const int32_t raw_type = vocab.types.empty() ? 1 : vocab.types[i];
    if (raw_type < 1 || raw_type > 6) {
      return bad_vocab("piece " + std::to_string(i) + " has type " + std::to_string(raw_type),
                       "tokenizer.ggml.token_type");
    }
    const auto type = static_cast<TokenType>(raw_type);
    const bool is_special = type == TokenType::kControl || type == TokenType::kUserDefined;
    types.push_back(type);
    pieces.push_back(is_special || type == TokenType::kUnknown ? vocab.pieces[i]
                                                               : alphabet.decode(vocab.pieces[i]));
    longest_piece = std::max(longest_piece, pieces[i].size());
    if (is_special && !pieces[i].empty()) {
      specials.insert(pieces[i], static_cast<int32_t>(i), type == TokenType::kControl);
    }
  }
  if (!pretokenizer.ignore_merges()) return {};
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (types[i] == TokenType::kNormal) whole_pieces.emplace(pieces[i], static_cast<int32_t>(i));
  }
  return {};
}

void Tokenizer::Impl::fill_special_ids(const VocabData& vocab) {
  bos = vocab.bos;
  eos = vocab.eos;
  eot = vocab.eot;
  add_bos = vocab.add_bos.value_or(pretokenizer.adds_bos_by_default()) && bos >= 0;
  add_eos = vocab.add_eos.value_or(false) && eos >= 0;
  const auto add_end = [&](int32_t id) {
    if (id >= 0 && std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
  };
  add_end(vocab.eos);
  add_end(vocab.eot);
  add_end(vocab.eom);
  for (const std::string_view name : kTurnEnds) {
    const int32_t id = specials.lookup(name);
    if (eot < 0) eot = id;
    add_end(id);
  }
  for (const std::string_view name : kOtherEnds) add_end(specials.lookup(name));
  std::sort(ends.begin(), ends.end());
}

void Tokenizer::Impl::fill_hash(const VocabData& vocab) {
  Sha256 sha;
  hash_text(sha, "akv tokenizer 1");
  hash_text(sha, pretokenizer.family());
  hash_text(sha, (add_bos ? "bos " + std::to_string(bos) : "no bos") +
                     (add_eos ? " eos " + std::to_string(eos) : " no eos"));
  hash_text(sha, std::to_string(pieces.size()));
  for (size_t i = 0; i < pieces.size(); ++i) {
    hash_text(sha, pieces[i]);
    const auto type = static_cast<uint8_t>(types[i]);
    sha.update(&type, 1);
  }
  for (const std::string& merge : vocab.merges) hash_text(sha, merge);
  hash = sha.finish();
}

Result<Tokenizer> Tokenizer::create(const VocabData& vocab) {
  AKV_RETURN_IF_ERROR(check_sizes(vocab));
  AKV_ASSIGN_OR_RETURN(Pretokenizer pretokenizer, Pretokenizer::create(vocab.pre));
  AKV_ASSIGN_OR_RETURN(const PieceIds ids, index_pieces(vocab));
  AKV_ASSIGN_OR_RETURN(MergeTable merges, index_merges(vocab, ids));

  const ByteAlphabet alphabet;
  std::array<int32_t, 256> byte_ids;
  for (int b = 0; b < 256; ++b) {
    const auto at = ids.find(alphabet.spelling(static_cast<uint8_t>(b)));
    byte_ids[b] = at == ids.end() ? -1 : at->second;
  }
  auto impl = std::make_unique<Impl>(std::move(pretokenizer), Bpe(byte_ids, std::move(merges)));
  std::transform(byte_ids.begin(), byte_ids.end(), impl->covered.begin(),
                 [](int32_t id) { return id >= 0; });
  impl->covers_all_bytes = *std::min_element(byte_ids.begin(), byte_ids.end()) >= 0;
  AKV_RETURN_IF_ERROR(impl->fill_pieces(vocab, alphabet));
  impl->fill_special_ids(vocab);
  impl->fill_hash(vocab);
  return Tokenizer(std::move(impl));
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

void Tokenizer::Impl::encode_piece(std::string_view piece, EncodeScratch& scratch,
                                   std::vector<int32_t>& out) const {
  if (!whole_pieces.empty()) {
    const auto whole = whole_pieces.find(piece);
    if (whole != whole_pieces.end()) return out.push_back(whole->second);
  }
  if (piece.size() < 2 || piece.size() > kMaxCachedBytes) {
    return bpe.encode(piece, scratch.bpe, out);
  }
  PieceCache::Slot& slot = scratch.cache.at(piece);
  if (slot.piece == piece) return append_copy(out, slot.begin, slot.count);
  const size_t begin = out.size();
  bpe.encode(piece, scratch.bpe, out);
  slot = {piece, begin, out.size() - begin};
}

void Tokenizer::Impl::encode_text(std::string_view text, EncodeScratch& scratch,
                                  std::vector<int32_t>& out) const {
  scratch.ends.clear();
  pretokenizer.split(text, scratch.ends);
  size_t begin = 0;
  for (const size_t end : scratch.ends) {
    encode_piece(text.substr(begin, end - begin), scratch, out);
    begin = end;
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special,
                                       bool parse_special) const {
  AKV_CHECK(text.size() < size_t{1} << 31);
  std::vector<int32_t> out;
  out.reserve(text.size() / 4 + 2);
  EncodeScratch scratch(text.size());
  if (add_special && impl_->add_bos) out.push_back(impl_->bos);
  for (size_t at = 0; at < text.size();) {
    const auto match = impl_->specials.find(text, at, parse_special);
    const size_t text_end = match.id >= 0 ? match.begin : text.size();
    impl_->encode_text(text.substr(at, text_end - at), scratch, out);
    if (match.id >= 0) out.push_back(match.id);
    at = match.id >= 0 ? match.end : text.size();
  }
  if (add_special && impl_->add_eos) out.push_back(impl_->eos);
  return out;
}

int64_t Tokenizer::fewest_tokens(std::string_view text) const {
  const auto bytes = static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [&](char c) { return impl_->covered[static_cast<uint8_t>(c)]; }));
  const size_t longest = impl_->longest_piece;
  return static_cast<int64_t>((bytes + longest - 1) / longest);
}

std::string_view Tokenizer::piece(int32_t token) const {
  if (token < 0 || token >= vocab_size()) return {};
  return impl_->pieces[token];
}

std::string Tokenizer::decode(std::span<const int32_t> tokens, bool skip_special) const {
  std::string out;
  for (const int32_t token : tokens) {
    if (!skip_special || !is_control(token)) out += piece(token);
  }
  return out;
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(impl_->pieces.size()); }

bool Tokenizer::is_control(int32_t token) const {
  return token >= 0 && token < vocab_size() && impl_->types[token] == TokenType::kControl;
}

bool Tokenizer::is_end(int32_t token) const {
  return std::binary_search(impl_->ends.begin(), impl_->ends.end(), token);
}

const std::vector<int32_t>& Tokenizer::end_tokens() const { return impl_->ends; }
int32_t Tokenizer::bos() const { return impl_->bos; }
int32_t Tokenizer::eos() const { return impl_->eos; }
int32_t Tokenizer::eot() const { return impl_->eot; }
bool Tokenizer::add_bos() const { return impl_->add_bos; }
bool Tokenizer::add_eos() const { return impl_->add_eos; }
bool Tokenizer::covers_all_bytes() const { return impl_->covers_all_bytes; }
int32_t Tokenizer::find_special(std::string_view text) const {
  return impl_->specials.lookup(text);
}
const Sha256Digest& Tokenizer::hash() const { return impl_->hash; }

}  // namespace akv::model
