// One task over a compressed prompt: tables, tiles of logits, softmax, histogram. Included after
// attention_residual-inl.h, in the same namespace.
#pragma once

#include "kernels/cpu/attention_kernels.h"

namespace akv::kernels::attention::AKV_SIMD {

inline constexpr float kNever = -1e30f;  // a logit that no softmax sees
inline constexpr int kPad = kTile + 16;

typedef float F4 __attribute__((vector_size(16), may_alias));

static inline float exp2_one_of(float x) {
  alignas(64) float out[kLanes];
  store(out, exp2(set1(x)));
  return out[0];
}

// Turns <q, k> into a logit in base-2 units.
static inline float base2_unit(int head_dim) {
  return 1.44269504f / __builtin_sqrtf(static_cast<float>(head_dim));
}

// ---- W tables

// Splits a row into its RoPE pairs (x_j, y_j), j < half, as f32; writes up to kLanes past half.
static inline void split_pairs(const bf16* row, const PhaseView& phases, float* x, float* y) {
  const int half = phases.half;
  bf16 copy[kMaxHeadDim + 64] = {};
  if (half % kLanes != 0) {  // do not read past the row
    __builtin_memcpy(copy, row, static_cast<size_t>(2 * half) * sizeof(bf16));
    row = copy;
  }
  for (int j = 0; j < half; j += kLanes) {
    F a, b;
    if (phases.interleaved) {
      load_bf16_pairs(row + 2 * j, &a, &b);
    } else {
      a = load_bf16(row + j);
      b = load_bf16(row + half + j);
    }
    store(x + j, a);
    store(y + j, b);
  }
}

struct HeadQuery {
  alignas(64) float x[kMaxHeadDim / 2 + 16];  // RoPE pairs of q
  alignas(64) float y[kMaxHeadDim / 2 + 16];
  float scale = 0;  // fixed-point units per unit of W
};

// What the fixed-point scale must respect, over all anchors: the largest squared norm, the largest
// squared norm of each pair, and of the dimensions that RoPE leaves alone.
struct AnchorBounds {
  float norm2 = 0;
  float rest2 = 0;
  alignas(64) float pair2[kMaxHeadDim / 2 + 16] = {};
};

static void bound_anchors(const bf16* anchors, int count, int head_dim, const PhaseView& phases,
                          AnchorBounds* bounds) {
  alignas(64) float x[kMaxHeadDim / 2 + 16], y[kMaxHeadDim / 2 + 16];
  for (int a = 0; a < count; ++a) {
    const bf16* row = anchors + static_cast<int64_t>(a) * head_dim;
    split_pairs(row, phases, x, y);
    for (int j = phases.half; j < phases.half + 16; ++j) x[j] = y[j] = 0;
    F total = zero();
    for (int j = 0; j < phases.half; j += kLanes) {
      const F u = load(x + j), v = load(y + j);
      const F square = fma(u, u, mul(v, v));
      total = add(total, square);
      store(bounds->pair2 + j, max(load(bounds->pair2 + j), square));
    }
    float rest = 0;
    for (int d = 2 * phases.half; d < head_dim; ++d)
      rest += widen_bf16(row[d]) * widen_bf16(row[d]);
    const float norm2 = sum(total) + rest;
    if (norm2 > bounds->norm2) bounds->norm2 = norm2;
    if (rest > bounds->rest2) bounds->rest2 = rest;
  }
}

static void prepare_query(const float* q, int head_dim, const PhaseView& phases,
                          const AnchorBounds& bounds, HeadQuery* out) {
  const int step = phases.interleaved ? 2 : 1;
  const int partner = phases.interleaved ? 1 : phases.half;
  float norm2 = 0, rest2 = 0, largest2 = 0;
  for (int d = 0; d < head_dim; ++d) norm2 += q[d] * q[d];
  for (int d = 2 * phases.half; d < head_dim; ++d) rest2 += q[d] * q[d];
  for (int j = 0; j < phases.half; ++j) {
    const float x = q[j * step], y = q[j * step + partner];
    out->x[j] = x;
    out->y[j] = y;
    const float bound = (x * x + y * y) * bounds.pair2[j];
    if (bound > largest2) largest2 = bound;
  }
  for (int j = phases.half; j < phases.half + 16; ++j) out->x[j] = out->y[j] = 0;
  if (rest2 * bounds.rest2 > largest2) largest2 = rest2 * bounds.rest2;
  const float tiny = 1e-30f;
  const float by_sum = kTableBound / (__builtin_sqrtf(norm2 * bounds.norm2) + tiny);
  const float by_entry = kTableMax / (__builtin_sqrtf(largest2) + tiny);
  out->scale = by_sum < by_entry ? by_sum : by_entry;
}

// One row of the table: (A_j | B_j | rest | 0) of one anchor and one head.
static inline void table_row(const float* x, const float* y, float rest, const HeadQuery& q,
                             const PhaseView& phases, int16_t* out) {
  const int half = phases.half;
  const F scale = set1(q.scale);
  alignas(64) float row[kMaxHeadDim + 64];
  const bool direct = half % kLanes == 0;  // else B would overwrite what A wrote past its end
  for (int j = 0; j < half; j += kLanes) {
    const F kx = load(x + j), ky = load(y + j), qx = load(q.x + j), qy = load(q.y + j);
    const F a = mul(scale, fma(qx, kx, mul(qy, ky)));
    if (direct) {
      store_i16(out + j, a);
      store_i16(out + half + j, mul(scale, fnma(qx, ky, mul(qy, kx))));
    } else {
      store(row + j, a);
    }
  }
  if (direct) {
    if (2 * half == phases.stride) return;
  } else {
    for (int j = 0; j < half; j += kLanes) {
      const F kx = load(x + j), ky = load(y + j), qx = load(q.x + j), qy = load(q.y + j);
      store(row + half + j, mul(scale, fnma(qx, ky, mul(qy, kx))));
    }
  }
  for (int j = 2 * half; j < phases.stride; ++j) row[j] = 0;
  row[2 * half] = rest * q.scale;
  const int first = direct ? 2 * half / kLanes * kLanes : 0;
  for (int j = first; j < phases.stride; j += kLanes) store_i16(out + j, load(row + j));
}

// W for all anchors and heads of a task, in fixed point.
static void build_table(const CompressedTask& task) {
  WorkerArena& arena = *task.arena;
  const int head_dim = task.layer->head_dim, count = task.layer->anchors;
  const bf16* anchors = task.head->key.anchors;
  AnchorBounds bounds;
  bound_anchors(anchors, count, head_dim, task.phases, &bounds);
  HeadQuery queries[kGroupHeads];
  for (int h = 0; h < task.heads; ++h) {
    prepare_query(task.q + h * head_dim, head_dim, task.phases, bounds, &queries[h]);
    arena.table_unit[h] = base2_unit(head_dim) / (queries[h].scale * kPhaseOne);
  }
  int16_t* out = arena.table;
  alignas(64) float x[kMaxHeadDim / 2 + 16], y[kMaxHeadDim / 2 + 16];
  for (int a = 0; a < count; ++a) {
    const bf16* row = anchors + static_cast<int64_t>(a) * head_dim;
    split_pairs(row, task.phases, x, y);
    for (int h = 0; h < task.heads; ++h, out += task.phases.stride) {
      float rest = 0;
      for (int d = 2 * task.phases.half; d < head_dim; ++d) {
        rest += task.q[h * head_dim + d] * widen_bf16(row[d]);
      }
      table_row(x, y, rest, queries[h], task.phases, out);
    }
  }
}

// Fills the arena with what depends on the query alone: W and U q. Nothing to do where it is there
// already.
static void prepare_arena(const CompressedTask& task) {
  WorkerArena& arena = *task.arena;
  if (arena.table_key == task.table_key) return;
  if (task.use_table) build_table(task);
  const int head_dim = task.layer->head_dim;
  for (int h = 0; h < task.heads; ++h) {
    float* query = arena.code_query + h * head_dim;
    for (int d = 0; d < head_dim; ++d) query[d] = task.q[h * head_dim + d] * base2_unit(head_dim);
    if (task.layer->key_domain_post) rotate_to_codes(query, task.layer->signs, head_dim);
  }
  arena.table_key = task.table_key;
}

// ---- tiles

// Slots as byte offsets into a table of `row_bytes` rows and coefficients as f32, for n tokens from
// t on. The tail up to a multiple of kLanes gets slot 0 and coefficient 0.
static inline void unpack_vector(const uint8_t* slots8, const uint16_t* slots16,
                                 const uint8_t* gamma8, const bf16* gamma16, uint32_t row_bytes,
                                 uint32_t* offsets, float* gammas) {
  const I slots = slots8 != nullptr ? load_u8(slots8) : load_u16(slots16);
  store_scaled(offsets, slots, row_bytes);
  store(gammas, gamma8 != nullptr ? log8(gamma8) : load_bf16(gamma16));
}

static void unpack_side(const CompressedSideView& side, int64_t t, int n, uint32_t row_bytes,
                        uint32_t* offsets, float* gammas) {
  const uint8_t* slots8 = side.slots8 == nullptr ? nullptr : side.slots8 + t;
  const uint16_t* slots16 = side.slots16 == nullptr ? nullptr : side.slots16 + t;
  const uint8_t* gamma8 = side.gamma8 == nullptr ? nullptr : side.gamma8 + t;
  const bf16* gamma16 = side.gamma16 == nullptr ? nullptr : side.gamma16 + t;
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    unpack_vector(slots8 == nullptr ? nullptr : slots8 + i,
                  slots16 == nullptr ? nullptr : slots16 + i,
                  gamma8 == nullptr ? nullptr : gamma8 + i,
                  gamma16 == nullptr ? nullptr : gamma16 + i, row_bytes, offsets + i, gammas + i);
  }
  if (i == n) return;
  const size_t left = static_cast<size_t>(n - i);
  uint8_t tail_slots8[16] = {}, tail_gamma8[16] = {};
  uint16_t tail_slots16[16] = {};
  bf16 tail_gamma16[16] = {};
  if (slots8 != nullptr) __builtin_memcpy(tail_slots8, slots8 + i, left);
  if (slots16 != nullptr) __builtin_memcpy(tail_slots16, slots16 + i, left * 2);
  if (gamma8 != nullptr) __builtin_memcpy(tail_gamma8, gamma8 + i, left);
  if (gamma16 != nullptr) __builtin_memcpy(tail_gamma16, gamma16 + i, left * 2);
  unpack_vector(slots8 == nullptr ? nullptr : tail_slots8, tail_slots16,
                gamma8 == nullptr ? nullptr : tail_gamma8, tail_gamma16, row_bytes, offsets + i,
                gammas + i);
}

