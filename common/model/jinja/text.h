// Text that knows where it came from: the template's author or a request.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace akv::model::jinja {

// A byte string cut into runs of one origin. Literal runs come from the template (or from the
// vocabulary, as bos_token) and may spell control tokens; all other runs never do. Operations keep
// origins byte for byte; where that is impossible the result is not literal, the safe side.
class Text {
 public:
  Text() = default;
  static Text literal(std::string_view bytes) { return Text(bytes, true); }
  static Text foreign(std::string_view bytes) { return Text(bytes, false); }
  Text(std::string_view bytes, bool is_literal);

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  // True if no byte comes from a request (also for the empty text).
  bool all_literal() const;

  void append(const Text& other);
  void append(std::string_view bytes, bool is_literal);
  // REQUIRES: begin <= end <= size().
  Text slice(size_t begin, size_t end) const;

  struct Run {
    size_t end;  // one past its last byte
    bool literal;
  };
  // In order; neighbours differ in origin; none is empty.
  const std::vector<Run>& runs() const { return runs_; }

  // Origins do not count in comparisons.
  friend bool operator==(const Text& a, const Text& b) { return a.bytes_ == b.bytes_; }

 private:
  std::string bytes_;
  std::vector<Run> runs_;
};

}  // namespace akv::model::jinja
