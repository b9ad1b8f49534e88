// Byte-level BPE: text to token ids and back, byte for byte.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/result.h"
#include "common/model/vocab_data.h"

namespace akv::model {

// Immutable after create(); every const method may be called from any thread at once.
// A moved-from Tokenizer may only be destroyed or assigned to.
class Tokenizer {
 public:
  // Checks the vocabulary and compiles the pre-tokenizer. Errors: kUnsupported for a tokenizer
  // model or pre-tokenizer that is not implemented (it is never guessed), kInvalidArgument for a
  // vocabulary that contradicts itself (duplicate pieces, merges of unknown pieces, unknown types,
  // ids out of range). `param` names the GGUF key. Text is not normalised (no NFC), as in
  // llama.cpp.
  static Result<Tokenizer> create(const VocabData& vocab);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // `text` may be any bytes; decode(encode(x, false, false)) == x, also for invalid UTF-8, if the
  // vocabulary has all 256 byte pieces (covers_all_bytes()); a byte that it lacks yields no token,
  // as in llama.cpp and Hugging Face, since its unknown token may be a control token.
  // add_special: puts BOS in front and EOS behind where the model wants them.
  // parse_special: text that spells a control token becomes that token. User-defined tokens are
  // recognised either way. Time is O(n log n) in the bytes, whatever the bytes are.
  // REQUIRES: text.size() < 2^31.
  std::vector<int32_t> encode(std::string_view text, bool add_special, bool parse_special) const;

  // The exact bytes that a token stands for: part of a UTF-8 character at times, the literal text
  // for a control token, empty for an id out of range. Valid as long as the Tokenizer.
  std::string_view piece(int32_t token) const;

  // The pieces of `tokens` in a row. skip_special leaves control tokens out.
  std::string decode(std::span<const int32_t> tokens, bool skip_special) const;

  // A number of tokens that the text has at least: tells what is far too long in a hundredth of the
  // time of encode().
  int64_t fewest_tokens(std::string_view text) const;

  int32_t vocab_size() const;
  bool is_control(int32_t token) const;
  // True for tokens that end a generation: EOS, end of turn, end of message and the usual names of
  // these among the control tokens.
  bool is_end(int32_t token) const;
  const std::vector<int32_t>& end_tokens() const;  // ascending

  // -1 where the model has none.
  int32_t bos() const;
  int32_t eos() const;
  int32_t eot() const;
  bool add_bos() const;
  bool add_eos() const;
  bool covers_all_bytes() const;

  // Id of the control or user-defined token spelled `text`, or -1.
  int32_t find_special(std::string_view text) const;

  // SHA-256 over everything that decides ids: two daemons with equal hashes tokenise alike.
  const Sha256Digest& hash() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace akv::model
