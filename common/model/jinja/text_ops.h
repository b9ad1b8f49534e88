// Python's string operations on Text; each keeps origins. Case changes touch ASCII letters only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "common/model/jinja/text.h"

namespace akv::model::jinja {

// Byte offsets of characters (code points; a broken byte counts as one).
class CharIndex {
 public:
  explicit CharIndex(std::string_view bytes);
  size_t count() const { return offsets_.empty() ? ascii_count_ : offsets_.size() - 1; }
  // REQUIRES: i <= count().
  size_t offset(size_t i) const { return offsets_.empty() ? i : offsets_[i]; }

 private:
  size_t ascii_count_ = 0;
  std::vector<size_t> offsets_;  // empty if all is ASCII
};

bool is_python_space(char32_t c);

enum class Sides { kLeft = 1, kRight = 2, kBoth = 3 };
// Without `chars`: whitespace; else any of its characters.
Text strip(const Text& text, Sides sides, const std::string_view* chars);
// Python's str.split: by runs of whitespace without a separator. max_splits < 0: all.
std::vector<Text> split(const Text& text, const std::string_view* separator, int64_t max_splits);
std::vector<Text> split_lines(const Text& text);
// Replaces at most `count` occurrences (all if < 0) of `old`, which may be empty as in Python.
Text replace(const Text& text, std::string_view old, const Text& fresh, int64_t count);

Text upper(const Text& text);
Text lower(const Text& text);
Text capitalize(const Text& text);
Text title(const Text& text);        // Python's: a word begins after anything but a letter
Text title_words(const Text& text);  // the filter's: a word begins after space or - ( { [ <

}  // namespace akv::model::jinja
