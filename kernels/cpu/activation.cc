#include "kernels/activation.h"

#include <algorithm>

#include "kernels/cpu/table.h"

namespace akv::kernels {
namespace {

// A multiple of every vector, so that an element's lane position does not depend on the workers.
constexpr int64_t kElementsPerTask = 32 << 10;

template <class F>
void in_parts(int64_t n, const Parallel& parallel, F part) {
  const int64_t tasks = (n + kElementsPerTask - 1) / kElementsPerTask;
  parallel.run(static_cast<int>(tasks), [&](int task, int) {
    const int64_t begin = task * kElementsPerTask;
    part(begin, std::min(kElementsPerTask, n - begin));
  });
}

}  // namespace

void silu_mul(const float* gate, const float* up, int64_t n, float* out, const Parallel& parallel) {
  const OpTable& table = ops();
  in_parts(n, parallel, [&](int64_t begin, int64_t count) {
    table.silu_mul(gate + begin, up + begin, count, out + begin);
  });
}

void add(float* x, const float* y, int64_t n, const Parallel& parallel) {
  const OpTable& table = ops();
  in_parts(n, parallel,
           [&](int64_t begin, int64_t count) { table.add(x + begin, y + begin, count); });
}

void add_bias(float* x, int64_t rows, int64_t dim, const float* bias, const Parallel& parallel) {
  const OpTable& table = ops();
  const int64_t step = std::max<int64_t>(1, kElementsPerTask / dim);
  parallel.run(static_cast<int>((rows + step - 1) / step), [&](int task, int) {
    const int64_t end = std::min(rows, (task + 1) * step);
    for (int64_t row = task * step; row < end; ++row) table.add(x + row * dim, bias, dim);
  });
}

}  // namespace akv::kernels