template <int kHeads>
struct CompressedState {
  const CompressedTask* task = nullptr;
  int head_dim = 0;
  float peak[kHeads];  // running maximum, base-2 units
  F total[kHeads];     // running sum by lane
  alignas(64) float z[kHeads * kMaxHeadDim];
  alignas(64) float logits[kGroupHeads][kPad];
  alignas(64) uint32_t key_offsets[kPad];
  alignas(64) uint32_t value_offsets[kPad];
  alignas(64) float key_gammas[kPad];
  alignas(64) float value_gammas[kPad];
  KeyResiduals<kHeads, 2> residuals2;
  KeyResiduals<kHeads, 4> residuals4;
};

// logits[h][i] += unit_h gamma_i <phi(t_i), W>, the anchor term of n tokens; the padding becomes
// kNever. top[h] gets the lanes' maxima.
template <int kHeads, int kVectors>
static void anchor_logits(CompressedState<kHeads>* s, const int16_t* phases, int n, F* top) {
  const WorkerArena& arena = *s->task->arena;
  for (int h = 0; h < kHeads; ++h) top[h] = set1(kNever);
  for (int i = 0; i < n; i += kLanes) {
    F dots[kHeads];
    phase_dots<kHeads, kVectors>(phases + i * kVectors * 32, arena.table, s->key_offsets + i, dots);
    const F gamma = load(s->key_gammas + i);
    const bool last = i + kLanes > n;
    for (int h = 0; h < kHeads; ++h) {
      float* logits = s->logits[h] + i;
      F sum = fma(mul(dots[h], set1(arena.table_unit[h])), gamma, load(logits));
      if (last) {
        store(logits, sum);
        for (int j = n - i; j < kLanes; ++j) logits[j] = kNever;
        sum = load(logits);
      }
      store(logits, sum);
      top[h] = max(top[h], sum);
    }
  }
}

