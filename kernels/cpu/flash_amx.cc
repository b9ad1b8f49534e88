#include <immintrin.h>

#include <cstdint>

#define HWY_COMPILE_ONLY_STATIC
#define HWY_DISABLE_PCLMUL_AES
#include <hwy/highway.h>

#include "kernels/cpu/table.h"

namespace akv::kernels {
namespace {
#include "kernels/cpu/elementwise-inl.h"
#include "kernels/cpu/flash-inl.h"
#include "kernels/cpu/flash_bf16-inl.h"
static_assert(HWY_MAX_BYTES == 64, "Highway took another instruction set");

// AMX: tiles of 16 rows x 32 bf16 times 32 bf16 (as 16 pairs) x 16 columns. Groups are 32 rows, so
// that four products share two loads of either operand.
struct AmxPolicy : Bf16Operands {
  static constexpr int kBlock = 128, kRows = 32, kRowStep = 32, kDimStep = 32;
  static void attend(const FlashState<AmxPolicy>& st, int64_t row, int64_t rows, int64_t first);
};

constexpr int kTile = 16;  // rows, and 32-bit columns
constexpr int kPairsPerTile = 16;

// All eight tiles: 16 rows of 64 bytes. Static, as GCC 12's _tile_loadconfig tells the compiler
// that it reads eight bytes, and the stores of a local's other fields would be dropped.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t column_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
const TileConfig kTileConfig;

void configure_tiles() { _tile_loadconfig(&kTileConfig); }

// c [32, 32] = a [32, 2k] b [2k, 32], or +=; a's and b's cells are pairs along the summed
// dimension.
template <bool Add>
inline void product_32x32(const uint32_t* a, int64_t a_stride, const uint32_t* b, int64_t b_stride,
                          int64_t pairs, float* c, int64_t c_stride) {
  const int64_t a_bytes = a_stride * 4, b_bytes = b_stride * 4, c_bytes = c_stride * 4;
  if (Add) {
    _tile_loadd(0, c, c_bytes);
    _tile_loadd(1, c + kTile, c_bytes);
    _tile_loadd(2, c + kTile * c_stride, c_bytes);
    _tile_loadd(3, c + kTile * c_stride + kTile, c_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < pairs; k += kPairsPerTile) {
    _tile_loadd(4, a + k, a_bytes);
    _tile_loadd(6, b + k * b_stride, b_bytes);
    _tile_loadd(7, b + k * b_stride + kTile, b_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, a + kTile * a_stride + k, a_bytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + kTile, c_bytes);
  _tile_stored(2, c + kTile * c_stride, c_bytes);
  _tile_stored(3, c + kTile * c_stride + kTile, c_bytes);
}

// The same for the last 16 columns.
inline void add_product_32x16(const uint32_t* a, int64_t a_stride, const uint32_t* b,
                              int64_t b_stride, int64_t pairs, float* c, int64_t c_stride) {
  const int64_t a_bytes = a_stride * 4, b_bytes = b_stride * 4, c_bytes = c_stride * 4;
  _tile_loadd(0, c, c_bytes);
  _tile_loadd(2, c + kTile * c_stride, c_bytes);
  for (int64_t k = 0; k < pairs; k += kPairsPerTile) {
    _tile_loadd(4, a + k, a_bytes);
    _tile_loadd(5, a + kTile * a_stride + k, a_bytes);
    _tile_loadd(6, b + k * b_stride, b_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(2, 5, 6);
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(2, c + kTile * c_stride, c_bytes);
}

// Padded rows (beyond the task's) are computed and not read; skipped key columns are masked, and a
// masked probability adds exactly nothing, so skipping them changes no bit.
void AmxPolicy::attend(const FlashState<AmxPolicy>& st, int64_t row, int64_t rows, int64_t first) {
  const int64_t last = st.limit(row + rows - 1);
  if (first > last) return;
  const int64_t cells = st.at.cells, padded = st.at.padded_dim;
  const int64_t visible = last - first + 1 < kBlock ? last - first + 1 : kBlock;
  const int64_t columns = round_up(visible, 2 * kTile);
  float* logits = st.floats(st.at.logits);
  for (int64_t key = 0; key < columns; key += 2 * kTile) {
    const uint32_t* keys = st.cells(st.at.keys) + key / kPanel * cells * kPanel + key % kPanel;
    product_32x32<false>(st.cells(st.at.q) + row * cells, cells, keys, kPanel, cells, logits + key,
                         kBlock);
  }
  uint32_t* probs = st.cells(st.at.probs);
  for (int64_t r = 0; r < kRows; ++r) {
    float* s = logits + r * kBlock;
    mask_row(st, r < rows ? row + r : row + rows - 1, first, s);
    const float factor = softmax_row<kBlock>(s, st.floats(st.at.max) + row + r,
                                             st.floats(st.at.sum) + (row + r) * kF32Lanes);
    from_floats(s, kBlock, probs + r * kBlock / kPack);
    scale_row(st, row + r, factor);
  }
  float* out = st.floats(st.at.out) + row * padded;
  const uint32_t* values = st.cells(st.at.values);
  int64_t dim = 0;
  for (; dim + 2 * kTile <= padded; dim += 2 * kTile) {
    product_32x32<true>(probs, kBlock / kPack, values + dim, padded, columns / kPack, out + dim,
                        padded);
  }
  if (dim < padded) {
    add_product_32x16(probs, kBlock / kPack, values + dim, padded, columns / kPack, out + dim,
                      padded);
  }
}

void run(const FlashTask& task) {
  configure_tiles();
  flash_run<AmxPolicy>(task);
  _tile_release();
}
}  // namespace

// Products are cheap here, so that more rows share the packing of a key tile.
const FlashKernel kFlashAmx = {768, flash_bytes<AmxPolicy>, run};

}  // namespace akv::kernels
