#include "kernels/cpu/scratch.h"

#include <cstdlib>
#include <new>

namespace akv::kernels {

void Buffer::reserve(size_t bytes) {
  if (bytes <= size_) return;
  clear();
  const size_t rounded = (bytes + 63) / 64 * 64;
  data_ = static_cast<std::byte*>(std::aligned_alloc(64, rounded));
  if (data_ == nullptr) throw std::bad_alloc();
  size_ = rounded;
}

void Buffer::clear() {
  std::free(data_);
  data_ = nullptr;
  size_ = 0;
}

Buffer& thread_scratch(ScratchUse use) {
  thread_local Buffer buffers[static_cast<size_t>(ScratchUse::kCount)];
  return buffers[static_cast<size_t>(use)];
}

}  // namespace akv::kernels