// RoPE pairs of the queries, scaled for turned_row.
template <int kHeads>
struct TurnedQueries {
  alignas(64) float x[kHeads][kMaxHeadDim / 2];
  alignas(64) float y[kHeads][kMaxHeadDim / 2];

  explicit TurnedQueries(const CompressedTask& task) {
    const PhaseView& view = task.phases;
    const int head_dim = task.layer->head_dim;
    const int partner = view.interleaved ? 1 : view.half, step = view.interleaved ? 2 : 1;
    const float unit = base2_unit(head_dim) / kPhaseOne;
    for (int h = 0; h < kHeads; ++h) {
      for (int j = 0; j < view.half; ++j) {
        x[h][j] = task.q[h * head_dim + j * step] * unit;
        y[h][j] = task.q[h * head_dim + j * step + partner] * unit;
      }
    }
  }
};

// acc[h * step] = partial sums of <q_h, R_t anchor>, the anchor turned once for all heads.
template <int kHeads>
static inline void turned_row(const CompressedTask& task, const TurnedQueries<kHeads>& queries,
                              const bf16* row, const int16_t* phase, F* acc, int step) {
  const int half = task.phases.half, head_dim = task.layer->head_dim;
  F sums[kHeads];
  for (int h = 0; h < kHeads; ++h) sums[h] = zero();
  for (int j = 0; j < half; j += kLanes) {
    F x, y;
    if (task.phases.interleaved) {
      load_bf16_pairs(row + 2 * j, &x, &y);
    } else {
      x = load_bf16(row + j);
      y = load_bf16(row + half + j);
    }
    const F cosine = load_i16_as_f32(phase + j), sine = load_i16_as_f32(phase + half + j);
    const F turned_x = fnma(y, sine, mul(x, cosine)), turned_y = fma(y, cosine, mul(x, sine));
    for (int h = 0; h < kHeads; ++h) {
      sums[h] = fma(turned_x, load(queries.x[h] + j), sums[h]);
      sums[h] = fma(turned_y, load(queries.y[h] + j), sums[h]);
    }
  }
  for (int d = 2 * half; d < head_dim; d += kLanes) {  // dimensions that RoPE leaves alone
    const F k = mul(load_bf16(row + d), set1(base2_unit(head_dim)));
    for (int h = 0; h < kHeads; ++h) sums[h] = fma(k, load(task.q + h * head_dim + d), sums[h]);
  }
  for (int h = 0; h < kHeads; ++h) acc[h * step] = sums[h];
}

