#include "kernels/cpu/attention_phases.h"

#include <cmath>
#include <cstring>
#include <new>

namespace akv::kernels::attention {
namespace {

constexpr int kSpareRows = 16;

// Values per row: the pairs' cosines and sines, a 1 for unrotated dimensions where there are any,
// rounded up to what phase_dots is instantiated for.
int row_stride(const RopeTable& rope) {
  const int values = rope.rope_dim() + (rope.rope_dim() < rope.head_dim() ? 1 : 0);
  const int vectors = (values + 31) / 32;
  return 32 * (vectors > 4 ? 8 : vectors);
}

bool same(const RopeParams& a, const RopeParams& b) {
  return a.head_dim == b.head_dim && a.rope_dim == b.rope_dim && a.base == b.base &&
         a.pairs == b.pairs && a.freq_scale == b.freq_scale && a.freq_factors == b.freq_factors;
}

}  // namespace

void AlignedBuffer::Free::operator()(std::byte* p) const {
  ::operator delete[](p, std::align_val_t{64});
}

bool AlignedBuffer::reserve(int64_t bytes) {
  if (bytes <= bytes_) return false;
  data_.reset();
  bytes_ = 0;
  data_.reset(
      static_cast<std::byte*>(::operator new[](static_cast<size_t>(bytes), std::align_val_t{64})));
  bytes_ = bytes;
  return true;
}

void PhaseTable::reserve(const RopeTable& rope, int64_t positions) {
  if (stride_ == 0 || !same(rope.params(), params_)) {
    memory_.clear();
    blocks_.clear();
    params_ = rope.params();
    half_ = rope.half();
    stride_ = row_stride(rope);
  }
  while (static_cast<int64_t>(blocks_.size()) * kTile < positions) add_block(rope);
}

void PhaseTable::add_block(const RopeTable& rope) {
  AlignedBuffer memory;
  const int64_t values = static_cast<int64_t>(kTile + kSpareRows) * stride_;
  memory.reserve(values * static_cast<int64_t>(sizeof(int16_t)));
  auto* rows = reinterpret_cast<int16_t*>(memory.data());
  std::memset(rows, 0, static_cast<size_t>(memory.bytes()));
  const int64_t first = static_cast<int64_t>(blocks_.size()) * kTile;
  for (int i = 0; i < kTile && first + i < rope.max_positions(); ++i) {
    const float* row = rope.cos_row(first + i);  // cosines, then sines
    int16_t* out = rows + static_cast<int64_t>(i) * stride_;
    for (int j = 0; j < rope.rope_dim(); ++j) {
      out[j] = static_cast<int16_t>(std::lrintf(row[j] * kPhaseOne));
    }
    if (rope.rope_dim() < rope.head_dim()) {
      out[rope.rope_dim()] = static_cast<int16_t>(kPhaseOne);
    }
  }
  memory_.push_back(std::move(memory));
  blocks_.push_back(rows);
}

PhaseView PhaseTable::view() const {
  return {blocks_.data(), stride_, half_, params_.pairs == RopePairs::kInterleaved};
}

int64_t PhaseTable::bytes() const {
  int64_t total = 0;
  for (const AlignedBuffer& block : memory_) total += block.bytes();
  return total;
}

}  // namespace akv::kernels::attention
