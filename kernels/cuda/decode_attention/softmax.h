// Softmax of a chunk. Maxima are rounded up to whole numbers in base 2: every rescaling is then by
// a power of two, exact in floats and in the fixed-point histogram.
#pragma once

#include "kernels/cuda/decode_attention/pipeline.h"
#include "kernels/cuda/decode_attention/state.h"

namespace akv::kernels::cuda::decode {

// A thread's part of a chunk: four neighbouring tokens of half the heads. The lanes of a warp have
// the same heads; kSiblings threads have them.
template <int Heads>
struct Quad {
  static constexpr int kEach = Heads / 2;
  static constexpr int kSiblings = kThreads / 2;
  static_assert(kSiblings * 4 == kChunk);
  float x[kEach][4];  // logits, then weights times coefficients
  float value_gamma[4];
  uint32_t slots[2];  // of the values, u16

  AKV_DEVICE static int token(int tid) { return (tid & (kSiblings - 1)) * 4; }
  AKV_DEVICE static int head(int tid) { return tid >= kSiblings ? kEach : 0; }
  AKV_DEVICE int slot(int i) const {
    return static_cast<int>(i % 2 == 0 ? slots[i / 2] & 0xffffu : slots[i / 2] >> 16);
  }
};

// Logits from the products and residuals, whose place is cleared for the next chunk. The block's
// maxima go to Shares::peak. After this nobody needs what is staged of the chunk.
template <int D, int Heads>
AKV_DEVICE void quad_logits(const Piecework<D, Heads>& w, int base, Quad<Heads>* quad) {
  using L = Layout<D, Heads>;
  const int n = Quad<Heads>::token(w.tid), head = Quad<Heads>::head(w.tid);
  float gamma[4];
  int slot[4];
  load_gammas(w, kKeyGammas, n, gamma);
  load_gammas(w, kValueGammas, n, quad->value_gamma);
  load_slots(w, kValueSlots, n, slot);
  quad->slots[0] = static_cast<uint32_t>(slot[0] | slot[1] << 16);
  quad->slots[1] = static_cast<uint32_t>(slot[2] | slot[3] << 16);
  const auto* dots = w.template at<float>(L::kDots) + head * L::kDotStride + n;
  auto* residuals = w.template at<float>(L::kResiduals) + head * L::kDotStride + n;
  const int count = w.state().end - base - n;  // of the tokens that are there
#pragma unroll
  for (int h = 0; h < Quad<Heads>::kEach; ++h) {
    const float4 d = *reinterpret_cast<const float4*>(dots + h * L::kDotStride);
    auto* place = reinterpret_cast<float4*>(residuals + h * L::kDotStride);
    const float4 r = *place;
    *place = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float(&x)[4] = quad->x[h];
    x[0] = gamma[0] * d.x + r.x;
    x[1] = gamma[1] * d.y + r.y;
    x[2] = gamma[2] * d.z + r.z;
    x[3] = gamma[3] * d.w + r.w;
  }
  if (w.state().end - base < kChunk) {
#pragma unroll
    for (int h = 0; h < Quad<Heads>::kEach; ++h) {
#pragma unroll
      for (int i = 0; i < 4; ++i) quad->x[h][i] = i < count ? quad->x[h][i] : -INFINITY;
    }
  }
#pragma unroll
  for (int h = 0; h < Quad<Heads>::kEach; ++h) {
    const float(&x)[4] = quad->x[h];
    const int peak = __float2int_ru(fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])));
    const int largest = __reduce_max_sync(0xffffffffu, peak);
    if (w.lane == 0) atomicMax(&w.shares().peak[head + h], largest);
  }
}

// Weights relative to the new peaks, to the place of the products; their sums to the thread's own
// in kSums (registers are short). Bounds of the chunk's mass to Shares.
template <int D, int Heads>
AKV_DEVICE void quad_weights(const Piecework<D, Heads>& w, int parity, Quad<Heads>* quad) {
  using L = Layout<D, Heads>;
  const int n = Quad<Heads>::token(w.tid), head = Quad<Heads>::head(w.tid);
  auto* weights = w.template at<float>(L::kDots) + head * L::kDotStride + n;
  float* sums = w.template at<float>(L::kSums) + w.tid * Quad<Heads>::kEach;
  Shares<Heads>& shares = w.shares();
#pragma unroll
  for (int h = 0; h < Quad<Heads>::kEach; ++h) {
    const int whole = shares.peak[head + h];
    const auto peak = static_cast<float>(whole);
    float(&x)[4] = quad->x[h];
    float mass = 0, sum = 0;
    float p[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      p[i] = exp2_approx(x[i] - peak);
      sum += p[i];
      x[i] = p[i] * quad->value_gamma[i];
      mass += fabsf(x[i]);
    }
    float& own = sums[h];
    own = own * power_of_two(shares.running[parity][head + h].peak - whole) + sum;
    *reinterpret_cast<float4*>(weights + h * L::kDotStride) = make_float4(p[0], p[1], p[2], p[3]);
    const unsigned units = __float2uint_rz(fminf(mass, kLargestMass) * kMassUnits) + 1u;
    const unsigned all = __reduce_add_sync(0xffffffffu, units);
    if (w.lane == 0) atomicAdd(&shares.mass[parity][head + h], all);
    if (mass > kLargestMass) atomicMax(&shares.large[head + h], exponent_above(mass));
  }
}

// The sum of each head's weights over the block, to kTotals.
template <int D, int Heads>
AKV_DEVICE void join_totals(const Piecework<D, Heads>& w) {
  const float* sums = w.template at<float>(Layout<D, Heads>::kSums) + w.tid * Quad<Heads>::kEach;
  float* totals = w.template at<float>(Layout<D, Heads>::kTotals);
  const int head = Quad<Heads>::head(w.tid);
#pragma unroll
  for (int h = 0; h < Quad<Heads>::kEach; ++h) {
    const float sum = warp_sum(sums[h]);
    if (w.lane == 0) totals[(head + h) * 4 + w.warp % 4] = sum;
  }
}

}  // namespace akv::kernels::cuda::decode