// anchor_logits without a table: each token's anchor is turned by its angles and multiplied with
// all heads. For tables that no cache would hold.
template <int kHeads>
static void turned_logits(CompressedState<kHeads>* s, const int16_t* phases, int n, F* top) {
  const CompressedTask& task = *s->task;
  const TurnedQueries<kHeads> queries(task);
  alignas(64) float dots[kHeads][kPad];
  for (int i = 0; i < n; i += 4) {
    F acc[kHeads][4];
    for (int u = 0; u < 4; ++u) {
      const bf16* row = task.head->key.anchors + int64_t{s->key_offsets[i + u]} * s->head_dim;
      turned_row<kHeads>(task, queries, row, phases + (i + u) * task.phases.stride, &acc[0][u], 4);
    }
    for (int h = 0; h < kHeads; ++h) sum4(acc[h], dots[h] + i);
  }
  for (int h = 0; h < kHeads; ++h) {
    float* logits = s->logits[h];
    for (int i = 0; i < n; ++i) logits[i] += dots[h][i] * s->key_gammas[i];
    for (int i = n; i % kLanes != 0; ++i) logits[i] = kNever;
    top[h] = load(logits);
    for (int i = kLanes; i < n; i += kLanes) top[h] = max(top[h], load(logits + i));
  }
}

template <int kHeads>
static void anchor_logits(CompressedState<kHeads>* s, const int16_t* phases, int n, F* top) {
  if (!s->task->use_table) return turned_logits(s, phases, n, top);
  switch (s->task->phases.stride / 32) {
    case 1:
      return anchor_logits<kHeads, 1>(s, phases, n, top);
    case 2:
      return anchor_logits<kHeads, 2>(s, phases, n, top);
    case 3:
      return anchor_logits<kHeads, 3>(s, phases, n, top);
    case 4:
      return anchor_logits<kHeads, 4>(s, phases, n, top);
    default:
      return anchor_logits<kHeads, 8>(s, phases, n, top);
  }
}

