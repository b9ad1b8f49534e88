// One dense piece: tokens of a dense prompt or of suffix pages, bf16, keys after RoPE. Every warp
// takes tiles of 16 tokens with a softmax of its own; keys and values go from global memory to MMA
// operands without shared memory, as both products are free to order their summed dimension.
#pragma once

#include "kernels/cuda/decode_attention/arguments.h"
#include "kernels/cuda/decode_attention/registers.h"

namespace akv::kernels::cuda::decode {

// Where token t's rows of one KV head lie.
struct DenseRows {
  const bf16* k = nullptr;  // a dense prompt's
  const bf16* v = nullptr;
  const bf16* const* pages = nullptr;  // a suffix's
  int64_t offset = 0;                  // of this layer and head in a page
  int64_t values = 0;                  // from a key to its value in a page
  int64_t stride = 0;                  // elements between tokens

  AKV_DEVICE const bf16* key(int t) const {
    if (pages == nullptr) return k + t * stride;
    return pages[t / kSuffixPageTokens] + offset + t % kSuffixPageTokens * stride;
  }
  AKV_DEVICE const bf16* value(int t) const {
    return pages == nullptr ? v + t * stride : key(t) + values;
  }
};

// 16 bytes of a row, aligned to 16, or to 8 as dense records are.
template <bool Wide>
AKV_DEVICE uint4 row16(const bf16* p) {
  return load16(p, Wide ? 16 : 8);
}

template <int D, int Heads>
struct DenseWork {
  using L = Layout<D, Heads>;
  static constexpr int kWords = D / 16;  // pairs of value dimensions per thread and token

  DenseRows rows;
  unsigned char* shared;
  const float* q;
  int heads;
  int begin, end;
  int tid, warp, lane, g, t;
};

// Softmax of a warp: of head g, the same in the four lanes of g.
template <int D>
struct DenseState {
  float peak = -INFINITY;
  float total = 0;
  float out[D / 16][4] = {};  // rows: dimensions g D/8 + 2m and + 1; columns: heads
};

// Queries as A operand: rows g their bf16, rows g + 8 what bf16 leaves of them, so that the product
// has the queries' f32 for free. Unit u of a row gives two steps of four neighbours.
template <int D, int Heads>
AKV_DEVICE void write_dense_queries(const DenseWork<D, Heads>& w) {
  const float to_base2 = 1.4426950408889634f * rsqrtf(static_cast<float>(D));
  auto* fragments = shared_at_u4(w.shared);
  for (int i = w.tid; i < Layout<D, Heads>::kUnits * 64; i += kThreads) {
    const int lane = i % 32, head = lane / 4;
    const int d = (lane % 4 + i / 64 * 4) * 8 + i / 32 % 2 * 4;
    float x[4] = {};
    for (int k = 0; k < 4 && head < w.heads; ++k) x[k] = __ldg(w.q + head * D + d + k) * to_base2;
    uint4 r;
    r.x = pack_bf16x2(x[0], x[1]);
    r.y = pack_bf16x2(x[0] - low_bf16(r.x), x[1] - high_bf16(r.x));
    r.z = pack_bf16x2(x[2], x[3]);
    r.w = pack_bf16x2(x[2] - low_bf16(r.z), x[3] - high_bf16(r.z));
    fragments[i] = r;
  }
}

// Base-2 logits of head g and tokens first + 2t, 2t + 1, 2t + 8, 2t + 9; -inf from `end` on.
template <bool Wide, int D, int Heads>
AKV_DEVICE void dense_logits(const DenseWork<D, Heads>& w, int first, float (&x)[4]) {
  constexpr int kUnits = Layout<D, Heads>::kUnits;
  const int last = w.end - 1;
  const bf16* key0 = w.rows.key(first + w.g < last ? first + w.g : last);
  const bf16* key1 = w.rows.key(first + w.g + 8 < last ? first + w.g + 8 : last);
  const uint4* fragments = shared_at_u4(w.shared) + w.lane;
  float s0[4] = {}, s1[4] = {};
#pragma unroll 2  // all at once, their registers would spill
  for (int v = 0; v < kUnits; ++v) {
    const uint4 a = row16<Wide>(key0 + (w.t + 4 * v) * 8);
    const uint4 b = row16<Wide>(key1 + (w.t + 4 * v) * 8);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const uint4 q = fragments[(2 * v + step) * 32];
      const uint32_t query[4] = {q.x, q.y, q.z, q.w};
      const uint32_t k0[2] = {step == 0 ? a.x : a.z, step == 0 ? a.y : a.w};
      const uint32_t k1[2] = {step == 0 ? b.x : b.z, step == 0 ? b.y : b.w};
      mma_bf16(s0, query, k0);
      mma_bf16(s1, query, k1);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int token = first + 2 * w.t + i % 2 + i / 2 * 8;
    const float logit = i < 2 ? s0[i] + s0[i + 2] : s1[i - 2] + s1[i];
    x[i] = token < w.end ? logit : -INFINITY;
  }
}

// Weights of the four tokens as B operand; the running sums take the rounded weights, so that one
// token alone comes out exactly.
template <int D>
AKV_DEVICE void dense_softmax(const float (&x)[4], int t, DenseState<D>* s, uint32_t (&p)[2]) {
  float peak = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
  peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 1));
  peak = fmaxf(s->peak, fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 2)));
  const float scale = exp2_approx(s->peak - peak);
  s->peak = peak;
  p[0] = pack_bf16x2(exp2_approx(x[0] - peak), exp2_approx(x[1] - peak));
  p[1] = pack_bf16x2(exp2_approx(x[2] - peak), exp2_approx(x[3] - peak));
  float sum = low_bf16(p[0]) + high_bf16(p[0]) + low_bf16(p[1]) + high_bf16(p[1]);
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  s->total = s->total * scale + sum;
  if (!__any_sync(0xffffffffu, scale != 1.0f)) return;
  const float even = __shfl_sync(0xffffffffu, scale, 8 * t);
  const float odd = __shfl_sync(0xffffffffu, scale, 8 * t + 4);
