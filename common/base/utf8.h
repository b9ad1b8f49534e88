// Where UTF-8 is well formed (Unicode 15, table 3-7), for code that must keep every byte.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace akv {

enum class Utf8State {
  kValid,       // `length` bytes are one character
  kIncomplete,  // all `length` bytes left could begin a character, which is cut off
  kInvalid,     // `length` bytes (>= 1) are a maximal subpart that no character begins with
};

struct Utf8Step {
  Utf8State state;
  int length;
};

// Looks at the front of `bytes`. REQUIRES: not empty.
Utf8Step utf8_step(std::string_view bytes);

// Code point of a character that utf8_step called valid.
char32_t utf8_decode(std::string_view character);

void utf8_append(std::string& out, char32_t code_point);

// Code points (each invalid subpart counts as one), for character indices and lengths.
size_t utf8_length(std::string_view bytes);

}  // namespace akv
