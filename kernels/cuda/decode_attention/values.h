// Value residuals of a chunk, summed in the rotated domain.
#pragma once

#include "kernels/cuda/decode_attention/codes.h"
#include "kernels/cuda/decode_attention/pipeline.h"
#include "kernels/cuda/decode_attention/tiles.h"

namespace akv::kernels::cuda::decode {

// Lane g has word 8 p + g of a 2-bit row in pass p, all 16 coordinates of it: each of eight tiles
// has two of them as its rows g and g + 8, those whose codes come together out of value_levels().
// Where registers do not hold all tiles, two warps share them: a part has the codes in bytes 0 and
// 2 of the words, or in 1 and 3.
template <int D, int Heads>
struct ResidualTiles {
  static constexpr int kParts = D == 128 && Heads == 8 ? 2 : 1;
  static constexpr int kWords = D / 16;
  static constexpr int kPasses = (kWords + 7) / 8;
  static constexpr int kEach = 8 / kParts;  // tiles of a pass
  static constexpr int kTiles = kEach * kPasses;
  // First code in the word of tile e of a pass: bit 0 odd codes, bit 1 bytes 1 and 3 (where parts
  // do not tell), then bytes 2 and 3.
  AKV_DEVICE static int code(int e, int part) {
    if (kParts == 2) return (e & 1) + 4 * part + e / 2 * 8;
    return (e & 1) + e / 2 % 2 * 4 + e / 4 * 8;
  }
  AKV_DEVICE static int coordinate(int tile, int part, int g, int row) {
    const int word = tile / kEach * 8 + g;
    return word < kWords ? word * 16 + code(tile % kEach, part) + 2 * row : D;
  }
};

// A group of 16 value residuals as a lane sees it: residuals 2t, 2t + 1, 2t + 8, 2t + 9. Those that
// are not there repeat the last one, their weights are zero.
struct ValueGroup {
  CodeWords codes;
  int row[4];

  AKV_DEVICE ValueGroup(const uint8_t* stream, int first, int n, int t) : codes(stream) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int index = first + 2 * t + i % 2 + i / 2 * 8;
      row[i] = index < n ? index : n - 1;
    }
  }
};

// What weights are multiplied with on top of their scales: see sample_scales.
AKV_DEVICE float weight_unit(const PieceState& s) {
  const float largest = __int_as_float(s.largest_scale);
  return largest > 0.0f ? power_of_two(-4 - exponent_above(largest)) : 1.0f;
}
AKV_DEVICE float to_half_range(float x) { return fminf(fmaxf(x, -65504.0f), 65504.0f); }

// The weights times scales of the group as B operand: column g is head g % Heads.
template <int D, int Heads>
AKV_DEVICE void group_weights(const Piecework<D, Heads>& w, float unit, const Scales& scales,
                              const ValueGroup& group, const uint16_t* list, uint32_t (&b)[2]) {
  using L = Layout<D, Heads>;
  const float* weights = w.template at<float>(L::kDots) + w.g % Heads * L::kDotStride;
  float scale[4];
  scales.load(group.row, scale);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t two = *reinterpret_cast<const uint32_t*>(list + 2 * w.t + 8 * i);
    const float x = weights[two & 0xffffu] * scale[2 * i];
    const float y = weights[two >> 16] * scale[2 * i + 1];
    b[i] = pack_half2(to_half_range(x * unit), to_half_range(y * unit));
  }
}

// z += levels x weights of a group. Words of residuals 2t and 2t + 1 (and of the other two) are
// interleaved by bytes, so that codes of both stand in neighbouring nibbles.
template <int D, int Heads>
AKV_DEVICE void add_group2(const ValueGroup& group, int g, int part, const uint32_t (&b)[2],
                           float (&z)[ResidualTiles<D, Heads>::kTiles][4]) {
  using T = ResidualTiles<D, Heads>;
#pragma unroll
  for (int p = 0; p < T::kPasses; ++p) {
    const int word = 8 * p + g < T::kWords ? 8 * p + g : 0;
    uint32_t x[4];
    const int index[4] = {group.row[0] * T::kWords + word, group.row[1] * T::kWords + word,
                          group.row[2] * T::kWords + word, group.row[3] * T::kWords + word};
    group.codes.load4(index, x);
#pragma unroll
    for (int e = 0; e < T::kEach / 2; ++e) {  // bytes 0 and 2, or 1 and 3; even or odd codes
      const uint32_t select = (T::kParts == 2 ? part : e / 2) == 0 ? 0x6240u : 0x7351u;
      const uint32_t c0 = prmt(x[0], x[1], select) >> (e % 2 * 2) & 0x33333333u;
      const uint32_t c1 = prmt(x[2], x[3], select) >> (e % 2 * 2) & 0x33333333u;
      uint32_t a[4];
      value_levels(c0, &a[0], &a[1]);
      value_levels(c1, &a[2], &a[3]);
      mma_f16(z[T::kEach * p + e], a, b);
      value_levels(c0 >> 16, &a[0], &a[1]);
      value_levels(c1 >> 16, &a[2], &a[3]);
      mma_f16(z[T::kEach * p + e + T::kEach / 2], a, b);
    }
  }
}

