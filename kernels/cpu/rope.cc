#include "kernels/rope.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <new>

#include "kernels/cpu/table.h"

namespace akv::kernels {
namespace {

// Vectors of one task: enough work to outweigh taking a ticket.
constexpr int64_t kVectorsPerTask = 512;

template <class PositionOf>
void apply(const RopeTable& table, float* x, int64_t rows, int heads, const Parallel& parallel,
           PositionOf position_of) {
  const int64_t rows_per_task = std::max<int64_t>(1, kVectorsPerTask / heads);
  const int dim = table.head_dim();
  parallel.run(static_cast<int>((rows + rows_per_task - 1) / rows_per_task), [&](int task, int) {
    const int64_t end = std::min(rows, (task + 1) * rows_per_task);
    for (int64_t row = task * rows_per_task; row < end; ++row) {
      for (int head = 0; head < heads; ++head) {
        float* vector = x + (row * heads + head) * dim;
        rope_rotate(table, vector, position_of(row), vector);
      }
    }
  });
}

// sign +1 rotates by the angles, -1 back.
void rotate(const RopeTable& table, const float* x, int64_t position, float sign, float* out) {
  const float* cos = table.cos_row(position);
  const int half = table.half();
  const auto op = table.pairs() == RopePairs::kHalf ? ops().rotate_half : ops().rotate_interleaved;
  op(x, cos, cos + half, sign, half, out);
  if (out != x) {
    for (int j = 2 * half; j < table.head_dim(); ++j) out[j] = x[j];
  }
}

}  // namespace

RopeTable::RopeTable(const RopeParams& params, int64_t max_positions)
    : params_(params),
      half_((params.rope_dim > 0 ? params.rope_dim : params.head_dim) / 2),
      max_positions_(max_positions) {
  frequency_.resize(static_cast<size_t>(half_));
  for (int j = 0; j < half_; ++j) {
    double frequency = params_.freq_scale * std::pow(params_.base, -static_cast<double>(j) / half_);
    if (!params_.freq_factors.empty()) {
      frequency /= static_cast<double>(params_.freq_factors.at(static_cast<size_t>(j)));
    }
    frequency_[static_cast<size_t>(j)] = frequency;
  }
  const size_t blocks = static_cast<size_t>((max_positions_ + kBlock - 1) / kBlock);
  blocks_ = std::make_unique<std::atomic<const float*>[]>(blocks);
}

RopeTable::~RopeTable() {
  const int64_t blocks = (max_positions_ + kBlock - 1) / kBlock;
  for (int64_t block = 0; block < blocks; ++block) {
    std::free(const_cast<float*>(blocks_[block].load(std::memory_order_relaxed)));
  }
}

const float* RopeTable::build(int64_t block) const {
  const size_t bytes = (sizeof(float) * 2 * kBlock * static_cast<size_t>(half_) + 63) / 64 * 64;
  float* rows = static_cast<float*>(std::aligned_alloc(64, bytes));
  if (rows == nullptr) throw std::bad_alloc();
  for (int64_t i = 0; i < kBlock; ++i) {
    const double position = static_cast<double>(block * kBlock + i);
    float* row = rows + i * 2 * half_;
    for (int j = 0; j < half_; ++j) {
      const double angle = position * frequency_[static_cast<size_t>(j)];
      row[j] = static_cast<float>(std::cos(angle));
      row[half_ + j] = static_cast<float>(std::sin(angle));
    }
  }
  const float* expected = nullptr;
  if (blocks_[block].compare_exchange_strong(expected, rows, std::memory_order_acq_rel)) {
    bytes_.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
    return rows;
  }
  std::free(rows);
  return expected;
}

void RopeTable::reserve(int64_t positions) const {
  for (int64_t position = 0; position < positions; position += kBlock) cos_row(position);
}

void rope_apply(const RopeTable& table, float* x, int64_t rows, int heads, const int64_t* positions,
                const Parallel& parallel) {
  apply(table, x, rows, heads, parallel, [=](int64_t row) { return positions[row]; });
}

void rope_apply(const RopeTable& table, float* x, int64_t rows, int heads, int64_t pos0,
                const Parallel& parallel) {
  apply(table, x, rows, heads, parallel, [=](int64_t row) { return pos0 + row; });
}

void rope_rotate(const RopeTable& table, const float* x, int64_t position, float* out) {
  rotate(table, x, position, 1.0f, out);
}

void rope_rotate_back(const RopeTable& table, const float* x, int64_t position, float* out) {
  rotate(table, x, position, -1.0f, out);
}

}  // namespace akv::kernels
