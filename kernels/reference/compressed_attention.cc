// The oracle of decode_attention: rebuild, rotate, attend, in double and in the paper's order.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/compressed_attention.h"

namespace akv::kernels::reference {
namespace {

using Row = std::vector<double>;

// R_t x with angles in double, not from the table.
void rotate(const RopeTable& rope, int64_t position, Row* x) {
  const RopeParams& params = rope.params();
  const int dim = rope.rope_dim(), half = dim / 2;
  const bool interleaved = params.pairs == RopePairs::kInterleaved;
  for (int j = 0; j < half; ++j) {
    double frequency = std::pow(params.base, -2.0 * j / dim);
    if (!params.freq_factors.empty()) {
      frequency /= static_cast<double>(params.freq_factors[static_cast<size_t>(j)]);
    }
    const double angle = static_cast<double>(position) * params.freq_scale * frequency;
    double& a = (*x)[static_cast<size_t>(interleaved ? 2 * j : j)];
    double& b = (*x)[static_cast<size_t>(interleaved ? 2 * j + 1 : j + half)];
    const double u = a * std::cos(angle) - b * std::sin(angle);
    b = a * std::sin(angle) + b * std::cos(angle);
    a = u;
  }
}

// U^T x: the Hadamard matrix by its definition, entry (-1)^popcount(i & j) / sqrt(B).
Row from_codes(const Row& x, const float* signs) {
  const size_t dim = x.size(), block = dim & (~dim + 1);
  Row out(dim, 0.0);
  for (size_t i = 0; i < dim; ++i) {
    const size_t base = i / block * block;
    for (size_t j = 0; j < block; ++j) {
      const bool negative = std::popcount((i - base) & j) % 2 != 0;
      out[i] += negative ? -x[base + j] : x[base + j];
    }
    out[i] *= static_cast<double>(signs[i]) / std::sqrt(static_cast<double>(block));
  }
  return out;
}

Row row_of(const bf16* p, int dim) {
  Row out(static_cast<size_t>(dim));
  for (int d = 0; d < dim; ++d) out[static_cast<size_t>(d)] = static_cast<double>(to_float(p[d]));
  return out;
}

double coefficient(const CompressedSideView& side, int64_t t) {
  if (side.gamma16 != nullptr) return static_cast<double>(to_float(side.gamma16[t]));
  const int byte = side.gamma8[t], n = byte & 127;
  if (n == 0) return 0.0;
  return (byte & 128 ? -1.0 : 1.0) * std::exp2((n - 1) / 16.0 - 5.0);
}

constexpr double kLevels2[] = {-1.5104, -0.4528, 0.4528, 1.5104};
constexpr double kLevels4[] = {0.1284, 0.3881, 0.6568, 0.9424, 1.2562, 1.6181, 2.0690, 2.7326};

double level(bool four_bits, uint32_t code) {
  if (!four_bits) return kLevels2[code];
  return code < 8 ? -kLevels4[7 - code] : kLevels4[code - 8];
}

// rtilde_t = scale U^T level(codes), zero where there is no residual.
Row residual(const CompressedSideView& side, int64_t t, int dim, int group, const float* signs) {
  Row x(static_cast<size_t>(dim), 0.0);
  if (side.n2 + side.n4 == 0 || ((side.mask[t / 64] >> (t % 64)) & 1) == 0) return x;
  const ResidualPlace place = residual_place(side, t);
  const int bits = place.four_bits ? 4 : 2, per_word = 32 / bits;
  const uint8_t* codes = place.four_bits ? side.codes4 : side.codes2;
  const float* scale_f32 = place.four_bits ? side.scale4_f32 : side.scale2_f32;
  const bf16* scale_bf16 = place.four_bits ? side.scale4_bf16 : side.scale2_bf16;
  const double scale = static_cast<double>(
      scale_f32 != nullptr ? scale_f32[place.index] : to_float(scale_bf16[place.index]));
  for (int d = 0; d < dim; ++d) {
    const uint8_t* word = codes + code_word_offset(place.index, place.four_bits ? side.n4 : side.n2,
                                                   d / per_word, dim / per_word, group);
    const int bit = d % per_word * bits;
    const uint32_t code = static_cast<uint32_t>(word[bit / 8] >> (bit % 8)) & ((1u << bits) - 1);
    x[static_cast<size_t>(d)] = scale * level(place.four_bits, code);
  }
  return from_codes(x, signs);
}

int slot_of(const CompressedSideView& side, int64_t t) {
  return side.slots8 != nullptr ? side.slots8[t] : side.slots16[t];
}

// Rotated keys and values of one KV head, all tokens of the row's context.
struct Rows {
  std::vector<Row> keys, values;
};

void rebuild(const CompressedLayerView& layer, int kv_head, int window_drop, const RopeTable& rope,
             Rows* out) {
  const CompressedHeadView& head = layer.heads[kv_head];
  const int dim = layer.head_dim;
  for (int64_t t = 0; t < layer.tokens - window_drop; ++t) {
    const bool window = t >= layer.prefix;
    const int64_t window_slot = layer.anchors - layer.window + t - layer.prefix;
    const int64_t key_slot = window ? window_slot : slot_of(head.key, t);
    const int64_t value_slot = window ? window_slot : slot_of(head.value, t);
    Row key = row_of(head.key.anchors + key_slot * dim, dim);
    Row value = row_of(head.value.anchors + value_slot * dim, dim);
    if (!window) {
      for (double& x : key) x *= coefficient(head.key, t);
      for (double& x : value) x *= coefficient(head.value, t);
    }
    const size_t size = key.size();
    Row r(size, 0.0);
    if (!window) r = residual(head.key, t, dim, kKeyCodeGroup, layer.signs);
    if (!layer.key_domain_post) {
      for (size_t d = 0; d < size; ++d) key[d] += r[d];
    }
    rotate(rope, t, &key);
    if (layer.key_domain_post) {
      for (size_t d = 0; d < size; ++d) key[d] += r[d];
    }
    if (!window) {
      r = residual(head.value, t, dim, kValueCodeGroup, layer.signs);
      for (size_t d = 0; d < size; ++d) value[d] += r[d];
    }
    out->keys.push_back(std::move(key));
    out->values.push_back(std::move(value));
  }
}

void add_dense(const AttentionRow& row, int kv_head, int kv_heads, int dim, Rows* out) {
  if (row.dense_prompt != nullptr) {
    const DenseLayerView& layer = *row.dense_prompt;
    for (int64_t t = 0; t < layer.tokens - row.window_drop; ++t) {
      const int64_t offset = (int64_t{kv_head} * layer.tokens + t) * dim;
      out->keys.push_back(row_of(layer.k + offset, dim));
      out->values.push_back(row_of(layer.v + offset, dim));
    }
  }
  for (int t = 0; t < row.suffix.tokens; ++t) {
    const bf16* page = row.suffix.pages[t / kSuffixPageTokens] + row.suffix.layer_offset;
    const int64_t offset = (int64_t{t % kSuffixPageTokens} * kv_heads + kv_head) * dim;
    out->keys.push_back(row_of(page + offset, dim));
    out->values.push_back(row_of(page + int64_t{kSuffixPageTokens} * kv_heads * dim + offset, dim));
  }
}

void attend(const Rows& rows, const float* q, int dim, float* out) {
  std::vector<double> logits;
  for (const Row& key : rows.keys) {
    double dot = 0;
    for (int d = 0; d < dim; ++d) dot += static_cast<double>(q[d]) * key[static_cast<size_t>(d)];
    logits.push_back(dot / std::sqrt(static_cast<double>(dim)));
  }
  double total = 0;
  Row sum(static_cast<size_t>(dim), 0.0);
  const double peak = logits.empty() ? 0 : *std::max_element(logits.begin(), logits.end());
  for (size_t t = 0; t < logits.size(); ++t) {
    const double p = std::exp(logits[t] - peak);
    total += p;
    for (size_t d = 0; d < sum.size(); ++d) sum[d] += p * rows.values[t][d];
  }
  for (size_t d = 0; d < sum.size(); ++d) {
    out[d] = logits.empty() ? 0.0f : static_cast<float>(sum[d] / total);
  }
}

}  // namespace

void decode_attention(const AttentionRow& row, int heads, const RopeTable& rope) {
  const bool compressed = row.prompt != nullptr;
  const int dim = compressed ? row.prompt->head_dim : row.dense_prompt->head_dim;
  const int kv_heads = compressed ? row.prompt->kv_heads : row.dense_prompt->kv_heads;
  const int group = heads / kv_heads;
  for (int kv_head = 0; kv_head < kv_heads; ++kv_head) {
    Rows rows;
    if (compressed) rebuild(*row.prompt, kv_head, row.window_drop, rope, &rows);
    add_dense(row, kv_head, kv_heads, dim, &rows);
    for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      attend(rows, row.q + int64_t{h} * dim, dim, row.out + int64_t{h} * dim);
    }
  }
}

}  // namespace akv::kernels::reference
