#include "kernels/norm.h"

#include <algorithm>

#include "kernels/cpu/table.h"

namespace akv::kernels {
namespace {

constexpr int64_t kElementsPerTask = 32 << 10;

}  // namespace

void rmsnorm(const float* x, int64_t rows, int dim, const float* weight, float eps, float* out,
             const Parallel& parallel) {
  const OpTable& table = ops();
  const int64_t step = std::max<int64_t>(1, kElementsPerTask / dim);
  parallel.run(static_cast<int>((rows + step - 1) / step), [&](int task, int) {
    const int64_t end = std::min(rows, (task + 1) * step);
    for (int64_t row = task * step; row < end; ++row) {
      table.rmsnorm_row(x + row * dim, dim, weight, eps, out + row * dim);
    }
  });
}

}  // namespace akv::kernels