// Adds the residuals of one width class in the `pre` domain: one token after the other.
template <int kHeads, int kBits>
static void add_turned(CompressedState<kHeads>* s, const ResidualStream& stream, uint64_t bits,
                       int64_t index, const int16_t* phases, float* const* logits) {
  alignas(64) float row[kMaxHeadDim];
  for (; bits != 0; bits &= bits - 1, ++index) {
    const int t = __builtin_ctzll(bits);
    turned_residual<kBits>(stream, index, s->task->layer->signs, s->head_dim,
                           phases + t * s->task->phases.stride, s->task->phases, row);
    const float scale = stream.scale(index);
    for (int h = 0; h < kHeads; ++h) {
      F dot = zero();
      for (int d = 0; d < s->head_dim; d += kLanes) {
        dot = fma(load(row + d), load(s->task->arena->code_query + h * s->head_dim + d), dot);
      }
      logits[h][t] += scale * sum(dot);
    }
  }
}

template <int kHeads>
static void clear_logits(CompressedState<kHeads>* s, int n) {
  for (int h = 0; h < kHeads; ++h) {
    for (int i = 0; i < n; i += kLanes) store(s->logits[h] + i, zero());
  }
}

// logits = the residual term of n tokens from t on, 0 where there is none.
template <int kHeads>
static void residual_logits(CompressedState<kHeads>* s, int64_t t, int n, const int16_t* phases) {
  const CompressedSideView& side = s->task->head->key;
  const bool post = s->task->layer->key_domain_post;
  if (side.n2 + side.n4 == 0 || !post) clear_logits(s, n);
  if (side.n2 + side.n4 == 0) return;
  const int64_t first_word = t / 64, words = (n + 63) / 64;
  int64_t index2 = side.prefix2[first_word];
  int64_t index4 = side.mask4 == nullptr ? 0 : side.prefix4[first_word];
  if (post) {
    int64_t end2 = index2, end4 = index4;
    for (int64_t w = first_word; w < first_word + words; ++w) {
      end2 += __builtin_popcountll(bits2(side, w));
      end4 += __builtin_popcountll(bits4(side, w));
    }
    s->residuals2.advance(index2, end2, s->task->arena->code_query, s->head_dim);
    s->residuals4.advance(index4, end4, s->task->arena->code_query, s->head_dim);
  }
  for (int64_t w = 0; w < words; ++w) {
    const uint64_t two = bits2(side, first_word + w), four = bits4(side, first_word + w);
    float* logits[kHeads];
    for (int h = 0; h < kHeads; ++h) logits[h] = s->logits[h] + w * 64;
    if (post) {
      for (int h = 0; h < kHeads; ++h) {
        expand(two, s->residuals2.at(h, index2), four, s->residuals4.at(h, index4), logits[h]);
      }
    } else {
      const int16_t* rows = phases + w * 64 * s->task->phases.stride;
      add_turned<kHeads, 2>(s, s->residuals2.stream, two, index2, rows, logits);
      add_turned<kHeads, 4>(s, s->residuals4.stream, four, index4, rows, logits);
    }
    index2 += __builtin_popcountll(two);
    index4 += __builtin_popcountll(four);
  }
}

// Raises the running maximum to the tile's and rescales what was summed under the old one.
template <int kHeads>
static void raise_peak(CompressedState<kHeads>* s, const F* top) {
  alignas(16) float factors[kGroupHeads] = {1, 1, 1, 1};
  bool raised = false;
  for (int h = 0; h < kHeads; ++h) {
    const float peak = highest(top[h]);
    if (peak <= s->peak[h]) continue;
    raised = true;
    factors[h] = exp2_one_of(s->peak[h] - peak);
    s->peak[h] = peak;
    const F factor = set1(factors[h]);
    s->total[h] = mul(s->total[h], factor);
    float* z = s->z + h * kMaxHeadDim;
    for (int d = 0; d < s->head_dim; d += kLanes) store(z + d, mul(load(z + d), factor));
  }
  if (!raised) return;
  const F4 factor = *reinterpret_cast<const F4*>(factors);
  auto* bins = reinterpret_cast<F4*>(s->task->arena->histogram);
  for (int a = 0; a < 2 * s->task->layer->anchors; ++a) bins[a] *= factor;
}

