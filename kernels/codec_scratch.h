// Scratch memory of the codec's operators: one growing arena of floats per worker.
#pragma once

#include <cstddef>
#include <vector>

namespace akv::kernels {

// Grows and never shrinks. prepare() before a parallel region; inside it each worker uses its own.
class CodecScratch {
 public:
  void prepare(int workers, size_t floats) {
    if (arenas_.size() < static_cast<size_t>(workers)) arenas_.resize(workers);
    for (auto& arena : arenas_) {
      if (arena.size() < floats) arena.resize(floats);
    }
  }
  float* worker(int index) { return arenas_[index].data(); }
  size_t bytes() const {
    size_t total = 0;
    for (const auto& arena : arenas_) total += arena.capacity() * sizeof(float);
    return total;
  }

 private:
  std::vector<std::vector<float>> arenas_;
};

}  // namespace akv::kernels
