// Tokens to text that may be shown at once: whole UTF-8 characters only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/model/tokenizer.h"

namespace akv::model {

// Turns a stream of bytes into valid UTF-8: holds back an incomplete character until the bytes that
// complete it come, and replaces what can no longer become one by U+FFFD (one for each maximal
// subpart, as browsers do). The concatenated output does not depend on how the bytes were cut.
// Not thread-safe.
class Utf8Assembler {
 public:
  // Appends to `out` all characters that are complete after `bytes`.
  void push(std::string_view bytes, std::string& out);
  // The stream ends: an incomplete character becomes one U+FFFD. May be pushed to again afterwards.
  void finish(std::string& out);
  // True while an incomplete character is held back.
  bool pending() const { return size_ > 0; }

 private:
  char held_[4] = {};
  int size_ = 0;
};

// One generation's detokeniser. REQUIRES: the Tokenizer outlives it. Not thread-safe.
class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special);
  // The text that this token completes; empty while a character is incomplete.
  std::string push(int32_t token);
  // What remains at the end of the generation: U+FFFD for an incomplete character, or nothing.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  Utf8Assembler assembler_;
};

}  // namespace akv::model