// logits -> weights p = 2^(logit - peak), their sum, and p gamma into the histogram over anchors.
template <int kHeads>
static void weigh(CompressedState<kHeads>* s, int n) {
  char* histogram = reinterpret_cast<char*>(s->task->arena->histogram);
  F peak[kHeads];
  for (int h = 0; h < kHeads; ++h) peak[h] = set1(s->peak[h]);
  F weights[kGroupHeads];
  for (int h = kHeads; h < kGroupHeads; ++h) weights[h] = zero();
  alignas(64) float by_token[kLanes * kGroupHeads];
  for (int i = 0; i < n; i += kLanes) {
    const F gamma = load(s->value_gammas + i);
    for (int h = 0; h < kHeads; ++h) {
      const F p = exp2(sub(load(s->logits[h] + i), peak[h]));
      s->total[h] = add(s->total[h], p);
      store(s->logits[h] + i, p);
      weights[h] = mul(p, gamma);
    }
    store_token_major(weights, by_token);
    for (int u = 0; u < kLanes; ++u) {
      F4* bin = reinterpret_cast<F4*>(histogram + s->value_offsets[i + u] + (u & 1) * sizeof(F4));
      *bin += *reinterpret_cast<const F4*>(by_token + u * kGroupHeads);
    }
  }
}

template <int kHeads, int kBits>
static void value_class(CompressedState<kHeads>* s, const ResidualStream& stream, int64_t index,
                        const uint64_t* bits, int64_t words) {
  alignas(64) uint32_t places[kPad];
  alignas(64) float scales[kPad];
  ValueRows rows;
  for (int64_t w = 0; w < words; ++w) {
    list_bits(bits[w], static_cast<uint32_t>(w * 64), places + rows.count);
    rows.count += __builtin_popcountll(bits[w]);
  }
  if (rows.count == 0) return;
  stream.scales(index, rows.count, scales);
  rows.row_bytes = s->head_dim * kBits / 8;
  rows.codes = stream.codes + index * rows.row_bytes;
  rows.places = places;
  rows.scales = scales;
  accumulate_residuals<kHeads, kBits>(rows, s->head_dim, s->logits[0], kPad, s->z);
}

template <int kHeads>
static void value_residuals(CompressedState<kHeads>* s, int64_t t, int n) {
  const CompressedSideView& side = s->task->head->value;
  if (side.n2 + side.n4 == 0) return;
  const int64_t first = t / 64, words = (n + 63) / 64;
  uint64_t two[kTile / 64], four[kTile / 64];
  for (int64_t w = 0; w < words; ++w) {
    two[w] = bits2(side, first + w);
    four[w] = bits4(side, first + w);
  }
  value_class<kHeads, 2>(s, stream2(side), side.prefix2[first], two, words);
  if (side.mask4 != nullptr) {
    value_class<kHeads, 4>(s, stream4(side), side.prefix4[first], four, words);
  }
}

// What a slot counts in key_offsets: bytes of the table, without a table the slot itself.
template <int kHeads>
static inline uint32_t key_row_bytes(const CompressedTask& task) {
  return task.use_table ? static_cast<uint32_t>(kHeads * task.phases.stride) * 2 : 1;
}

template <int kHeads>
static void prompt_tile(CompressedState<kHeads>* s, int64_t t, int n) {
  const CompressedTask& task = *s->task;
  const int16_t* phases = task.phases.blocks[t / kTile];
  const uint32_t row_bytes = key_row_bytes<kHeads>(task);
  unpack_side(task.head->key, t, n, row_bytes, s->key_offsets, s->key_gammas);
  unpack_side(task.head->value, t, n, 2 * sizeof(F4), s->value_offsets, s->value_gammas);
  residual_logits(s, t, n, phases);
  F top[kHeads];
  anchor_logits(s, phases, n, top);
  raise_peak(s, top);
  weigh(s, n);
  value_residuals(s, t, n);
}

