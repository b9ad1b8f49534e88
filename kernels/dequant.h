// Weight formats of GGUF: sizes, and expansion to f32 or bf16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device_stream.h"
#include "kernels/types.h"

namespace akv::kernels {

// Elements that share one block's scales: 1, 32 or 256. 0 for a type that is not supported, so
// that a reader can refuse the file.
int block_size(TensorType type);

// Bytes of one block; 0 for a type that is not supported.
size_t block_bytes(TensorType type);

// Bytes of one row of cols elements; cols is a multiple of block_size(type).
size_t row_bytes(TensorType type, int64_t cols);

// "Q4_1" and so on; "?" for a type that is not supported.
const char* type_name(TensorType type);

// Expands rows [row_begin, row_begin + rows) of m to out [rows, m.cols], exactly as ggml defines
// the format (a zero's sign aside). Rows and columns are the caller's to
// check against the file's size. Any thread.
void dequantize_rows(const Matrix& m, int64_t row_begin, int64_t rows, float* out);

// The same, rounded to nearest even bf16 (exact for kBF16).
void dequantize_rows(const Matrix& m, int64_t row_begin, int64_t rows, bf16* out);

// Row-wise conversions of n elements.
void convert_to_bf16(const float* x, int64_t n, bf16* out);
void convert_to_float(const bf16* x, int64_t n, float* out);

namespace cuda {

// Expands all of m (device memory, aligned to 16 bytes) to out [m.rows, m.cols], rounded to nearest
// even: the same bits as dequantize_rows() to bf16.
void dequantize(const Matrix& m, bf16* out, DeviceStream stream);

// out[i] = row ids[i] of m, expanded to f32, [count, m.cols]. The ids are the caller's to check.
void embed(const Matrix& m, const int32_t* ids, int64_t count, float* out, DeviceStream stream);

void convert_to_bf16(const float* x, int64_t n, bf16* out, DeviceStream stream);
void convert_to_float(const bf16* x, int64_t n, float* out, DeviceStream stream);

}  // namespace cuda

}  // namespace akv::kernels
