// Shared memory of the block that an OS thread runs: poisoned at the start of every block.
#pragma once

#include <cstddef>
#include <memory>

namespace cuda_shim {

class SharedArena {
 public:
  SharedArena() = default;
  ~SharedArena();
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  // Poisons the kernels' static __shared__ variables of this OS thread and `bytes` of dynamic
  // shared memory; what lies behind those is out of bounds for ASan. Returns the latter.
  void* begin_block(size_t bytes);

 private:
  unsigned char* memory_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace cuda_shim
