// Stop strings over a stream of text, wherever token borders fall.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace akv::model {

// Finds the first occurrence of any stop string in streamed text and holds back what could still
// become one (the longest suffix that is a proper prefix of a stop string). The match is the one
// that ends first, and of those ending together the longest; so the result does not depend on how
// the text was cut. Linear in the text whatever the number of stop strings. Not thread-safe.
class StopMatcher {
 public:
  // Empty stop strings are ignored. include_stop: the stop string itself is emitted, too.
  // Memory is about 1 KiB for each byte of all stop strings; callers bound their sizes.
  StopMatcher(const std::vector<std::string>& stops, bool include_stop);

  struct Step {
    std::string text;  // safe to send
    bool stopped = false;
    int stop_index = -1;  // which stop string matched
  };
  // may_stop = false (min_tokens not reached): all text passes and what was held is released; a
  // stop string that began in it is not found later.
  // After a match nothing more comes out, whatever is pushed.
  Step push(std::string_view text, bool may_stop = true);
  // The stream ended otherwise: returns what was held back.
  std::string finish();

 private:
  struct Node {
    int32_t next[256];
    int32_t fail = 0;
    int32_t depth = 0;
    int32_t stop = -1;  // index of the longest stop string that ends here, or -1
  };
  void insert(std::string_view stop, int index);
  void link();

  std::vector<Node> nodes_;  // Aho-Corasick automaton, node 0 is the root
  std::vector<int32_t> lengths_;
  bool include_stop_;
  int32_t state_ = 0;
  bool stopped_ = false;
  std::string held_;
};

}  // namespace akv::model
