#include "kernels/dequant.h"

#include "kernels/cpu/table.h"

namespace akv::kernels {
namespace {

struct Format {
  TensorType type;
  int block;     // elements
  size_t bytes;  // of a block
  const char* name;
};

constexpr Format kFormats[] = {
    {TensorType::kF32, 1, 4, "F32"},       {TensorType::kF16, 1, 2, "F16"},
    {TensorType::kBF16, 1, 2, "BF16"},     {TensorType::kQ4_0, 32, 18, "Q4_0"},
    {TensorType::kQ4_1, 32, 20, "Q4_1"},   {TensorType::kQ5_0, 32, 22, "Q5_0"},
    {TensorType::kQ5_1, 32, 24, "Q5_1"},   {TensorType::kQ8_0, 32, 34, "Q8_0"},
    {TensorType::kQ4_K, 256, 144, "Q4_K"}, {TensorType::kQ5_K, 256, 176, "Q5_K"},
    {TensorType::kQ6_K, 256, 210, "Q6_K"},
};

const Format* find(TensorType type) {
  for (const Format& format : kFormats) {
    if (format.type == type) return &format;
  }
  return nullptr;
}

// Columns expanded at a time on the way to bf16: a multiple of every block, small on the stack.
constexpr int64_t kStackCols = 1024;

const uint8_t* row_data(const Matrix& m, int64_t row) {
  return static_cast<const uint8_t*>(m.data) + static_cast<size_t>(row) * row_bytes(m.type, m.cols);
}

}  // namespace

int block_size(TensorType type) {
  const Format* format = find(type);
  return format == nullptr ? 0 : format->block;
}

size_t block_bytes(TensorType type) {
  const Format* format = find(type);
  return format == nullptr ? 0 : format->bytes;
}

size_t row_bytes(TensorType type, int64_t cols) {
  const Format* format = find(type);
  if (format == nullptr) return 0;
  return static_cast<size_t>(cols) / static_cast<size_t>(format->block) * format->bytes;
}

const char* type_name(TensorType type) {
  const Format* format = find(type);
  return format == nullptr ? "?" : format->name;
}

void dequantize_rows(const Matrix& m, int64_t row_begin, int64_t rows, float* out) {
  for (int64_t row = 0; row < rows; ++row) {
    lowbit().dequantize_row(static_cast<uint32_t>(m.type), row_data(m, row_begin + row), m.cols,
                            out + row * m.cols);
  }
}

void dequantize_rows(const Matrix& m, int64_t row_begin, int64_t rows, bf16* out) {
  static_assert(sizeof(bf16) == sizeof(uint16_t));
  float part[kStackCols];
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < m.cols; col += kStackCols) {
      const int64_t cols = m.cols - col < kStackCols ? m.cols - col : kStackCols;
      const uint8_t* data = row_data(m, row_begin + row) + row_bytes(m.type, col);
      lowbit().dequantize_row(static_cast<uint32_t>(m.type), data, cols, part);
      convert_to_bf16(part, cols, out + row * m.cols + col);
    }
  }
}

void convert_to_bf16(const float* x, int64_t n, bf16* out) {
  ops().to_bf16(x, n, reinterpret_cast<uint16_t*>(out));
}

void convert_to_float(const bf16* x, int64_t n, float* out) {
  ops().to_float(reinterpret_cast<const uint16_t*>(x), n, out);
}

}  // namespace akv::kernels
