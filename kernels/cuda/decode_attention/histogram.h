// The values' anchors: a histogram of the weights over them, in fixed point, and at a piece's end
// its product with the anchors.
#pragma once

#include "kernels/cuda/decode_attention/softmax.h"
#include "kernels/cuda/decode_attention/tiles.h"

namespace akv::kernels::cuda::decode {

// The running state of one head after a chunk.
struct Step {
  Running next;
  int shift;  // of the histogram, to the right
};

template <int Heads>
AKV_DEVICE Step step_of(const Shares<Heads>& shares, int parity, int head) {
  const Running old = shares.running[parity][head];
  Running next;
  next.peak = shares.peak[head];
  next.pad = 0;
  float mass = static_cast<float>(shares.mass[parity][head]) * (1.0f / kMassUnits);
  const int large = shares.large[head];
  if (large > 0) mass += Quad<Heads>::kSiblings * power_of_two(large);
  next.mass = old.mass * power_of_two(old.peak - next.peak) + mass;
  // All |entries| together stay below 2^31: the mass bounds them.
  const int most = 30 - exponent_above(next.mass);
  const int fixed = old.fixed + next.peak - old.peak;
  const bool full = fixed > kMaxFixed || fixed > most;
  next.fixed = full ? (most - 1 < kMaxFixed ? most - 1 : kMaxFixed) : fixed;
  return {next, fixed - next.fixed};
}

// Halves a head's entries `shift` times, to nearest, by the threads that have the head.
template <int D, int Heads>
AKV_DEVICE void shift_histogram(const Piecework<D, Heads>& w, int head, int shift) {
  int32_t* bins = w.state().histogram + head * w.histogram_words();
  for (int i = w.tid % Quad<Heads>::kSiblings; i < w.state().anchors; i += Quad<Heads>::kSiblings) {
    bins[i] = shift > 30 ? 0 : (bins[i] + (1 << (shift - 1))) >> shift;
  }
}

// Adds one head's weights times coefficients: the sum does not depend on the order in which threads
// come.
template <int Heads>
AKV_DEVICE void add_to_bins(const Quad<Heads>& quad, int h, float unit, int32_t* bins) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    atomicAdd(bins + quad.slot(i), __float2int_rn(quad.x[h][i] * unit));
  }
}

// The chunk's weights to the histogram, and the running state of the chunk to come. Lanes share the
// heads' steps out.
template <int D, int Heads>
AKV_DEVICE void fill_histogram(const Piecework<D, Heads>& w, int parity, bool first,
                               const Quad<Heads>& quad) {
  using L = Layout<D, Heads>;
  constexpr int kEach = Quad<Heads>::kEach;
  const int head = Quad<Heads>::head(w.tid), stride = w.histogram_words();
  const int own = head + (w.lane & (kEach - 1));
  const Step step = step_of(w.shares(), parity, own);
  if ((w.tid & (Quad<Heads>::kSiblings - 1)) < kEach) {
    w.shares().running[parity ^ 1][own] = step.next;
  }
  if (!first && __any_sync(0xffffffffu, step.shift != 0)) {
#pragma unroll 1
    for (int h = 0; h < kEach; ++h) {
      const int shift = __shfl_sync(0xffffffffu, step.shift, h);
      if (shift != 0) shift_histogram(w, head + h, shift);
    }
    if (head == 0) {
      named_barrier(1, Quad<Heads>::kSiblings);
    } else {
      named_barrier(2, Quad<Heads>::kSiblings);
    }
  }
  const float own_unit = power_of_two(step.next.fixed);
  int32_t* shared = w.template at<int32_t>(L::kBase) + head * stride;
  int32_t* scratch = w.state().histogram + head * stride;
  const bool resident = w.state().anchors <= w.args->histogram_capacity;
#pragma unroll
  for (int h = 0; h < kEach; ++h) {
    const float unit = __shfl_sync(0xffffffffu, own_unit, h);
    if (resident) {
      add_to_bins(quad, h, unit, shared + h * stride);
    } else {
      add_to_bins(quad, h, unit, scratch + h * stride);
    }
  }
}

