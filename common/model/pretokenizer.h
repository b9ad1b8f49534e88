// Cuts text into the pieces inside which BPE merges (words, numbers, runs of spaces, ...).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace akv::model {

// Immutable; split() may be called from any thread at once.
class Pretokenizer {
 public:
  // `pre` is the GGUF's tokenizer.ggml.pre. Families: gpt-2, smollm, llama-bpe, qwen2 and their
  // aliases. kUnsupported, naming what there is, for any other: a guess would tokenise almost
  // right.
  static Result<Pretokenizer> create(std::string_view pre);

  Pretokenizer(Pretokenizer&&) noexcept;
  Pretokenizer& operator=(Pretokenizer&&) noexcept;
  ~Pretokenizer();

  // Appends the end offset of each piece; the pieces tile `text`. Bytes that are not UTF-8 are kept
  // and count as symbols (neither letter, number nor space).
  void split(std::string_view text, std::vector<size_t>& ends) const;

  // The family takes a whole piece that is in the vocabulary without looking at merges.
  bool ignore_merges() const;
  // What the family does where the file does not say add_bos_token.
  bool adds_bos_by_default() const;
  // Canonical name of the family.
  std::string_view family() const;

 private:
  struct Impl;
  explicit Pretokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace akv::model
