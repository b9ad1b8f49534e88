// One compressed piece, from its queries to its partial softmax.
#pragma once

#include "kernels/cuda/decode_attention/histogram.h"
#include "kernels/cuda/decode_attention/keys.h"
#include "kernels/cuda/decode_attention/queries.h"
#include "kernels/cuda/decode_attention/softmax.h"
#include "kernels/cuda/decode_attention/values.h"

namespace akv::kernels::cuda::decode {

// Where piece `index` of the plan leaves its result.
template <int D>
AKV_DEVICE float* partial_of(const KernelArgs& args, int index) {
  return args.partials + int64_t{index} * args.part_heads * partial_stride(D);
}

// The thread's place, told anew: each phase of a chunk begins with this, as addresses kept from
// phase to phase and chunk to chunk would take the registers that the angles need.
template <int D, int Heads>
AKV_DEVICE Piecework<D, Heads> piecework(const KernelArgs& args, unsigned char* shared) {
  const int tid = thread_index();  // never negative: shifts and masks do
  return {&args, shared, tid, tid >> 5, tid & 31, tid >> 2 & 7, tid & 3};
}

// The piece's numbers, by one thread.
template <int D, int Heads>
AKV_DEVICE void describe_piece(const Piecework<D, Heads>& w, const Piece& piece,
                               const CompressedLayerView& layer, int index) {
  const KernelArgs& args = *w.args;
  const int group = args.heads / args.kv_heads, first = part_begin(group, piece.part);
  PieceState& s = w.state();
  s.histogram = w.template at<int32_t>(Layout<D, Heads>::kBase);
  if (layer.anchors > args.histogram_capacity) {
    s.histogram = args.histograms + blockIdx.x * args.histogram_words;
  }
  s.halves = args.halves + halves_of(args, D, piece.row, piece.kv_head);
  s.signs = layer.signs;
  s.q = args.q + (int64_t{piece.row} * args.heads + piece.kv_head * group + first) * D;
  s.head_dim = D;
  s.heads = part_begin(group, piece.part + 1) - first;
  s.index = index;
  s.begin = piece.begin;
  s.end = piece.end;
  s.prefix = layer.prefix;
  s.anchors = layer.anchors;
  s.window = layer.window;
  s.post = layer.key_domain_post ? 1 : 0;
  s.largest_scale = 0;
  s.resident = layer.anchors <= args.anchor_capacity ? 1 : 0;
  const bf16** staged = w.template at<const bf16*>(Layout<D, Heads>::kStaged);
  const bf16* anchors = layer.heads[piece.kv_head].key.anchors;
  s.stale = s.resident != 0 && *staged != anchors ? 1 : 0;
  *staged = s.resident != 0 ? anchors : nullptr;
}

// Copies the anchors to shared memory as halves; rows that are turned as a whole and aligned, as
// records have them, without asking at each unit.
template <int D, int Heads>
AKV_DEVICE void stage_anchors(const Piecework<D, Heads>& w) {
  constexpr unsigned kUnits = D / 8;
  const bf16* anchors = w.state().head.key.anchors;
  const int align = alignment(anchors);
  const PairOrder order = w.order();
  const unsigned count = static_cast<unsigned>(w.state().anchors) * kUnits;
  const auto copy = [&](auto unit_of_row) {
#pragma unroll 2
    for (unsigned i = static_cast<unsigned>(w.tid); i < count; i += kThreads) {
      w.rows()[i] = unit_of_row(anchors + i / kUnits * D, static_cast<int>(i % kUnits));
    }
  };
  if (2 * order.half != D || align < 16) {
    copy([&](const bf16* row, int u) { return anchor_unit<D>(row, u, order, align); });
  } else if (order.interleaved) {
    copy([&](const bf16* row, int u) { return anchor_unit<D>(row, u, {D / 2, true}, 16); });
  } else {
    copy([&](const bf16* row, int u) { return anchor_unit<D>(row, u, {D / 2, false}, 16); });
  }
}

// Whether the slow pairs are slow enough for a tile, and for a chunk. A barrier is due.
template <int D, int Heads>
AKV_DEVICE void judge_rope(const Piecework<D, Heads>& w) {
  using B = Bands<D>;
  bool narrow = false, steep = false;
  for (int j = w.tid; j < B::kSlowPairs; j += kThreads) {
    const float angle = slow_angle(w.args->rope, B::kFirstSlowPair + j);
    const float most = B::most(B::kFast + j / 16);
    narrow = narrow || kChunk / 2 * angle > most;
    steep = steep || kTile / 2 * angle > most;
  }
  const int any_narrow = __syncthreads_or(narrow), any_steep = __syncthreads_or(steep);
  if (w.tid != 0) return;
  w.state().wide = any_narrow == 0 ? 1 : 0;
  w.state().steep = any_steep;
}

// A power of two that makes 2^-4 of the largest scale in a sample of the value residuals: a half
// then holds weights down to 2^-20 of it, and up to 2^19 times it. The largest of all threads.
template <int D, int Heads>
AKV_DEVICE void sample_scales(const Piecework<D, Heads>& w) {
  const CompressedSideView& side = w.state().head.value;
  float largest = 0;
  for (const bool four : {false, true}) {
    const uint32_t n = four ? side.n4 : side.n2;
    if (n == 0) continue;
    const auto index = static_cast<int>(uint64_t{n} * static_cast<uint32_t>(w.tid) / kThreads);
    largest = fmaxf(largest, fabsf(Scales(w.state(), true, four)[index]));
  }
  // Positive floats are in the order of their bits.
  const int bits = __reduce_max_sync(0xffffffffu, __float_as_int(largest));
  if (w.lane == 0) atomicMax(&w.state().largest_scale, bits);
}

// What threads share between chunks, and the places that chunks only add to.
template <int D, int Heads>
AKV_DEVICE void clear_shares(const Piecework<D, Heads>& w) {
  using L = Layout<D, Heads>;
  Shares<Heads>& shares = w.shares();
  for (int i = w.tid; i < Heads * w.histogram_words(); i += kThreads) w.state().histogram[i] = 0;
  auto* residuals = w.template at<float>(L::kResiduals);
  for (int i = w.tid; i < Heads * L::kDotStride; i += kThreads) residuals[i] = 0.0f;
  w.template at<float>(L::kGammas)[w.tid] = log8_value(w.tid);
  auto* sums = w.template at<float>(L::kSums);
  for (int i = w.tid; i < Heads / 2 * kThreads; i += kThreads) sums[i] = 0.0f;
  if (w.tid >= Heads) return;
  shares.peak[w.tid] = kNever;
  shares.large[w.tid] = 0;
  shares.mass[0][w.tid] = 0;
  shares.mass[1][w.tid] = 0;
  shares.running[0][w.tid] = {kNever, 0.0f, 0, 0};
  shares.running[1][w.tid] = {kNever, 0.0f, 0, 0};
}

// Head view, tables and first chunk; then queries and anchors. Ends with a barrier due.
template <int D, int Heads>
AKV_DEVICE void begin_piece(const KernelArgs& args, unsigned char* shared, const Piece& piece,
                            const CompressedLayerView& layer, int index) {
  using L = Layout<D, Heads>;
  Piecework<D, Heads> w = piecework<D, Heads>(args, shared);
  PieceState& state = w.state();
  if (w.tid == kThreads - 1) describe_piece(w, piece, layer, index);
  const auto* words = reinterpret_cast<const uint32_t*>(layer.heads + piece.kv_head);
  auto* copy = reinterpret_cast<uint32_t*>(&state.head);
  for (int i = w.tid; i < static_cast<int>(sizeof(CompressedHeadView) / 4); i += kThreads) {
    copy[i] = __ldg(words + i);
  }
  if (w.tid < 16) w.template at<uint32_t>(L::kLevels)[w.tid] = level_word(w.tid);
  w = piecework<D, Heads>(args, shared);
  clear_query_fragments(w);
  __syncthreads();
  w = piecework<D, Heads>(args, shared);
  if (w.tid < 12) describe_arrays(w, w.tid);
  if (w.tid < 8) describe_stream(state, w.tid);
  judge_rope(w);
  __syncthreads();
  w = piecework<D, Heads>(args, shared);
  sample_scales(w);
  write_slow_series(w);
  w = piecework<D, Heads>(args, shared);
  clear_shares(w);
  stage_chunk(w, w.state().begin);
  w = piecework<D, Heads>(args, shared);
  load_queries(w);
  w = piecework<D, Heads>(args, shared);
  if (state.stale != 0) stage_anchors(w);
}

// The partial result: peak, sum, then histogram times anchors and the residuals' sum.
template <int D, int Heads>
AKV_DEVICE void finish_piece(const Piecework<D, Heads>& w,
                             float (&z)[ResidualTiles<D, Heads>::kTiles][4], float* partial) {
  join_totals(w);
  join_warps<ResidualTiles<D, Heads>::kParts>(w, z);
  write_tiles<ResidualTiles<D, Heads>>(w, z, kValueUnit / weight_unit(w.state()), partial + 2 + D);
  if (w.tid < w.state().heads) {
    const float* totals = w.template at<float>(Layout<D, Heads>::kTotals) + w.tid * 4;
    float* out = partial + w.tid * partial_stride(D);
    out[0] = static_cast<float>(w.shares().peak[w.tid]);
    out[1] = (totals[0] + totals[1]) + (totals[2] + totals[3]);
  }
  float o[AnchorTiles<D>::kTiles][4] = {};
  histogram_times_anchors(w, o);
  join_warps<1>(w, o);
  finish_bins(w, parity_of(w.state().end - 1) ^ 1, o);
  write_tiles<AnchorTiles<D>>(w, o, 1.0f, partial + 2);
}

// Before the products: the rest of what they need of the chunk. Half of the block's warps make the
// lists, the others the queries.
template <int D, int Heads>
AKV_DEVICE void prepare_chunk(const Piecework<D, Heads>& w, int base) {
  using L = Layout<D, Heads>;
  if (base + kChunk > w.state().prefix || base + kChunk > w.state().end) complete_chunk(w, base);
  if (w.warp < 4) {
    list_residuals(w, base, (w.warp & 1) != 0, (w.warp & 2) != 0);
    if (w.tid < Heads) w.template at<float>(L::kDots)[w.tid * L::kDotStride + kNobody] = 0.0f;
  } else {
    fill_fast_fragments(w, base, kThreads / 2, kThreads / 2);
    fill_slow_fragments(w, base, kThreads / 2, kThreads / 2);
  }
}

template <int D, int Heads>
AKV_DEVICE void key_logits(const Piecework<D, Heads>& w, const Angles<D, Heads>& angles, int base) {
  if (w.state().steep != 0) {
    steep_key_dots(w, base);
  } else if (w.state().resident != 0) {
    key_dots<true>(w, angles, base);
  } else {
    key_dots<false>(w, angles, base);
  }
  if (w.state().post != 0) {
    key_residuals(w, w.state().ranges[0]);
  } else {
    turned_key_residuals(w, w.state().ranges[0], base);
  }
}

// Returns `index`, from where it lay meanwhile: registers are short.
template <int D, int Heads>
AKV_DEVICE int run_compressed(const KernelArgs& args, unsigned char* shared, const Piece& piece,
                              const CompressedLayerView& layer, int index) {
  begin_piece<D, Heads>(args, shared, piece, layer, index);
  Piecework<D, Heads> w = piecework<D, Heads>(args, shared);
  Angles<D, Heads> angles;
  angles.load(args.rope, 16 * w.warp + w.g, w.t);
  float z[ResidualTiles<D, Heads>::kTiles][4] = {};
#pragma unroll 1
  for (int base = w.state().begin; base < w.state().end; base += kChunk) {
    cp_async_wait<0>();
    __syncthreads();
    w = piecework<D, Heads>(args, shared);
    prepare_chunk(w, base);
    __syncthreads();
    w = piecework<D, Heads>(args, shared);
    key_logits(w, angles, base);
    __syncthreads();
    w = piecework<D, Heads>(args, shared);
    if (w.tid < Heads) w.shares().mass[parity_of(base) ^ 1][w.tid] = 0;
    Quad<Heads> quad;
    quad_logits(w, base, &quad);
    __syncthreads();
    w = piecework<D, Heads>(args, shared);
    quad_weights(w, parity_of(base), &quad);
    if (base + kChunk < w.state().end) {
      stage_chunk(w, base + kChunk);
      prefetch_residuals(w);
    }
    __syncthreads();
    w = piecework<D, Heads>(args, shared);
    fill_histogram(w, parity_of(base), base == w.state().begin, quad);
    rescale_residuals(w, parity_of(base), z);
    value_residuals(w, w.state().ranges[1], z);
  }
  finish_piece(w, z, partial_of<D>(args, w.state().index));
  return w.state().index;
}

}  // namespace akv::kernels::cuda::decode
