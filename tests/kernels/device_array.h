// Device memory of a test, with poisoned borders: a kernel that writes outside is caught.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/device_stream.h"

namespace akv::kernels {

// Waits for all work and fails the test on the device's error.
inline void finish_device() {
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << cudaGetErrorString(cudaGetLastError());
}

// n elements between two borders of bytes 0xff (NaN in every float format).
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t n) : n_(n) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, bytes()), cudaSuccess);
    memory_ = static_cast<unsigned char*>(memory);
    EXPECT_EQ(cudaMemset(memory_, 0xff, bytes()), cudaSuccess);
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    copy_in(values.data());
  }
  // Bytes of any kind, e.g. stored weights.
  DeviceArray(const void* values, size_t n) : DeviceArray(n) { copy_in(values); }
  ~DeviceArray() { cudaFree(memory_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() { return reinterpret_cast<T*>(memory_ + kBorder); }

  // What the kernels before have left here; fails the test where they wrote outside.
  std::vector<T> read() {
    finish_device();
    std::vector<unsigned char> all(bytes());
    EXPECT_EQ(cudaMemcpy(all.data(), memory_, all.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    for (size_t i = 0; i < kBorder; ++i) {
      EXPECT_EQ(all[i], 0xff) << kBorder - i << " bytes before the array";
      EXPECT_EQ(all[all.size() - 1 - i], 0xff) << kBorder - i << " bytes behind the array";
      if (testing::Test::HasFailure()) break;
    }
    std::vector<T> values(n_);
    std::memcpy(values.data(), all.data() + kBorder, n_ * sizeof(T));
    return values;
  }

 private:
  static constexpr size_t kBorder = 256;
  size_t bytes() const { return n_ * sizeof(T) + 2 * kBorder; }
  void copy_in(const void* values) {
    EXPECT_EQ(cudaMemcpy(data(), values, n_ * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
  }

  size_t n_;
  unsigned char* memory_ = nullptr;
};

}  // namespace akv::kernels