template <int D, int Heads>
AKV_DEVICE void add_group4(const ValueGroup& group, int g, int part, const uint32_t* levels,
                           const uint32_t (&b)[2], float (&z)[ResidualTiles<D, Heads>::kTiles][4]) {
  using T = ResidualTiles<D, Heads>;
  constexpr int kHalf = T::kEach / 2;
#pragma unroll
  for (int p = 0; p < T::kPasses; ++p) {
    const int word = 8 * p + g < T::kWords ? 2 * (8 * p + g) : 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[i] = group.codes.load(group.row[i] * (2 * T::kWords) + word + half);
      }
#pragma unroll
      for (int e = kHalf * half; e < kHalf * half + kHalf; ++e) {
        uint32_t a[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int shift = 4 * ((T::code(e, part) & 7) + i % 2 * 2);
          a[i] = high_pair(levels[x[i / 2 * 2] >> shift & 15u],
                           levels[x[i / 2 * 2 + 1] >> shift & 15u]);
        }
        mma_f16(z[T::kEach * p + e], a, b);
      }
    }
  }
}

// z += weights x levels over the chunk's residuals, a group of 16 per warp (or two).
template <int D, int Heads>
AKV_DEVICE void value_residuals(const Piecework<D, Heads>& w, const Range& r,
                                float (&z)[ResidualTiles<D, Heads>::kTiles][4]) {
  using L = Layout<D, Heads>;
  const CompressedSideView& side = w.state().head.value;
  const uint32_t* levels = w.template at<uint32_t>(L::kLevels);
  const float unit = weight_unit(w.state());
  constexpr int kParts = ResidualTiles<D, Heads>::kParts;
  const int part = w.warp % kParts;
  const int groups2 = groups_of(r.two0, r.two1);
  const int groups4 = groups_of(r.four0, r.four1);
#pragma unroll 1
  for (int i = w.warp / kParts; i < groups2 + groups4; i += kWarps / kParts) {
    const bool four = i >= groups2;
    const int k = four ? i - groups2 : i;
    const int first = (((four ? r.four0 : r.two0) >> 4) + k) * 16;
    const ValueGroup group(four ? side.codes4 : side.codes2, first,
                           static_cast<int>(four ? side.n4 : side.n2), w.t);
    const uint16_t* list = w.template at<uint16_t>(four ? L::kValueList4 : L::kValueList2);
    uint32_t b[2];
    group_weights(w, unit, Scales(w.state(), true, four), group, list + 16 * k, b);
    if (four) {
      add_group4<D, Heads>(group, w.g, part, levels, b, z);
    } else {
      add_group2<D, Heads>(group, w.g, part, b, z);
    }
  }
}

// Columns of the accumulators, heads 2t and 2t + 1, to a chunk's new peaks.
template <int D, int Heads>
AKV_DEVICE void rescale_residuals(const Piecework<D, Heads>& w, int parity,
                                  float (&z)[ResidualTiles<D, Heads>::kTiles][4]) {
  const Shares<Heads>& shares = w.shares();
  const int head = 2 * w.t % Heads;
  const int even = shares.running[parity][head].peak - shares.peak[head];
  const int odd = shares.running[parity][head + 1].peak - shares.peak[head + 1];
  if (!__any_sync(0xffffffffu, (even | odd) != 0)) return;
  const float f = power_of_two(even), s = power_of_two(odd);
#pragma unroll
  for (int i = 0; i < ResidualTiles<D, Heads>::kTiles; ++i) {
    z[i][0] *= f;
    z[i][1] *= s;
    z[i][2] *= f;
    z[i][3] *= s;
  }
}

}  // namespace akv::kernels::cuda::decode
