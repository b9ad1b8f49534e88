// Fixed-point angles for the compressed attention: RopeTable's rows as int16, in blocks of kTile
// positions. One table serves all layers, heads and sessions of a model.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/attention_kernels.h"
#include "kernels/rope.h"

namespace akv::kernels::attention {

// 64-byte aligned memory that only grows; growing drops the contents.
class AlignedBuffer {
 public:
  // Makes room for `bytes` bytes; true if that took an allocation.
  bool reserve(int64_t bytes);
  std::byte* data() const { return data_.get(); }
  int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte[], Free> data_;
  int64_t bytes_ = 0;
};

class PhaseTable {
 public:
  // Makes rows [0, positions) of `rope`; other parameters than at the last call start anew. Rows
  // are kept by the parameters' value: `rope` is not referred to after the call.
  void reserve(const RopeTable& rope, int64_t positions);

  PhaseView view() const;
  int stride() const { return stride_; }
  int64_t bytes() const;

 private:
  void add_block(const RopeTable& rope);

  RopeParams params_;
  int half_ = 0;
  int stride_ = 0;
  std::vector<AlignedBuffer> memory_;
  std::vector<const int16_t*> blocks_;
};

}  // namespace akv::kernels::attention
