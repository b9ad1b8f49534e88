#include "common/base/utf8.h"

#include <cstdint>

namespace akv {
namespace {

struct Lead {
  int length;         // of the whole character, 0 for a byte that cannot lead
  uint8_t low, high;  // range of the second byte
};

Lead lead_of(uint8_t b) {
  if (b < 0x80) return {1, 0, 0};
  if (b < 0xC2) return {0, 0, 0};
  if (b < 0xE0) return {2, 0x80, 0xBF};
  if (b == 0xE0) return {3, 0xA0, 0xBF};
  if (b == 0xED) return {3, 0x80, 0x9F};  // no surrogates
  if (b < 0xF0) return {3, 0x80, 0xBF};
  if (b == 0xF0) return {4, 0x90, 0xBF};
  if (b < 0xF4) return {4, 0x80, 0xBF};
  if (b == 0xF4) return {4, 0x80, 0x8F};  // nothing above U+10FFFF
  return {0, 0, 0};
}

}  // namespace

Utf8Step utf8_step(std::string_view bytes) {
  const Lead lead = lead_of(static_cast<uint8_t>(bytes[0]));
  if (lead.length == 0) return {Utf8State::kInvalid, 1};
  uint8_t low = lead.low, high = lead.high;
  for (int i = 1; i < lead.length; ++i) {
    if (static_cast<size_t>(i) == bytes.size()) return {Utf8State::kIncomplete, i};
    const auto b = static_cast<uint8_t>(bytes[i]);
    if (b < low || b > high) return {Utf8State::kInvalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8State::kValid, lead.length};
}

char32_t utf8_decode(std::string_view c) {
  const auto at = [&](size_t i) { return static_cast<char32_t>(static_cast<uint8_t>(c[i])); };
  switch (c.size()) {
    case 1:
      return at(0);
    case 2:
      return (at(0) & 0x1F) << 6 | (at(1) & 0x3F);
    case 3:
      return (at(0) & 0x0F) << 12 | (at(1) & 0x3F) << 6 | (at(2) & 0x3F);
    default:
      return (at(0) & 0x07) << 18 | (at(1) & 0x3F) << 12 | (at(2) & 0x3F) << 6 | (at(3) & 0x3F);
  }
}

void utf8_append(std::string& out, char32_t c) {
  const auto put = [&](char32_t b) { out.push_back(static_cast<char>(b)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

size_t utf8_length(std::string_view bytes) {
  size_t n = 0;
  for (; !bytes.empty(); ++n) bytes.remove_prefix(utf8_step(bytes).length);
  return n;
}

}  // namespace akv
