// Aligned memory that only grows: buffers of an owner, and a worker thread's own.
#pragma once

#include <cstddef>

namespace akv::kernels {

// An owner of 64-byte aligned bytes. Contents are lost when it grows.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() { clear(); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // Throws std::bad_alloc.
  void reserve(size_t bytes);
  void clear();
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

enum class ScratchUse { kGemmInput, kGemmOutput, kLibrary, kLowbitInput, kCount };

// This thread's buffer for a use; a kernel may hold one only within one task.
Buffer& thread_scratch(ScratchUse use);

}  // namespace akv::kernels
