// One compressed piece, from its queries to its partial softmax.
#pragma once

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
  const int tid = opaque(static_cast<int>(threadIdx.x)), lane = tid % 32;
  return {&args, shared, tid, tid / 32, lane, lane / 4, lane % 4};
}

// The piece's numbers, by one thread.
template <int D, int Heads>
AKV_DEVICE void describe_piece(const Piecework<D, Heads>& w, const Piece& piece,
                               const CompressedLayerView& layer) {
  const KernelArgs& args = *w.args;
  const int group = args.heads / args.kv_heads, first = part_begin(group, piece.part);
  PieceState& s = w.state();
  s.histogram = w.template at<int32_t>(Layout<D, Heads>::kBase);
  if (layer.anchors > args.histogram_capacity) {
    s.histogram = args.histograms + blockIdx.x * args.histogram_words;
  }
  s.signs = layer.signs;
  s.q = args.q + (int64_t{piece.row} * args.heads + piece.kv_head * group + first) * D;
  s.heads = part_begin(group, piece.part + 1) - first;
  s.begin = piece.begin;
  s.end = piece.end;
  s.prefix = layer.prefix;
  s.anchors = layer.anchors;
  s.window = layer.window;
  s.post = layer.key_domain_post ? 1 : 0;
  s.resident = layer.anchors <= args.anchor_capacity ? 1 : 0;
  const bf16** staged = w.template at<const bf16*>(Layout<D, Heads>::kStaged);
  const bf16* anchors = layer.heads[piece.kv_head].key.anchors;
  s.stale = s.resident != 0 && *staged != anchors ? 1 : 0;
  *staged = s.resident != 0 ? anchors : nullptr;
}

template <int D, int Heads>
AKV_DEVICE void stage_anchors(const Piecework<D, Heads>& w) {
  const bf16* anchors = w.state().head.key.anchors;
  const int align = alignment(anchors);
#pragma unroll 2
  for (int i = w.tid; i < w.state().anchors * (D / 8); i += kThreads) {
    w.rows()[i] = anchor_unit<D>(anchors + int64_t{i / (D / 8)} * D, i % (D / 8), w.order(), align);
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

// Head view, tables and first chunk; then queries and anchors. Ends with a barrier due.
template <int D, int Heads>
AKV_DEVICE void begin_piece(const Piecework<D, Heads>& w, const Piece& piece,
                            const CompressedLayerView& layer) {
  using L = Layout<D, Heads>;
  PieceState& state = w.state();
  const auto* words = reinterpret_cast<const uint32_t*>(layer.heads + piece.kv_head);
  auto* copy = reinterpret_cast<uint32_t*>(&state.head);
  for (int i = w.tid; i < static_cast<int>(sizeof(CompressedHeadView) / 4); i += kThreads) {
    copy[i] = __ldg(words + i);
  }
  if (w.tid < 16) w.template at<uint32_t>(L::kLevels)[w.tid] = level_word(w.tid);
  if (w.tid == kThreads - 1) describe_piece(w, piece, layer);
  clear_query_fragments(w);
  __syncthreads();
  if (w.tid < 12) describe_arrays(state, w.tid);
  judge_rope(w);
  __syncthreads();
  write_slow_series(w);
  for (int i = w.tid; i < Heads * w.histogram_words(); i += kThreads) state.histogram[i] = 0;
  stage_chunk(w, w.state().begin);
  load_queries(w);
  if (state.stale != 0) stage_anchors(w);
}

template <int D, int Heads>
AKV_DEVICE void finish_piece(const Piecework<D, Heads>& w, const Running& state,
                             float (&z)[Tiles<D>::kEach][4], float* partial) {
  split_histogram(w, state);
  join_shares(w, z);
  write_tiles(w, z, 1, 8, partial + 2 + D);
  if (w.warp == 0 && w.lane < w.state().heads) {
    partial[w.lane * partial_stride(D)] = state.peak;
    partial[w.lane * partial_stride(D) + 1] = state.total;
  }
  __syncthreads();
  float o[Tiles<D>::kEach][4] = {};
  histogram_times_anchors(w, o);
  join_shares(w, o);
  write_tiles(w, o, 2, 1, partial + 2);
}

template <int D, int Heads>
AKV_DEVICE void run_compressed(const KernelArgs& args, unsigned char* shared, const Piece& piece,
                               const CompressedLayerView& layer, int index) {
  Piecework<D, Heads> w = piecework<D, Heads>(args, shared);
  begin_piece(w, piece, layer);
  Angles<D, Heads> angles;
  angles.load(args.rope, 16 * w.warp + w.g, w.t);
  float z[Tiles<D>::kEach][4] = {};
  w.running() = Running{};
#pragma unroll 1
  for (int base = piece.begin; base < w.state().end; base += kChunk) {
    cp_async_wait<0>();
    __syncthreads();
    w = piecework<D, Heads>(args, shared);
    Token tokens[2];
    decode_tokens(w, base, tokens);
    w = piecework<D, Heads>(args, shared);
    fill_fast_fragments(w, base, 0, kThreads);
    fill_slow_fragments(w, base, 0, kThreads);
    __syncthreads();
    w = piecework<D, Heads>(args, shared);
    if (base + kChunk < w.state().end) {
      stage_chunk(w, base + kChunk);
      prefetch_residuals(w);
    }
    key_dots(w, angles, base);
    w = piecework<D, Heads>(args, shared);
    if (w.state().post != 0) {
      key_residuals(w, w.state().ranges[0]);
    } else {
      turned_key_residuals(w, w.state().ranges[0], base);
    }
    __syncthreads();
    w = piecework<D, Heads>(args, shared);
    local_softmax(w, tokens);
    __syncthreads();
    Running state = w.running();
    const Moved moved = merge_warps(w, &state);
    w.running() = state;
    rescale_columns(moved.rescale, w.t, z);
    if (__any_sync(0xffffffffu, moved.shift != 0)) {  // the same in all warps
      shift_histogram(w, moved.shift);
      __syncthreads();
    }
    w = piecework<D, Heads>(args, shared);
    spread_weights(w, tokens, state);
    pad_weights(w, w.state().ranges[1]);
    __syncthreads();
    w = piecework<D, Heads>(args, shared);
    value_residuals(w, w.state().ranges[1], z);
  }
  finish_piece(w, w.running(), z, partial_of<D>(args, index));
}

}  // namespace akv::kernels::cuda::decode
