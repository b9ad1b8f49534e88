#include "common/model/bpe.h"

#include <algorithm>
#include <utility>

namespace akv::model {
namespace {

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// Heap order: std::push_heap keeps the greatest on top, so "less" means merges later.
bool merges_later(const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
}

}  // namespace

MergeTable::MergeTable(size_t merges) : shift_(60) {
  while ((size_t{1} << (64 - shift_)) < merges * 2) --shift_;
  slots_.resize(size_t{1} << (64 - shift_));
}

size_t MergeTable::slot_of(uint64_t key) const {
  // Fibonacci hashing: the high bits of the product depend on all bits of the key.
  size_t i = (key * 0x9E3779B97F4A7C15u) >> shift_;
  while (slots_[i].key != key && slots_[i].key != kEmpty) i = (i + 1) & (slots_.size() - 1);
  return i;
}

void MergeTable::insert(int32_t left, int32_t right, Merge merge) {
  Slot& slot = slots_[slot_of(pair_key(left, right))];
  if (slot.key == kEmpty) slot = {pair_key(left, right), merge};
}

MergeTable::Merge MergeTable::find(int32_t left, int32_t right) const {
  return slots_[slot_of(pair_key(left, right))].merge;
}

Bpe::Bpe(std::array<int32_t, 256> byte_ids, MergeTable merges)
    : byte_ids_(byte_ids), merges_(std::move(merges)) {}

void Bpe::consider(BpeScratch& scratch, int32_t left, int32_t right) const {
  if (left < 0 || right < 0) return;
  const int32_t left_id = scratch.symbols[left].id;
  const int32_t right_id = scratch.symbols[right].id;
  if (left_id < 0 || right_id < 0) return;
  const MergeTable::Merge merge = merges_.find(left_id, right_id);
  if (merge.rank < 0) return;
  scratch.heap.push_back({merge.rank, left, left_id, right_id, merge.id});
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), merges_later);
}

void Bpe::encode(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& out) const {
  auto& symbols = scratch.symbols;
  const auto n = static_cast<int32_t>(piece.size());
  symbols.resize(piece.size());
  scratch.heap.clear();
  for (int32_t i = 0; i < n; ++i) {
    symbols[i] = {byte_ids_[static_cast<uint8_t>(piece[i])], i - 1, i + 1 < n ? i + 1 : -1};
  }
  for (int32_t i = 0; i + 1 < n; ++i) consider(scratch, i, i + 1);
  while (!scratch.heap.empty()) {
    std::pop_heap(scratch.heap.begin(), scratch.heap.end(), merges_later);
    const BpeScratch::Candidate best = scratch.heap.back();
    scratch.heap.pop_back();
    auto& left = symbols[best.left];
    // Stale: one of the two has since become part of another merge. Ids only ever grow longer
    // at one index, so equal ids mean that nothing happened.
    if (left.id != best.left_id || left.next < 0) continue;
    auto& right = symbols[left.next];
    if (right.id != best.right_id) continue;
    left.id = best.merged_id;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) symbols[left.next].prev = best.left;
    consider(scratch, left.prev, best.left);
    consider(scratch, best.left, left.next);
  }
  for (int32_t i = n > 0 ? 0 : -1; i >= 0; i = symbols[i].next) {
    if (symbols[i].id >= 0) out.push_back(symbols[i].id);
  }
}

}  // namespace akv::model
