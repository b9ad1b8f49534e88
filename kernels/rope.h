// Rotary position embedding: the table of angles, and rotation in place.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/device_stream.h"
#include "kernels/parallel.h"

namespace akv::kernels {

// Which dimensions form a rotation's pair j: kHalf (j, j + rope_dim/2), as Llama in Hugging Face's
// order and Qwen; kInterleaved (2j, 2j + 1), as Llama in GGUF's order.
enum class RopePairs { kHalf, kInterleaved };

struct RopeParams {
  int head_dim = 0;
  int rope_dim = 0;  // rotated leading dimensions, even, <= head_dim; 0 means head_dim
  double base = 10000.0;
  RopePairs pairs = RopePairs::kHalf;
  // Divisors of the frequencies, [rope_dim / 2] (GGUF's rope_freqs.weight: Llama-3 scaling); empty
  // for none.
  std::vector<float> freq_factors;
  // Linear position scaling: the angle is position * freq_scale * frequency.
  double freq_scale = 1.0;
};

// cos and sin of position * base^(-2j/rope_dim) / freq_factors[j], j in [0, rope_dim/2): f32 values
// of angles computed and reduced in double. Rows are built in blocks of kBlock positions at their
// first use, so an idle process holds none and any position below max_positions can be asked for.
// All members are safe on any thread, without locks: two threads that need the same block first may
// both build it, and one copy is dropped.
class RopeTable {
 public:
  static constexpr int kBlock = 256;  // positions
  static constexpr int64_t kDefaultMaxPositions = int64_t{1} << 20;

  explicit RopeTable(const RopeParams& params, int64_t max_positions = kDefaultMaxPositions);
  ~RopeTable();
  RopeTable(const RopeTable&) = delete;
  RopeTable& operator=(const RopeTable&) = delete;

  // cos_row: [half()] floats; sin_row follows it in memory: sin_row(p) == cos_row(p) + half().
  // Within a block of kBlock positions (aligned to kBlock) rows are consecutive, 2 * half() floats
  // apart. Pointers stay valid for the table's life. 0 <= position < max_positions().
  const float* cos_row(int64_t position) const {
    const float* block = blocks_[position / kBlock].load(std::memory_order_acquire);
    if (block == nullptr) block = build(position / kBlock);
    return block + (position % kBlock) * 2 * half_;
  }
  const float* sin_row(int64_t position) const { return cos_row(position) + half_; }

  // Builds rows [0, positions) now, so that no later call allocates.
  void reserve(int64_t positions) const;

  int head_dim() const { return params_.head_dim; }
  int rope_dim() const { return 2 * half_; }
  int half() const { return half_; }  // rope_dim / 2
  RopePairs pairs() const { return params_.pairs; }
  int64_t max_positions() const { return max_positions_; }
  // Bytes of rows built so far.
  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  const RopeParams& params() const { return params_; }

 private:
  const float* build(int64_t block) const;

  RopeParams params_;
  int half_ = 0;
  int64_t max_positions_ = 0;
  std::vector<double> frequency_;  // [half]
  mutable std::unique_ptr<std::atomic<const float*>[]> blocks_;
  mutable std::atomic<int64_t> bytes_{0};
};

// Rotates x [rows, heads, head_dim] in place; row r stands at positions[r]. Dimensions from
// rope_dim on are left alone. A row's result does not depend on the other rows.
void rope_apply(const RopeTable& table, float* x, int64_t rows, int heads, const int64_t* positions,
                const Parallel& parallel);

// The same for consecutive positions: row r stands at pos0 + r.
void rope_apply(const RopeTable& table, float* x, int64_t rows, int heads, int64_t pos0,
                const Parallel& parallel);

// Rotates one head's vector x [head_dim] into out (may be x) by the angles of `position`, or back
// by them: R_t x or R_t^T x.
void rope_rotate(const RopeTable& table, const float* x, int64_t position, float* out);
void rope_rotate_back(const RopeTable& table, const float* x, int64_t position, float* out);

// The table on a device: rows[p] = cos [half], sin [half] of position p, f32, all positions
// contiguous (RopeTable's rows, copied). A view.
struct DeviceRope {
  const float* rows = nullptr;
  int half = 0;  // rope_dim / 2
  int head_dim = 0;
  RopePairs pairs = RopePairs::kHalf;
  int64_t positions = 0;  // rows held; every position that a kernel is given lies below
};

namespace cuda {

// rope_apply on a device; positions [rows] is read there too.
void rope_apply(const DeviceRope& table, float* x, int64_t rows, int heads,
                const int64_t* positions, DeviceStream stream);

}  // namespace cuda

}  // namespace akv::kernels
