// Softmax of a chunk and the histogram over anchors. Maxima are rounded up to whole numbers in base
// 2: every rescaling is then by a power of two, exact in floats and in the fixed-point histogram.
#pragma once

#include "kernels/cuda/decode_attention/codes.h"
#include "kernels/cuda/decode_attention/pipeline.h"
#include "kernels/cuda/decode_attention/state.h"

namespace akv::kernels::cuda::decode {

// Logits of the thread's tokens, the warp's maxima, sums to kStats. The weights, relative to the
// warp's maxima, take the dots' place: only their own thread reads either.
template <int D, int Heads>
AKV_DEVICE void local_softmax(const Piecework<D, Heads>& w, const Token (&tokens)[2]) {
  using L = Layout<D, Heads>;
  float* dots = w.template at<float>(L::kDots) + w.tid;
  const float* residuals = w.template at<float>(L::kResiduals);
  float* stats = w.template at<float>(L::kStats) + w.warp * Heads * 3;
  float weight[2][Heads], largest[Heads];
#pragma unroll
  for (int h = 0; h < Heads; ++h) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float x = -INFINITY;
      if (tokens[i].valid()) {
        x = tokens[i].key_gamma * dots[h * L::kDotStride + i * kThreads];
        if (tokens[i].key_place() >= 0) x += residuals[h * L::kDotStride + tokens[i].key_place()];
      }
      weight[i][h] = x;
    }
    largest[h] = fmaxf(weight[0][h], weight[1][h]);
  }
  const float mine = fmaxf(ceilf(transposed_reduce(largest, w.lane, MaxOf{})), kNever);
  float sums[Heads];
#pragma unroll
  for (int h = 0; h < Heads; ++h) {
    const float peak = __shfl_sync(0xffffffffu, mine, h * (32 / Heads));
#pragma unroll
    for (int i = 0; i < 2; ++i) weight[i][h] = exp2_approx(weight[i][h] - peak);
    sums[h] = weight[0][h] + weight[1][h];
    dots[h * L::kDotStride] = weight[0][h];
    dots[h * L::kDotStride + kThreads] = weight[1][h];
  }
  const float total = transposed_reduce(sums, w.lane, SumOf{});
  const float gamma0 = fabsf(tokens[0].value_gamma), gamma1 = fabsf(tokens[1].value_gamma);
#pragma unroll
  for (int h = 0; h < Heads; ++h) {
    sums[h] = weight[0][h] * gamma0 + weight[1][h] * gamma1;
  }
  const float mass = transposed_reduce(sums, w.lane, SumOf{});
  if (w.lane % (32 / Heads) != 0) return;
  float* own = stats + w.lane / (32 / Heads) * 3;
  own[0] = mine;
  own[1] = total;
  own[2] = mass;
}

// How the running state of head lane % Heads moved.
struct Moved {
  float rescale = 0;  // of what was summed before
  int shift = 0;      // of the histogram, to the right
};

// Joins the warps' sums of a chunk into the running state: every warp does, with the same result.
template <int D, int Heads>
AKV_DEVICE Moved merge_warps(const Piecework<D, Heads>& w, Running* state) {
  using L = Layout<D, Heads>;
  constexpr int kEach = kWarps * Heads / 32;  // warps' entries that a lane joins
  const float* stats = w.template at<float>(L::kStats) + w.lane * 3;
  float peak = state->peak;
#pragma unroll
  for (int i = 0; i < kEach; ++i) peak = fmaxf(peak, stats[i * 32 * 3]);
  for (int offset = Heads; offset < 32; offset *= 2) {
    peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, offset));
  }
  float total = 0, mass = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const float scale = power_of_two(stats[i * 32 * 3] - peak);
    total += stats[i * 32 * 3 + 1] * scale;
    mass += stats[i * 32 * 3 + 2] * scale;
  }
  for (int offset = Heads; offset < 32; offset *= 2) {
    total += __shfl_xor_sync(0xffffffffu, total, offset);
    mass += __shfl_xor_sync(0xffffffffu, mass, offset);
  }
  Moved moved;
  moved.rescale = power_of_two(state->peak - peak);
  const bool first = state->total == 0;
  const float fixed = first ? 2 * kMaxFixed : state->fixed + peak - state->peak;
  state->total = state->total * moved.rescale + total;
  state->mass = state->mass * moved.rescale + mass;
  state->peak = peak;
  // All |entries| together stay below 2^31: the mass bounds them.
  const auto room = static_cast<float>(-exponent_above(state->mass));
  const bool full = fixed > kMaxFixed || fixed > room + 30.0f;
  state->fixed = full ? fminf(kMaxFixed, room + 29.0f) : fixed;
  moved.shift = first ? 0 : static_cast<int>(fminf(fixed - state->fixed, 32.0f));
  return moved;
}

