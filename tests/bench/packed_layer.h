// One layer's compressed state in the bytes that a record would have, for copies on a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/compressed_view.h"
#include "tests/bench/cuda_bench.h"
#include "tests/kernels/attention_case.h"

namespace akv::bench {

class PackedLayer {
 public:
  explicit PackedLayer(const testing::CaseOptions& options);

  int64_t bytes() const { return static_cast<int64_t>(bytes_.size()); }
  const kernels::CompressedLayerView& host() const { return case_.view(); }

  // A copy in `memory`, with views of device memory.
  kernels::CompressedLayerView upload(DeviceMemory& memory) const;

 private:
  static constexpr uintptr_t kFirst = 64;  // offsets count from here: none is null

  template <class T>
  const T* put(const T* values, size_t count);
  kernels::CompressedSideView side(const kernels::CompressedLayerView& layer,
                                   const kernels::CompressedSideView& from);

  int dim_;
  testing::CompressedCase case_;
  std::vector<unsigned char> bytes_;
  std::vector<kernels::CompressedHeadView> heads_;
};

}  // namespace akv::bench