// Places of o: pass p, word i of a 16-byte unit: rows g are coordinates 64 p + 8 g + 2 i, rows
// g + 8 the next ones.
template <int D>
struct AnchorTiles {
  static constexpr int kPasses = (D + 63) / 64;
  static constexpr int kTiles = 4 * kPasses;
  static constexpr int kParts = 1;
  AKV_DEVICE static int coordinate(int tile, int /*part*/, int g, int row) {
    return tile / 4 * 64 + 8 * g + tile % 4 * 2 + row;
  }
};

// Bins of four anchors as B operands: bf16 pairs, together 16 bits of mantissa.
struct Bins {
  uint32_t high[2];
  uint32_t low[2];

  AKV_DEVICE explicit Bins(const int32_t* bins) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int2 two = *reinterpret_cast<const int2*>(bins + 8 * i);
      const auto x = static_cast<float>(two.x), y = static_cast<float>(two.y);
      high[i] = pack_bf16x2(x, y);
      low[i] = pack_bf16x2(x - low_bf16(high[i]), y - high_bf16(high[i]));
    }
  }
};

// o += histogram x anchors over the warp's groups of 16 anchors; a thread reads anchors 2t, 2t + 1,
// 2t + 8 and 2t + 9 of each. With four heads, columns 4 to 7 are the low halves of the bins.
template <int D, int Heads>
AKV_DEVICE void histogram_times_anchors(const Piecework<D, Heads>& w,
                                        float (&o)[AnchorTiles<D>::kTiles][4]) {
  const int anchors = w.state().anchors;
  const bf16* rows = w.state().head.value.anchors;
  const int align = alignment(rows);
  const int32_t* bins = w.state().histogram + w.g % Heads * w.histogram_words() + 2 * w.t;
#pragma unroll 1
  for (int at = w.warp * 16; at < anchors; at += kWarps * 16) {
    const Bins b(bins + at);
    const uint32_t first[2] = {w.g < Heads ? b.high[0] : b.low[0],
                               w.g < Heads ? b.high[1] : b.low[1]};
    const bf16* row[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int anchor = at + 2 * w.t + i % 2 + i / 2 * 8;  // beyond the last one bins are 0
      row[i] =
          rows + static_cast<unsigned>((anchor < anchors ? anchor : anchors - 1) * D + 8 * w.g);
    }
#pragma unroll
    for (int p = 0; p < AnchorTiles<D>::kPasses; ++p) {
      if (64 * p + 64 > D && 64 * p + 8 * w.g >= D) {
        for (int i = 0; i < 4; ++i) row[i] = rows - 64 * p;  // columns that nobody reads
      }
      uint4 x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = load16(row[i] + 64 * p, align);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t u0 = word_of(x[0], i), u1 = word_of(x[1], i);
        const uint32_t u2 = word_of(x[2], i), u3 = word_of(x[3], i);
        const uint32_t a[4] = {low_pair(u0, u1), high_pair(u0, u1), low_pair(u2, u3),
                               high_pair(u2, u3)};
        mma_bf16(o[4 * p + i], a, first);
        if (Heads == 8) mma_bf16(o[4 * p + i], a, b.low);
      }
    }
  }
}

// Of the sums of all warps, the two halves of each head and the histogram's unit.
template <int D, int Heads>
AKV_DEVICE void finish_bins(const Piecework<D, Heads>& w, int parity,
                            float (&o)[AnchorTiles<D>::kTiles][4]) {
  const Running* running = w.shares().running[parity];
  const int head = 2 * w.t % Heads;
  const float even = power_of_two(-running[head].fixed);
  const float odd = power_of_two(-running[head + 1].fixed);
#pragma unroll
  for (int i = 0; i < AnchorTiles<D>::kTiles; ++i) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (Heads == 4) o[i][k] += __shfl_xor_sync(0xffffffffu, o[i][k], 2);
      o[i][k] *= k % 2 == 0 ? even : odd;
    }
  }
}

}  // namespace akv::kernels::cuda::decode
