#include "kernels/work.h"

#include <algorithm>

#include "kernels/dequant.h"

namespace akv::kernels {
namespace {

uint64_t u64(int64_t x) { return static_cast<uint64_t>(x); }

// One side of one KV head, for `group` query heads.
Work side_work(const CompressedLayerView& layer, const CompressedSideView& side, int group) {
  const uint64_t prefix = u64(layer.prefix), dim = u64(layer.head_dim), g = u64(group);
  const uint64_t words = (prefix + 63) / 64;
  const uint64_t residuals = uint64_t{side.n2} + side.n4;
  Work work;
  work.bytes += prefix * (side.slots8 != nullptr ? 1 : 2);
  work.bytes += prefix * (side.gamma8 != nullptr ? 1 : 2);
  work.bytes += words * (side.mask4 != nullptr ? 24 : 12);
  work.bytes += uint64_t{side.n2} * dim / 4 + uint64_t{side.n4} * dim / 2;
  work.bytes += residuals * (side.scale2_f32 != nullptr ? 4 : 2);
  work.bytes += u64(layer.anchors) * dim * sizeof(bf16);
  work.multiply_adds += residuals * dim * g;
  work.multiply_adds += u64(layer.anchors) * dim * g;  // W, or the histogram times the anchors
  return work;
}

Work compressed_work(const CompressedLayerView& layer, int heads) {
  const int group = heads / layer.kv_heads;
  const uint64_t prefix = u64(layer.prefix), dim = u64(layer.head_dim);
  Work work;
  for (int h = 0; h < layer.kv_heads; ++h) {
    work += side_work(layer, layer.heads[h].key, group);
    work += side_work(layer, layer.heads[h].value, group);
    work.multiply_adds += prefix * dim * u64(group);  // <phi, W>
    work.multiply_adds += prefix * 2 * u64(group);    // coefficient, histogram
  }
  return work;
}

Work dense_work(int64_t tokens, int head_dim, int kv_heads, int heads) {
  return {u64(tokens) * u64(kv_heads) * u64(head_dim) * 2 * sizeof(bf16),
          u64(tokens) * u64(heads) * u64(head_dim) * 2};
}

}  // namespace

uint64_t stored_bytes(const Matrix& w) { return u64(w.rows) * row_bytes(w.type, w.cols); }

Work matmul_lowbit_work(int m, std::span<const Matrix> products) {
  Work work;
  for (const Matrix& w : products) {
    work.bytes += stored_bytes(w);
    work.multiply_adds += u64(m) * u64(w.rows) * u64(w.cols);
  }
  return work;
}

Work gemm_work(int64_t m, int64_t rows, int64_t cols, Compute compute) {
  const uint64_t element = compute == Compute::kBf16 ? 2 : 4;
  return {u64(rows) * u64(cols) * element, u64(m) * u64(rows) * u64(cols)};
}

Work flash_prefill_work(const FlashPrefillParams& p) {
  const uint64_t element = p.k_f32 != nullptr ? 4 : 2;
  const uint64_t seen = u64(p.rows) * u64(p.pos0) + u64(p.rows) * u64(p.rows + 1) / 2;
  return {u64(p.pos0 + p.rows) * u64(p.kv_heads) * u64(p.head_dim) * 2 * element,
          seen * u64(p.q_heads) * u64(p.head_dim) * 2};
}

Work decode_attention_work(std::span<const AttentionRow> rows, int heads) {
  Work work;
  uint64_t angles = 0;
  for (const AttentionRow& row : rows) {
    if (row.prompt != nullptr) {
      const CompressedLayerView& prompt = *row.prompt;
      angles = std::max(angles, u64(prompt.prefix) * u64(prompt.head_dim) * sizeof(int16_t));
      work += compressed_work(prompt, heads);
      work += dense_work(row.suffix.tokens, prompt.head_dim, prompt.kv_heads, heads);
    } else {
      const DenseLayerView& dense = *row.dense_prompt;
      work += dense_work(int64_t{dense.tokens} + row.suffix.tokens, dense.head_dim, dense.kv_heads,
                         heads);
    }
  }
  work.bytes += angles;
  return work;
}

}  // namespace akv::kernels
