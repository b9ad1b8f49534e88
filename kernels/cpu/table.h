// The inner loops that exist once per instruction set, as one table of functions on raw pointers.
//
// The files that fill a table are compiled with the flags of their set. They include no header
// with inline functions that other files use (the linker might keep the copy that this CPU cannot
// run), so everything here is plain data.
#pragma once

#include <cstddef>
#include <cstdint>

namespace akv::kernels {

// Activation rows that one pass over the weights takes, and columns of a unit of weights.
constexpr int kLowbitRows = 8;
constexpr int kLowbitCols = 32;

// Rows that a pass of m <= kLowbitRows is padded to: the counts that loops exist for.
static constexpr int lowbit_padded(int m) { return m <= 4 ? m : m + m % 2; }

// A tile of output rows of a product straight from stored weights (gemv.h).
struct LowbitTile {
  const uint8_t* w = nullptr;  // first row of the tile
  int64_t row_stride = 0;      // bytes
  int64_t rows = 0;            // of the tile
  int64_t cols = 0;            // K
  uint32_t type = 0;           // TensorType
  // The activations of one pass, 64-byte aligned: [K / 32 rounded up][lowbit_padded(m)][32], zeros
  // where padded. One running pointer then serves every load.
  const float* x = nullptr;
  int m = 0;           // 1..kLowbitRows
  float* y = nullptr;  // y[i * y_stride + row]
  int64_t y_stride = 0;
};

// A task of prefill attention: `rows` query rows (position, head of the group) of one kv head.
struct FlashTask {
  const float* q = nullptr;     // of (first position, first head of the group)
  int64_t q_stride = 0;         // floats between positions; heads are head_dim apart
  float* out = nullptr;         // same strides
  const uint16_t* k = nullptr;  // bf16, of (position 0, kv head); or
  const uint16_t* v = nullptr;
  const float* k_f32 = nullptr;
  const float* v_f32 = nullptr;
  int64_t kv_stride = 0;  // elements between positions
  int64_t pos0 = 0;       // of the first row
  int positions = 0;
  int group = 0;
  int head_dim = 0;
  int half = 0;  // rotated pairs
  bool interleaved = false;
  const float* (*cos_row)(const void* rope, int64_t position) = nullptr;  // sin follows at +half
  const void* rope = nullptr;
  std::byte* scratch = nullptr;  // 64-byte aligned, FlashKernel::scratch_bytes of it
};

// A kernel of prefill attention. max_rows: query rows that share a key tile in one task, at most;
// scratch_bytes: of a task of that shape.
struct FlashKernel {
  int max_rows;
  int64_t (*scratch_bytes)(int positions, int group, int head_dim);
  void (*run)(const FlashTask& task);
};

struct OpTable {
  const char* name;
  void (*rmsnorm_row)(const float* x, int64_t dim, const float* weight, float eps, float* out);
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* out);
  void (*add)(float* x, const float* y, int64_t n);
  // x [2 * half] in place; s is +1 to rotate, -1 to rotate back.
  void (*rotate_half)(const float* x, const float* cos, const float* sin, float s, int half,
                      float* out);
  void (*rotate_interleaved)(const float* x, const float* cos, const float* sin, float s, int half,
                             float* out);
  void (*to_bf16)(const float* x, int64_t n, uint16_t* out);
  void (*to_float)(const uint16_t* x, int64_t n, float* out);
  FlashKernel flash;  // f32
};

// Stored weights; files of their own, for they are many loops.
struct LowbitTable {
  // One row of `cols` elements of a stored format, expanded.
  void (*dequantize_row)(uint32_t type, const uint8_t* row, int64_t cols, float* out);
  void (*tile)(const LowbitTile& tile);
};

extern const OpTable kPortableOps;
extern const LowbitTable kPortableLowbit;
#if defined(__x86_64__)
extern const OpTable kAvx2Ops;
extern const LowbitTable kAvx2Lowbit;
extern const OpTable kAvx512Ops;
extern const LowbitTable kAvx512Lowbit;
extern const FlashKernel kFlashAvx512Bf16;
extern const FlashKernel kFlashAmx;
#endif

// The tables of active_isa().
const OpTable& ops();
const LowbitTable& lowbit();

// Prefill attention with operands in bf16 where the CPU has such products, else in f32.
const FlashKernel& flash_kernel(bool bf16);

}  // namespace akv::kernels
