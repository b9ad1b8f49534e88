// What a launch moves and multiplies, from its own arguments: the figures that a benchmark divides
// by time and holds against the machine's roofs.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/compressed_attention.h"
#include "kernels/flash_prefill.h"
#include "kernels/gemv.h"
#include "kernels/types.h"

namespace akv::kernels {

// bytes: read from memory once a launch however often caches serve them again; weights, states and
// K/V, not activations. multiply_adds: of the operator's form in this tree, exponentials left out.
struct Work {
  uint64_t bytes = 0;
  uint64_t multiply_adds = 0;

  Work& operator+=(const Work& other) {
    bytes += other.bytes;
    multiply_adds += other.multiply_adds;
    return *this;
  }
};

// Stored bytes of a matrix.
uint64_t stored_bytes(const Matrix& w);

// matmul_lowbit over m rows: each product's weights once.
Work matmul_lowbit_work(int m, std::span<const Matrix> products);

// gemm over m rows with a packed matrix [rows, cols]; elements of 2 (bf16) or 4 bytes.
Work gemm_work(int64_t m, int64_t rows, int64_t cols, Compute compute);

// flash_prefill: the causal half of K and V once per tile of query rows is left to caches; bytes
// count K and V up to the last row once.
Work flash_prefill_work(const FlashPrefillParams& params);

// decode_attention: slots, coefficients, masks, codes, scales and anchors of every KV head, the
// suffix, and the angles of the longest prompt once: all rows and heads share them.
Work decode_attention_work(std::span<const AttentionRow> rows, int heads);

}  // namespace akv::kernels