// Window entries [first, first + n): anchors themselves, at their own positions.
template <int kHeads>
static void window_tile(CompressedState<kHeads>* s, int first, int n) {
  const CompressedTask& task = *s->task;
  const uint32_t row_bytes = key_row_bytes<kHeads>(task);
  const int slot0 = task.layer->anchors - task.layer->window + first;
  for (int i = 0; i < (n + kLanes - 1) / kLanes * kLanes; ++i) {
    const uint32_t slot = static_cast<uint32_t>(i < n ? slot0 + i : 0);
    s->key_offsets[i] = slot * row_bytes;
    s->value_offsets[i] = slot * 2 * sizeof(F4);
    s->key_gammas[i] = s->value_gammas[i] = i < n ? 1.0f : 0.0f;
  }
  const int64_t position = task.layer->prefix + first;
  const int16_t* phases = task.phases.blocks[position / kTile];
  clear_logits(s, n);
  F top[kHeads];
  anchor_logits(s, phases + position % kTile * task.phases.stride, n, top);
  raise_peak(s, top);
  weigh(s, n);
}

// out[h] = sum_a w_a v_a + U^T z, with the softmax's maximum and sum before it.
template <int kHeads>
static void finish(CompressedState<kHeads>* s) {
  const CompressedTask& task = *s->task;
  const int head_dim = s->head_dim, stride = head_dim + 2;
  const float* histogram = task.arena->histogram;
  for (int h = 0; h < kHeads; ++h) {
    float* out = task.partial + h * stride;
    out[0] = s->peak[h];
    out[1] = sum(s->total[h]);
    rotate_from_codes(s->z + h * kMaxHeadDim, task.layer->signs, head_dim);
  }
  for (int d = 0; d < head_dim; d += 16) {
    F acc[kHeads][kVec];
    for (int h = 0; h < kHeads; ++h) {
      for (int v = 0; v < kVec; ++v) acc[h][v] = load(s->z + h * kMaxHeadDim + d + v * kLanes);
    }
    const bf16* row = task.head->value.anchors + d;
    for (int a = 0; a < task.layer->anchors; ++a, row += head_dim) {
      const float* bins = histogram + a * 2 * kGroupHeads;
      F values[kVec];
      for (int v = 0; v < kVec; ++v) values[v] = load_bf16(row + v * kLanes);
      for (int h = 0; h < kHeads; ++h) {
        const F weight = set1(bins[h] + bins[kGroupHeads + h]);
        for (int v = 0; v < kVec; ++v) acc[h][v] = fma(weight, values[v], acc[h][v]);
      }
    }
    for (int h = 0; h < kHeads; ++h) {
      for (int v = 0; v < kVec; ++v) {
        store(task.partial + h * stride + 2 + d + v * kLanes, acc[h][v]);
      }
    }
  }
}

template <int kHeads>
static void run_compressed(const CompressedTask& task) {
  prepare_arena(task);
  CompressedState<kHeads> s;
  s.task = &task;
  s.head_dim = task.layer->head_dim;
  for (int h = 0; h < kHeads; ++h) {
    s.peak[h] = kNever;
    s.total[h] = zero();
  }
  __builtin_memset(s.z, 0, sizeof(s.z));
  const size_t bins = static_cast<size_t>(task.layer->anchors) * 2 * kGroupHeads;
  __builtin_memset(task.arena->histogram, 0, bins * sizeof(float));
  s.residuals2.stream = stream2(task.head->key);
  s.residuals4.stream = stream4(task.head->key);
  for (int64_t t = task.begin; t < task.end; t += kTile) {
    prompt_tile(&s, t, static_cast<int>(smaller(kTile, task.end - t)));
  }
  for (int first = 0; first < task.window_tokens;) {
    const int64_t position = task.layer->prefix + first;
    const int64_t room = kTile - position % kTile;  // a tile lies in one block of phases
    const int n = static_cast<int>(smaller(room, task.window_tokens - first));
    window_tile(&s, first, n);
    first += n;
  }
  finish(&s);
}

static void compressed(const CompressedTask& task) {
  switch (task.heads) {
    case 1:
      return run_compressed<1>(task);
    case 2:
      return run_compressed<2>(task);
    case 3:
      return run_compressed<3>(task);
    default:
      return run_compressed<4>(task);
  }
}

}  // namespace akv::kernels::attention::AKV_SIMD
