// Byte pair encoding of one piece of text.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace akv::model {

// (left id, right id) -> (rank, merged id), by open addressing. Immutable after the last insert.
class MergeTable {
 public:
  explicit MergeTable(size_t merges);
  struct Merge {
    int32_t rank = -1;  // lower merges first; -1: the two do not merge
    int32_t id = -1;
  };
  // The first insert of a pair wins. REQUIRES: at most `merges` inserts.
  void insert(int32_t left, int32_t right, Merge merge);
  Merge find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  size_t slot_of(uint64_t key) const;

  std::vector<Slot> slots_;  // a power of two, at most half full
  int shift_;
};

// Reusable memory of Bpe::encode. One per thread.
struct BpeScratch {
  struct Symbol {
    int32_t id;
    int32_t prev, next;  // indices, -1 at the ends
  };
  struct Candidate {
    int32_t rank;
    int32_t left;  // index of the left symbol
    int32_t left_id, right_id, merged_id;
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

class Bpe {
 public:
  // byte_ids: the token of each single byte, -1 where the vocabulary has none.
  Bpe(std::array<int32_t, 256> byte_ids, MergeTable merges);
  // Appends the ids of `piece`: repeatedly merges the neighbours of lowest rank, leftmost first.
  // O(n log n). A byte that the vocabulary lacks yields no token and never merges.
  // REQUIRES: piece.size() < 2^31.
  void encode(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& out) const;

 private:
  void consider(BpeScratch& scratch, int32_t left, int32_t right) const;

  std::array<int32_t, 256> byte_ids_;
  MergeTable merges_;
};

}  // namespace akv::model
