#include "kernels/flash_prefill.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "kernels/cpu/table.h"
#include "kernels/isa.h"

namespace akv::kernels {
namespace {

// Tasks are as large as a kernel likes them, but smaller when the pool would run out of tasks.
constexpr int kMinTaskPositions = 16;
constexpr int kTasksPerWorker = 4;

const float* cos_row_of(const void* rope, int64_t position) {
  return static_cast<const RopeTable*>(rope)->cos_row(position);
}

int positions_per_task(const FlashPrefillParams& p, const FlashKernel& kernel, int workers) {
  const int group = p.q_heads / p.kv_heads;
  const int64_t tiles = std::max(1, kTasksPerWorker * workers / p.kv_heads);
  const int64_t shared_out = (p.rows + tiles - 1) / tiles;
  const int64_t most = std::max(kMinTaskPositions, kernel.max_rows / group);
  return static_cast<int>(
      std::min(p.rows, std::clamp<int64_t>(shared_out, kMinTaskPositions, most)));
}

}  // namespace

FlashPrefillScratch::FlashPrefillScratch() = default;
FlashPrefillScratch::~FlashPrefillScratch() { std::free(data_); }

void FlashPrefillScratch::reserve(int workers, size_t bytes_per_worker) {
  const size_t stride = (bytes_per_worker + 63) / 64 * 64;
  const size_t total = stride * static_cast<size_t>(workers);
  if (total > capacity_) {
    std::free(data_);
    data_ = static_cast<std::byte*>(std::aligned_alloc(64, total));
    capacity_ = data_ == nullptr ? 0 : total;
    if (data_ == nullptr) throw std::bad_alloc();
  }
  stride_ = stride;
}

void flash_prefill(const FlashPrefillParams& p, FlashPrefillScratch& scratch,
                   const Parallel& parallel) {
  const FlashKernel& kernel = flash_kernel(p.compute == Compute::kBf16);
  const int group = p.q_heads / p.kv_heads;
  const int positions = positions_per_task(p, kernel, parallel.workers);
  const int64_t tiles = (p.rows + positions - 1) / positions;
  scratch.reserve(parallel.workers,
                  static_cast<size_t>(kernel.scratch_bytes(positions, group, p.head_dim)));

  parallel.run(static_cast<int>(tiles) * p.kv_heads, [&](int index, int worker) {
    const int64_t tile = tiles - 1 - index / p.kv_heads;  // the longest first
    const int64_t head = index % p.kv_heads;
    const int64_t row = tile * positions;
    const int64_t q_offset = (row * p.q_heads + head * group) * p.head_dim;
    const int64_t kv_offset = head * p.head_dim;
    FlashTask task;
    task.q = p.q + q_offset;
    task.q_stride = int64_t{p.q_heads} * p.head_dim;
    task.out = p.out + q_offset;
    if (p.k != nullptr) {
      task.k = reinterpret_cast<const uint16_t*>(p.k) + kv_offset;
      task.v = reinterpret_cast<const uint16_t*>(p.v) + kv_offset;
    } else {
      task.k_f32 = p.k_f32 + kv_offset;
      task.v_f32 = p.v_f32 + kv_offset;
    }
    task.kv_stride = int64_t{p.kv_heads} * p.head_dim;
    task.pos0 = p.pos0 + row;
    task.positions = static_cast<int>(std::min<int64_t>(positions, p.rows - row));
    task.group = group;
    task.head_dim = p.head_dim;
    task.half = p.rope->half();
    task.interleaved = p.rope->pairs() == RopePairs::kInterleaved;
    task.cos_row = cos_row_of;
    task.rope = p.rope;
    task.scratch = scratch.worker(worker);
    kernel.run(task);
  });
}

}  // namespace akv::kernels
