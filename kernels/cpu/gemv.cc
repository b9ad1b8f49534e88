#include "kernels/gemv.h"

#include <algorithm>

#include "kernels/cpu/scratch.h"
#include "kernels/cpu/table.h"
#include "kernels/dequant.h"

namespace akv::kernels {
namespace {

// Weight bytes of one task: small enough to share out evenly, large enough to outweigh a ticket.
constexpr int64_t kMinTaskBytes = 8 << 10;
constexpr int64_t kMaxTaskBytes = 64 << 10;
constexpr int kTasksPerWorker = 8;
// Rows of a task are a multiple of the rows that an inner loop takes together.
constexpr int64_t kRowStep = 4;

int64_t bytes_of(const Matrix& w) {
  return w.rows * static_cast<int64_t>(row_bytes(w.type, w.cols));
}

int64_t rows_per_task(const Matrix& w, int64_t task_bytes) {
  const int64_t row = std::max<int64_t>(1, static_cast<int64_t>(row_bytes(w.type, w.cols)));
  return std::max<int64_t>(1, task_bytes / row / kRowStep) * kRowStep;
}

int tasks_of(const Matrix& w, int64_t task_bytes) {
  const int64_t rows = rows_per_task(w, task_bytes);
  return static_cast<int>((w.rows + rows - 1) / rows);
}

// Lays m rows of x out as LowbitTile::x wants them.
void pack_rows(const float* x, int m, int64_t cols, float* out) {
  const int padded = lowbit_padded(m);
  for (int64_t col = 0; col < cols; col += kLowbitCols) {
    const int64_t n = std::min<int64_t>(kLowbitCols, cols - col);
    for (int row = 0; row < padded; ++row, out += kLowbitCols) {
      if (row < m) std::copy_n(x + row * cols + col, n, out);
      std::fill(out + (row < m ? n : 0), out + kLowbitCols, 0.0f);
    }
  }
}

// Floats of kLowbitRows packed rows.
int64_t packed_size(int64_t cols) {
  return (cols + kLowbitCols - 1) / kLowbitCols * kLowbitCols * kLowbitRows;
}

}  // namespace

void matmul_lowbit(const float* x, int m, std::span<const LowbitProduct> products,
                   const Parallel& parallel) {
  int64_t total = 0;
  for (const LowbitProduct& product : products) total += bytes_of(product.w);
  const int64_t task_bytes =
      std::clamp(total / (parallel.workers * kTasksPerWorker), kMinTaskBytes, kMaxTaskBytes);
  int tasks = 0;
  for (const LowbitProduct& product : products) tasks += tasks_of(product.w, task_bytes);
  const LowbitTable& table = lowbit();

  // All products share the input's columns. Rows beyond kLowbitRows are a second pass of each task,
  // over weights that the first has brought to its cache.
  const int64_t cols = products[0].w.cols;
  Buffer& input = thread_scratch(ScratchUse::kLowbitInput);
  input.reserve(static_cast<size_t>(2 * packed_size(cols)) * sizeof(float));
  float* packed = reinterpret_cast<float*>(input.data());
  for (int first = 0; first < m; first += kLowbitRows) {
    pack_rows(x + first * cols, std::min(kLowbitRows, m - first), cols,
              packed + first / kLowbitRows * packed_size(cols));
  }

  parallel.run(tasks, [&](int task, int) {
    const LowbitProduct* product = products.data();
    for (int n = tasks_of(product->w, task_bytes); task >= n;
         n = tasks_of(product->w, task_bytes)) {
      task -= n;
      ++product;
    }
    const Matrix& w = product->w;
    const int64_t rows = rows_per_task(w, task_bytes);
    const int64_t begin = task * rows;
    LowbitTile tile;
    tile.row_stride = static_cast<int64_t>(row_bytes(w.type, w.cols));
    tile.w = static_cast<const uint8_t*>(w.data) + begin * tile.row_stride;
    tile.rows = std::min(rows, w.rows - begin);
    tile.cols = w.cols;
    tile.type = static_cast<uint32_t>(w.type);
    tile.y_stride = w.rows;
    for (int first = 0; first < m; first += kLowbitRows) {
      tile.x = packed + first / kLowbitRows * packed_size(cols);
      tile.m = std::min(kLowbitRows, m - first);
      tile.y = product->y + first * w.rows + begin;
      table.tile(tile);
    }
  });
}

void matmul_lowbit(const float* x, int m, const Matrix& w, float* y, const Parallel& parallel) {
  const LowbitProduct product{w, y};
  matmul_lowbit(x, m, std::span<const LowbitProduct>(&product, 1), parallel);
}

}  // namespace akv::kernels
