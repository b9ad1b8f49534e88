#include "common/model/jinja/text.h"

#include <algorithm>

namespace akv::model::jinja {

Text::Text(std::string_view bytes, bool is_literal) : bytes_(bytes) {
  if (!bytes.empty()) runs_.push_back({bytes.size(), is_literal});
}

bool Text::all_literal() const {
  return std::all_of(runs_.begin(), runs_.end(), [](const Run& r) { return r.literal; });
}

void Text::append(std::string_view bytes, bool is_literal) {
  if (bytes.empty()) return;
  bytes_ += bytes;
  if (!runs_.empty() && runs_.back().literal == is_literal) {
    runs_.back().end = bytes_.size();
  } else {
    runs_.push_back({bytes_.size(), is_literal});
  }
}

void Text::append(const Text& other) {
  size_t begin = 0;
  for (const Run run : other.runs_) {
    append(std::string_view(other.bytes_).substr(begin, run.end - begin), run.literal);
    begin = run.end;
  }
}

Text Text::slice(size_t begin, size_t end) const {
  Text out;
  // The first run that ends behind `begin`.
  auto run = std::upper_bound(runs_.begin(), runs_.end(), begin,
                              [](size_t at, const Run& r) { return at < r.end; });
  for (; begin < end; ++run) {
    const size_t stop = std::min(run->end, end);
    out.append(std::string_view(bytes_).substr(begin, stop - begin), run->literal);
    begin = stop;
  }
  return out;
}

}  // namespace akv::model::jinja
