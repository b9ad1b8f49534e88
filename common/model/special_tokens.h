// Finds the spellings of control and user-defined tokens in text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace akv::model {

// A trie over the spellings. Immutable after the last insert.
class SpecialTokens {
 public:
  SpecialTokens();
  // REQUIRES: `text` is not empty and was not inserted before.
  void insert(std::string_view text, int32_t id, bool is_control);

  struct Match {
    size_t begin = 0;
    size_t end = 0;  // begin == end: no match
    int32_t id = -1;
  };
  // The leftmost match at or after `from`, of those the longest. Control tokens only if
  // `with_control`. O(bytes * length of the longest spelling).
  Match find(std::string_view text, size_t from, bool with_control) const;
  // Id of exactly `text`, or -1.
  int32_t lookup(std::string_view text) const;

 private:
  struct Node {
    std::vector<std::pair<char, int32_t>> children;
    int32_t id = -1;
    bool is_control = false;
  };
  int32_t child(int32_t node, char c) const;

  std::vector<Node> nodes_;
};

}  // namespace akv::model
