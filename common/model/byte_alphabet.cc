#include "common/model/byte_alphabet.h"

#include "common/base/utf8.h"

namespace akv::model {
namespace {

// The bytes that are printable in Latin-1 stand for themselves; soft hyphen (0xAD) is not.
bool is_printable(int b) {
  return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
}

}  // namespace

ByteAlphabet::ByteAlphabet() {
  byte_of_.fill(-1);
  int next = 256;  // the others take the code points from U+0100 on, in order
  for (int b = 0; b < 256; ++b) {
    const int c = is_printable(b) ? b : next++;
    byte_of_[c] = static_cast<int16_t>(b);
    utf8_append(spelling_[b], static_cast<char32_t>(c));
  }
}

std::string ByteAlphabet::decode(std::string_view piece) const {
  std::string out;
  while (!piece.empty()) {
    const Utf8Step step = utf8_step(piece);
    const std::string_view character = piece.substr(0, step.length);
    const char32_t c = step.state == Utf8State::kValid ? utf8_decode(character) : kCodePoints;
    if (c < kCodePoints && byte_of_[c] >= 0) {
      out.push_back(static_cast<char>(byte_of_[c]));
    } else {
      out.append(character);
    }
    piece.remove_prefix(step.length);
  }
  return out;
}

}  // namespace akv::model