// Halves the histogram's entries `shift` times, to nearest.
template <int D, int Heads>
AKV_DEVICE void shift_histogram(const Piecework<D, Heads>& w, int shift_of_head) {
#pragma unroll
  for (int h = 0; h < Heads; ++h) {
    const int shift = __shfl_sync(0xffffffffu, shift_of_head, h);
    if (shift == 0) continue;
    int32_t* bins = w.state().histogram + h * w.histogram_words();
    for (int i = w.tid; i < w.state().anchors; i += kThreads) {
      bins[i] = shift > 30 ? 0 : (bins[i] + (1 << (shift - 1))) >> shift;
    }
  }
}

// Adds the chunk's weights to the histogram, in fixed point: the sum does not depend on the order
// in which threads come. Leaves the residuals' weights, times their scales, in list order.
template <int D, int Heads>
AKV_DEVICE void spread_weights(const Piecework<D, Heads>& w, const Token (&tokens)[2],
                               const Running& state) {
  using L = Layout<D, Heads>;
  auto* list = w.template at<__nv_bfloat16>(L::kWeights);
  const float* stats = w.template at<float>(L::kStats) + w.warp * Heads * 3;
  const float* weights = w.template at<float>(L::kDots) + w.tid;
  const int stride = w.histogram_words();
  // Of head lane % Heads: from the warp's maximum to the common one, and the histogram's unit.
  const float own_scale = power_of_two(stats[w.lane % Heads * 3] - state.peak);
  const float own_unit = power_of_two(state.fixed);
#pragma unroll
  for (int h = 0; h < Heads; ++h) {
    const float scale = __shfl_sync(0xffffffffu, own_scale, h);
    const float unit = __shfl_sync(0xffffffffu, own_unit, h);
    if (h >= w.state().heads) continue;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float p = weights[h * L::kDotStride + i * kThreads] * scale;
      const int count = __float2int_rn(p * tokens[i].value_gamma * unit);
      if (count != 0) atomicAdd(w.state().histogram + h * stride + tokens[i].value_slot, count);
      if (tokens[i].value_place() >= 0) {
        list[h * L::kWeightStride + tokens[i].value_place()] =
            __float2bfloat16_rn(p * tokens[i].value_scale * kValueUnit);
      }
    }
  }
}

// Zeros around the ranges of the list, up to whole groups of 16.
template <int D, int Heads>
AKV_DEVICE void pad_weights(const Piecework<D, Heads>& w, const Range& r) {
  using L = Layout<D, Heads>;
  if (w.tid >= 64) return;
  auto* list = w.template at<__nv_bfloat16>(L::kWeights);
  const int end2 = r.two1 - (r.two0 & ~15), first4 = value_list4(r);
  const int end4 = first4 + r.four1 - (r.four0 & ~15);
  const int which = w.tid / 16;  // selected, not indexed: an array would lie in memory
  const int from = which == 0 ? 0 : (which == 1 ? end2 : (which == 2 ? first4 : end4));
  const int to =
      which == 0
          ? r.two0 & 15
          : (which == 1 ? first4 : (which == 2 ? first4 + (r.four0 & 15) : (end4 + 15) & ~15));
  const int at = from + w.tid % 16;
  if (at >= to) return;
  for (int h = 0; h < Heads; ++h) list[h * L::kWeightStride + at] = __float2bfloat16_rn(0.0f);
}

}  // namespace akv::kernels::cuda::decode