#pragma unroll
  for (int m = 0; m < D / 16; ++m) {
    s->out[m][0] *= even;
    s->out[m][1] *= odd;
    s->out[m][2] *= even;
    s->out[m][3] *= odd;
  }
}

// out += values x weights. A thread reads D/8 neighbouring dimensions of four tokens.
template <bool Wide, int D, int Heads>
AKV_DEVICE void dense_values(const DenseWork<D, Heads>& w, int first, const uint32_t (&p)[2],
                             DenseState<D>* s) {
  const bf16* row[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int token = first + 2 * w.t + i % 2 + i / 2 * 8;
    row[i] = w.rows.value(token < w.end ? token : w.end - 1) + w.g * (D / 8);
  }
  constexpr int kWide = D % 64 == 0 ? 4 : 2;  // words per load
#pragma unroll
  for (int m = 0; m < D / 16; m += kWide) {
    uint32_t x[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kWide == 4) {
        const uint4 v = row16<Wide>(row[i] + 2 * m);
        x[i][0] = v.x, x[i][1] = v.y, x[i][2] = v.z, x[i][3] = v.w;
      } else {
        const uint2 v = load8(row[i] + 2 * m, 8);
        x[i][0] = v.x, x[i][1] = v.y;
      }
    }
#pragma unroll
    for (int k = 0; k < kWide; ++k) {
      const uint32_t a[4] = {low_pair(x[0][k], x[1][k]), high_pair(x[0][k], x[1][k]),
                             low_pair(x[2][k], x[3][k]), high_pair(x[2][k], x[3][k])};
      mma_bf16(s->out[m + k], a, p);
    }
  }
}

// The warps' results, in their order, to the piece's partial one.
template <int D, int Heads>
AKV_DEVICE void merge_dense(const DenseWork<D, Heads>& w, const DenseState<D>& s, float* partial) {
  using L = Layout<D, Heads>;
  auto* out = reinterpret_cast<float*>(w.shared + L::kDenseMerge);
  auto* stats = reinterpret_cast<float*>(w.shared + L::kDenseStats);
#pragma unroll
  for (int m = 0; m < D / 16; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int head = 2 * w.t + i % 2;
      if (head >= Heads) continue;
      out[(w.warp * Heads + head) * D + w.g * (D / 8) + 2 * m + i / 2] = s.out[m][i];
    }
  }
  if (w.t == 0 && w.g < Heads) {
    stats[(w.warp * Heads + w.g) * 2] = s.peak;
    stats[(w.warp * Heads + w.g) * 2 + 1] = s.total;
  }
  __syncthreads();
  for (int i = w.tid; i < w.heads * D; i += kThreads) {
    const int head = i / D, d = i % D;
    float peak = -INFINITY, total = 0, sum = 0;
    for (int k = 0; k < kWarps; ++k) peak = fmaxf(peak, stats[(k * Heads + head) * 2]);
    for (int k = 0; k < kWarps; ++k) {
      const float weight = exp2_approx(stats[(k * Heads + head) * 2] - peak);
      total += weight * stats[(k * Heads + head) * 2 + 1];
      sum += weight * out[(k * Heads + head) * D + d];
    }
    partial[head * partial_stride(D) + 2 + d] = sum;
    if (d == 0) {
      partial[head * partial_stride(D)] = peak;
      partial[head * partial_stride(D) + 1] = total;
    }
  }
}

template <bool Wide, int D, int Heads>
AKV_DEVICE void attend_dense(const DenseWork<D, Heads>& w, float* partial) {
  DenseState<D> s;
#pragma unroll 1
  for (int t = w.begin + 16 * w.warp; t < w.end; t += 16 * kWarps) {
    float x[4];
    uint32_t p[2];
    dense_logits<Wide>(w, t, x);
    dense_softmax(x, w.t, &s, p);
    dense_values<Wide>(w, t, p, &s);
  }
  merge_dense(w, s, partial);
}

template <int D, int Heads>
AKV_DEVICE void run_dense(const KernelArgs& args, unsigned char* shared, const Piece& piece,
                          const DenseRows& rows, float* partial) {
  const int group = args.heads / args.kv_heads, first = part_begin(group, piece.part);
  DenseWork<D, Heads> w;
  w.rows = rows;
  w.shared = shared;
  w.q = args.q + (int64_t{piece.row} * args.heads + piece.kv_head * group + first) * D;
  w.heads = part_begin(group, piece.part + 1) - first;
  w.begin = piece.begin;
  w.end = piece.end;
  w.tid = thread_index();
  w.warp = w.tid / 32;
  w.lane = w.tid % 32;
  w.g = w.lane / 4;
  w.t = w.lane % 4;
  write_dense_queries(w);
  __syncthreads();
  // Rows are whole multiples of 32 bytes apart: the first one speaks for all.
  if (alignment(rows.key(piece.begin)) == 16 && alignment(rows.value(piece.begin)) == 16) {
    attend_dense<true>(w, partial);
  } else {
    attend_dense<false>(w, partial);
  }
}

}  // namespace akv::kernels::cuda::decode
