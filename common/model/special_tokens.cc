#include "common/model/special_tokens.h"

namespace akv::model {

SpecialTokens::SpecialTokens() : nodes_(1) {}

int32_t SpecialTokens::child(int32_t node, char c) const {
  for (const auto& [byte, next] : nodes_[node].children) {
    if (byte == c) return next;
  }
  return -1;
}

void SpecialTokens::insert(std::string_view text, int32_t id, bool is_control) {
  int32_t node = 0;
  for (const char c : text) {
    int32_t next = child(node, c);
    if (next < 0) {
      next = static_cast<int32_t>(nodes_.size());
      nodes_[node].children.emplace_back(c, next);
      nodes_.emplace_back();
    }
    node = next;
  }
  nodes_[node].id = id;
  nodes_[node].is_control = is_control;
}

SpecialTokens::Match SpecialTokens::find(std::string_view text, size_t from,
                                         bool with_control) const {
  if (nodes_.size() == 1) return {};
  for (size_t begin = from; begin < text.size(); ++begin) {
    Match longest;
    int32_t node = child(0, text[begin]);
    for (size_t end = begin + 1; node >= 0; ++end) {
      const Node& n = nodes_[node];
      if (n.id >= 0 && (with_control || !n.is_control)) longest = {begin, end, n.id};
      node = end < text.size() ? child(node, text[end]) : -1;
    }
    if (longest.end > longest.begin) return longest;
  }
  return {};
}

int32_t SpecialTokens::lookup(std::string_view text) const {
  int32_t node = 0;
  for (const char c : text) {
    node = child(node, c);
    if (node < 0) return -1;
  }
  return nodes_[node].id;
}

}  // namespace akv::model
