// One task over dense tokens: a dense prompt's, or a suffix's pages. Included after
// attention_compressed-inl.h, in the same namespace.
#pragma once

#include "kernels/cpu/attention_kernels.h"

namespace akv::kernels::attention::AKV_SIMD {

template <int kHeads>
struct DenseState {
  int head_dim = 0;
  const float* q = nullptr;  // [kHeads][head_dim], in base-2 units
  float peak[kHeads];
  float total[kHeads];
  float* out = nullptr;  // [kHeads][stride]
  int stride = 0;
};

// out[h] += p[h][i] v_i over the chunk, for kBlocks * 16 coordinates.
template <int kHeads, int kBlocks>
static inline void dense_values(const DenseChunk& chunk, const float* p, float* out, int stride) {
  F acc[kHeads][kBlocks * kVec];
  for (int h = 0; h < kHeads; ++h) {
    for (int b = 0; b < kBlocks * kVec; ++b) acc[h][b] = load(out + h * stride + b * kLanes);
  }
  const bf16* row = chunk.v;
  for (int i = 0; i < chunk.count; ++i, row += chunk.stride) {
    F v[kBlocks * kVec];
    for (int b = 0; b < kBlocks * kVec; ++b) v[b] = load_bf16(row + b * kLanes);
    for (int h = 0; h < kHeads; ++h) {
      const F weight = set1(p[h * kDenseChunk + i]);
      for (int b = 0; b < kBlocks * kVec; ++b) acc[h][b] = fma(weight, v[b], acc[h][b]);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int b = 0; b < kBlocks * kVec; ++b) store(out + h * stride + b * kLanes, acc[h][b]);
  }
}

template <int kHeads>
static void dense_chunk(DenseState<kHeads>* s, const DenseChunk& chunk) {
  alignas(64) float p[kHeads][kDenseChunk];
  for (int i = 0; i < chunk.count; i += 4) {
    const bf16* rows[4];
    for (int u = 0; u < 4; ++u) {
      rows[u] = chunk.k + smaller(i + u, chunk.count - 1) * chunk.stride;
    }
    dense_dots<kHeads>(s->q, rows, s->head_dim, &p[0][i], kDenseChunk);
  }
  const int padded = (chunk.count + kLanes - 1) / kLanes * kLanes;
  for (int h = 0; h < kHeads; ++h) {
    for (int i = chunk.count; i < padded; ++i) p[h][i] = kNever;
    F top = load(p[h]);
    for (int i = kLanes; i < padded; i += kLanes) top = max(top, load(p[h] + i));
    const float peak = highest(top);
    if (peak > s->peak[h]) {
      const float factor = exp2_one_of(s->peak[h] - peak);
      s->peak[h] = peak;
      s->total[h] *= factor;
      for (int d = 0; d < s->head_dim; ++d) s->out[h * s->stride + d] *= factor;
    }
    const F shift = set1(s->peak[h]);
    F total = zero();
    for (int i = 0; i < padded; i += kLanes) {
      const F e = exp2(sub(load(p[h] + i), shift));
      store(p[h] + i, e);
      total = add(total, e);
    }
    s->total[h] += sum(total);
  }
  DenseChunk part = chunk;
  int d = 0;
  if constexpr (kLanes == 16) {
    for (; d + 64 <= s->head_dim; d += 64, part.v += 64) {
      dense_values<kHeads, 4>(part, p[0], s->out + d, s->stride);
    }
  }
  for (; d < s->head_dim; d += 16, part.v += 16) {
    dense_values<kHeads, 1>(part, p[0], s->out + d, s->stride);
  }
}

// The chunk of tokens from t on; chunks end at page borders.
static DenseChunk chunk_at(const DenseTask& task, int64_t t) {
  DenseChunk chunk;
  if (task.k != nullptr) {
    chunk.stride = task.head_dim;
    chunk.k = task.k + t * chunk.stride;
    chunk.v = task.v + t * chunk.stride;
    chunk.count = static_cast<int>(smaller(kDenseChunk, task.end - t));
    return chunk;
  }
  const int64_t in_page = t % kSuffixPageTokens;
  chunk.stride = static_cast<int64_t>(task.kv_heads) * task.head_dim;
  const bf16* page = task.suffix.pages[t / kSuffixPageTokens] + task.suffix.layer_offset +
                     task.kv_head * task.head_dim;
  chunk.k = page + in_page * chunk.stride;
  chunk.v = chunk.k + kSuffixPageTokens * chunk.stride;
  chunk.count = static_cast<int>(smaller(kSuffixPageTokens - in_page, task.end - t));
  return chunk;
}

template <int kHeads>
static void run_dense(const DenseTask& task) {
  static_assert(kDenseChunk >= kSuffixPageTokens);
  DenseState<kHeads> s;
  alignas(64) float q[kHeads * kMaxHeadDim];
  const float unit = 1.44269504f / __builtin_sqrtf(static_cast<float>(task.head_dim));
  for (int i = 0; i < kHeads * task.head_dim; ++i) q[i] = task.q[i] * unit;
  s.q = q;
  s.head_dim = task.head_dim;
  s.stride = task.head_dim + 2;
  s.out = task.partial + 2;
  for (int h = 0; h < kHeads; ++h) {
    s.peak[h] = kNever;
    s.total[h] = 0;
    for (int d = 0; d < task.head_dim; ++d) s.out[h * s.stride + d] = 0;
  }
  for (int64_t t = task.begin; t < task.end;) {
    const DenseChunk chunk = chunk_at(task, t);
    dense_chunk(&s, chunk);
    t += chunk.count;
  }
  for (int h = 0; h < kHeads; ++h) {
    task.partial[h * s.stride] = s.peak[h];
    task.partial[h * s.stride + 1] = s.total[h];
  }
}

static void dense(const DenseTask& task) {
  switch (task.heads) {
    case 1:
      return run_dense<1>(task);
    case 2:
      return run_dense<2>(task);
    case 3:
      return run_dense<3>(task);
    default:
      return run_dense<4>(task);
  }
}

}  // namespace akv::kernels::attention::AKV_SIMD
