// A compressed (or dense) state as bytes: its owner, its header, verification of what arrived, and
// the views that attention reads. Layout and byte order: proto/README.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/result.h"
#include "common/kv/plan.h"
#include "kernels/compressed_view.h"
#include "kernels/rope.h"

namespace akv::kv {

using Digest = std::array<uint8_t, 32>;

// What a state belongs to. A state whose identity is another is refused, never decoded.
struct StateIdentity {
  Digest model_fingerprint{};  // SHA-256, Model::fingerprint()
  Digest tokenizer_hash{};     // SHA-256 over the vocabulary
  uint64_t prompt_hash = 0;    // prompt_hash() of the token ids
};
uint64_t prompt_hash(std::span<const int32_t> token_ids);

// Owns the bytes of one state: one allocation of plan.total_bytes, 64-byte aligned, not cleared.
// Movable. Not synchronised: who lands records into it has it alone until they are verified.
class StateBuffer {
 public:
  StateBuffer() = default;
  // kResourceExhausted if the memory cannot be had.
  static Result<StateBuffer> create(const StatePlan& plan);

  bool empty() const { return bytes_ == nullptr; }
  size_t size() const { return size_; }
  std::span<std::byte> bytes() { return {bytes_.get(), size_}; }
  std::span<const std::byte> bytes() const { return {bytes_.get(), size_}; }
  std::span<std::byte> header(const StatePlan& plan) {
    return bytes().subspan(0, plan.header_bytes);
  }
  std::span<std::byte> record(const StatePlan& plan, int layer) {
    return bytes().subspan(plan.record_offset[layer], plan.record_bytes[layer]);
  }
  std::span<const std::byte> record(const StatePlan& plan, int layer) const {
    return bytes().subspan(plan.record_offset[layer], plan.record_bytes[layer]);
  }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte[], Free> bytes_;
  size_t size_ = 0;
};

// Writes the state header of `plan` into out (exactly plan.header_bytes) and returns its checksum,
// which every record repeats. Depends on plan and identity alone: both ends can compute it.
uint64_t write_header(const StatePlan& plan, const StateIdentity& identity,
                      std::span<std::byte> out);

// Checks a received header against what this end planned and expects; returns its checksum.
// kDataLoss: checksum, length; kMismatch: version, model, tokenizer, prompt, options, sizes.
Result<uint64_t> verify_header(std::span<const std::byte> header, const StatePlan& plan,
                               const StateIdentity& identity);

// Checks a received record of `layer`, checksum first, then every length, count, index and scale,
// so that no later read of it can leave it or meet a NaN. Any thread. kDataLoss or kMismatch.
Status verify_record(std::span<const std::byte> record, int layer, const StatePlan& plan,
                     uint64_t state_checksum);

// The layers of a verified state as attention reads them. Owns the view structs, not the bytes: the
// StateBuffer must outlive it and stay where it is. Immutable after create(): any thread.
class StateView {
 public:
  StateView() = default;
  // REQUIRES: every record of `state` passed verify_record.
  static StateView create(std::span<const std::byte> state, const StatePlan& plan);

  int layers() const { return static_cast<int>(dense_.size() + compressed_.size()); }
  bool is_dense() const { return compressed_.empty(); }
  // Null if the state is dense / compressed.
  const kernels::CompressedLayerView* compressed(int layer) const {
    return is_dense() ? nullptr : &compressed_[layer];
  }
  const kernels::DenseLayerView* dense(int layer) const {
    return is_dense() ? &dense_[layer] : nullptr;
  }

 private:
  std::vector<kernels::CompressedLayerView> compressed_;
  std::vector<kernels::DenseLayerView> dense_;
  std::vector<kernels::CompressedHeadView> heads_;  // [layers][H]
  std::vector<float> signs_;                        // [D]
};

}  // namespace akv::kv
