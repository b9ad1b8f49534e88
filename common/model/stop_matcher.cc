#include "common/model/stop_matcher.h"

#include <algorithm>

namespace akv::model {

StopMatcher::StopMatcher(const std::vector<std::string>& stops, bool include_stop)
    : include_stop_(include_stop) {
  nodes_.emplace_back();
  std::fill(std::begin(nodes_[0].next), std::end(nodes_[0].next), -1);
  for (size_t i = 0; i < stops.size(); ++i) {
    lengths_.push_back(static_cast<int32_t>(stops[i].size()));
    if (!stops[i].empty()) insert(stops[i], static_cast<int>(i));
  }
  link();
}

void StopMatcher::insert(std::string_view stop, int index) {
  int32_t node = 0;
  for (const char c : stop) {
    const auto byte = static_cast<uint8_t>(c);
    if (nodes_[node].next[byte] < 0) {
      const auto fresh = static_cast<int32_t>(nodes_.size());
      const int32_t depth = nodes_[node].depth + 1;
      nodes_[node].next[byte] = fresh;
      nodes_.emplace_back();
      std::fill(std::begin(nodes_[fresh].next), std::end(nodes_[fresh].next), -1);
      nodes_[fresh].depth = depth;
    }
    node = nodes_[node].next[byte];
  }
  if (nodes_[node].stop < 0) nodes_[node].stop = index;  // of equal ones the first
}

// Completes the transitions breadth first, so that a node's fail link is ready before its children.
void StopMatcher::link() {
  std::vector<int32_t> queue = {0};
  for (size_t head = 0; head < queue.size(); ++head) {
    const int32_t node = queue[head];
    const int32_t fail = nodes_[node].fail;
    if (nodes_[node].stop < 0) nodes_[node].stop = nodes_[fail].stop;
    for (int byte = 0; byte < 256; ++byte) {
      int32_t& next = nodes_[node].next[byte];
      const int32_t fallback = node == 0 ? 0 : nodes_[fail].next[byte];
      if (next < 0) {
        next = fallback;
      } else {
        nodes_[next].fail = fallback;
        queue.push_back(next);
      }
    }
  }
}

StopMatcher::Step StopMatcher::push(std::string_view text, bool may_stop) {
  Step step;
  if (stopped_) return step;
  held_ += text;
  if (!may_stop) {
    step.text = finish();
    return step;
  }
  const size_t scanned = held_.size() - text.size();
  for (size_t i = 0; i < text.size(); ++i) {
    state_ = nodes_[state_].next[static_cast<uint8_t>(text[i])];
    const int32_t stop = nodes_[state_].stop;
    if (stop < 0) continue;
    const size_t end = scanned + i + 1;
    step.text = held_.substr(0, include_stop_ ? end : end - lengths_[stop]);
    step.stopped = stopped_ = true;
    step.stop_index = stop;
    held_.clear();
    return step;
  }
  const size_t safe = held_.size() - nodes_[state_].depth;
  step.text = held_.substr(0, safe);
  held_.erase(0, safe);
  return step;
}

std::string StopMatcher::finish() {
  state_ = 0;
  std::string rest = std::move(held_);
  held_.clear();
  return rest;
}

}  // namespace akv::model
