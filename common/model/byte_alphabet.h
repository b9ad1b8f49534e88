// GPT-2's byte alphabet: each of the 256 bytes as one printable character, the form in which
// byte-level BPE vocabularies store their pieces.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace akv::model {

class ByteAlphabet {
 public:
  ByteAlphabet();
  // The character that stands for `byte`, as UTF-8.
  const std::string& spelling(uint8_t byte) const { return spelling_[byte]; }
  // Pieces back to bytes. Characters outside the alphabet stand for their own UTF-8 bytes (some
  // vocabularies hold added tokens that were never mapped).
  std::string decode(std::string_view piece) const;

 private:
  static constexpr int kCodePoints = 0x144;  // the alphabet's characters lie below this
  std::array<std::string, 256> spelling_;
  std::array<int16_t, kCodePoints> byte_of_;
};

}  // namespace akv::model
