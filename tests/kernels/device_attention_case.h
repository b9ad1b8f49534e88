// Attention cases of attention_case.h on a device: copies of what the views point at, packed as
// tightly as records pack them, NaN in between.
#pragma once

#include <cuda_runtime.h>

#include <vector>

#include "kernels/cuda/decode_attention.h"
#include "tests/kernels/attention_case.h"

namespace akv::testing {

// One block of device memory that is filled on the host first. What lies between the pieces is NaN
// as bf16 and f32 and an index beyond any table.
class DevicePack {
 public:
  explicit DevicePack(size_t capacity);
  ~DevicePack();
  DevicePack(const DevicePack&) = delete;
  DevicePack& operator=(const DevicePack&) = delete;

  // Copies count T to the next address that is a multiple of `align` and of no more.
  template <class T>
  T* put(const T* values, size_t count, size_t align = alignof(T)) {
    if (values == nullptr) return nullptr;
    return static_cast<T*>(place(values, count * sizeof(T), align));
  }
  // Sends everything to the device.
  void upload();

 private:
  void* place(const void* bytes, size_t size, size_t align);

  std::vector<unsigned char> host_;
  unsigned char* device_ = nullptr;
  size_t used_ = 0;
};

inline constexpr int kDeviceLayers = 2;  // views of a prompt: layer 0 must never be read
inline constexpr int kDeviceLayer = 1;

const kernels::CompressedLayerView* put(DevicePack& pack, const kernels::CompressedLayerView& layer,
                                        size_t anchor_align);
const kernels::DenseLayerView* put(DevicePack& pack, const kernels::DenseLayerView& layer,
                                   size_t align);
// Host array of device pointers.
std::vector<const bf16*> put(DevicePack& pack, const kernels::SuffixView& suffix, int kv_heads,
                             int head_dim);

}  // namespace akv::testing
