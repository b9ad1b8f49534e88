// Logits of a chunk, key side: the anchors' part of every token, and the residuals'.
#pragma once

#include "kernels/cuda/decode_attention/codes.h"
#include "kernels/cuda/decode_attention/pipeline.h"
#include "kernels/cuda/decode_attention/state.h"

namespace akv::kernels::cuda::decode {

AKV_DEVICE void swap_if(bool yes, uint4* a, uint4* b) {
  const uint4 x = *a, y = *b;
  *a = make_uint4(yes ? y.x : x.x, yes ? y.y : x.y, yes ? y.z : x.z, yes ? y.w : x.w);
  *b = make_uint4(yes ? x.x : y.x, yes ? x.y : y.y, yes ? x.z : y.z, yes ? x.w : y.w);
}

// Two MMA steps: a unit of both rows times the queries' unit.
AKV_DEVICE void multiply_unit(const uint4& row0, const uint4& row1, const uint4& q,
                              float (&acc)[4]) {
  const uint32_t a[4] = {row0.x, row1.x, row0.y, row1.y}, b[2] = {q.x, q.y};
  mma_f16(acc, a, b);
  const uint32_t c[4] = {row0.z, row1.z, row0.w, row1.w}, d[2] = {q.z, q.w};
  mma_f16(acc, c, d);
}

struct KeySlots {
  const unsigned char* array;
  bool wide;
  AKV_DEVICE int operator[](int n) const {
    return wide ? reinterpret_cast<const uint16_t*>(array)[n] : array[n];
  }
};

template <int D, int Heads>
using Angles = TileAngles<D, Layout<D, Heads>::kCrossed>;

// A warp at 16 tokens of a tile: the lane's two
// rows, its B operands, its sums. Columns of `fast` are heads (or heads times parity of the row,
// crossed), those of `slow` heads times two powers.
template <int D, int Heads, bool Resident>
struct TileDots {
  using L = Layout<D, Heads>;
  using B = Bands<D>;
  const Angles<D, Heads>& angles;
  int t;
  const uint4* row0;
  const uint4* row1;
  const uint4* fast_q;
  const uint4* slow_q;
  int cross;  // 4 in odd rows, 0 in even ones
  float fast[4] = {};
  float slow[Heads / 4][2][4] = {};

  AKV_DEVICE static uint4 load(const uint4* unit) { return Resident ? *unit : __ldg(unit); }
  // Unit v of both rows.
  AKV_DEVICE void multiply(int v, uint4 a0, uint4 a1) {
    if (v < B::kFast) {
      angles.turn(0, v, &a0);
      angles.turn(1, v, &a1);
      multiply_unit(a0, a1, fast_q[v * 32], fast);
      return;
    }
#pragma unroll
    for (int block = 0; block < Heads / 4; ++block) {
      const uint4* q = slow_q + (block * B::kPowers + B::powers_before(v)) * 32;
      multiply_unit(a0, a1, q[0], slow[block][0]);
      if (B::powers(v) == 2) multiply_unit(a0, a1, q[32], slow[block][1]);
    }
  }
  // Units v and v + 1, both fast: odd rows come with v + 1 first, and their heads have columns of
  // their own, so that no row must be put straight.
  AKV_DEVICE void multiply_crossed(int v, uint4 a0, uint4 a1, uint4 b0, uint4 b1) {
    const uint4* q = fast_q + v / 2 * 32;
    angles.turn(0, v, &a0);
    angles.turn(1, v, &a1);
    multiply_unit(a0, a1, q[0], fast);
    angles.turn(0, v + 1, &b0);
    angles.turn(1, v + 1, &b1);
    multiply_unit(b0, b1, q[4 - 2 * cross], fast);
  }
  // The dot product of row g + 8 row with head t + 4 block, at position u of the polynomials.
  AKV_DEVICE float sum(int row, int block, float u) const {
    const float(&low)[4] = slow[block][0];
    const float(&high)[4] = slow[block][1];
    const float turned =
        L::kCrossed ? (cross != 0 ? fast[2 * row + 1] : fast[2 * row]) : fast[2 * row + block];
    const float cubic = low[2 * row + 1] + u * (high[2 * row] + u * high[2 * row + 1]);
    return low[2 * row] + turned + u * cubic;
  }
};

// In a shared load of 16 bytes a phase is two rows of 64 bytes each: odd rows begin with the other
// unit of a pair, so that the two never meet in a bank, whatever their slots.
template <int D, int Heads, bool Resident>
AKV_DEVICE void tile_dots(TileDots<D, Heads, Resident>& d) {
  using L = Layout<D, Heads>;
  const bool odd = d.cross != 0;
  const int first = (odd ? 4 : 0) + d.t, second = (odd ? 0 : 4) + d.t;
#pragma unroll
  for (int v = 0; v + 1 < L::kUnits; v += 2) {
    uint4 a0 = d.load(d.row0 + first + 4 * v), a1 = d.load(d.row1 + first + 4 * v);
    uint4 b0 = d.load(d.row0 + second + 4 * v), b1 = d.load(d.row1 + second + 4 * v);
    if (L::kCrossed && v + 1 < Bands<D>::kFast) {
      d.multiply_crossed(v, a0, a1, b0, b1);
      continue;
    }
    swap_if(odd, &a0, &b0);
    swap_if(odd, &a1, &b1);
    d.multiply(v, a0, a1);
    d.multiply(v + 1, b0, b1);
  }
  if constexpr (L::kUnits % 2 != 0) {
    constexpr int v = L::kUnits - 1;
    d.multiply(v, d.load(d.row0 + 4 * v + d.t), d.load(d.row1 + 4 * v + d.t));
  }
}

// A warp takes rows 16 warp to 16 warp + 15 of every tile of a chunk. Logits in base 2, without
// the tokens' coefficients.
template <bool Resident, int D, int Heads>
AKV_DEVICE void key_dots(const Piecework<D, Heads>& w, const Angles<D, Heads>& angles, int base) {
  using L = Layout<D, Heads>;
  const PieceState& s = w.state();
  const KeySlots slots{staged(w, kKeySlots), s.unit_bytes[kKeySlots] == 2};
  const bool wide = s.wide != 0;
  const int row = 16 * w.warp + w.g;
  float* dots = w.template at<float>(L::kDots) + w.t * L::kDotStride + row;
  float unit[Heads / 4];
#pragma unroll
  for (int block = 0; block < Heads / 4; ++block) {
    unit[block] = w.template at<float>(L::kUnitsOfHeads)[4 * block + w.t];
  }
  // Positions of the polynomials: from the middle of the tile, or of the chunk, in halves of it.
  const float each = wide ? 2.0f / kChunk : 2.0f / kTile;
  float u = static_cast<float>(row - (wide ? kChunk / 2 : kTile / 2)) * each;
  const float u_step = wide ? kTile * each : 0.0f;
  const int q_step = wide ? 0 : L::kSlowFragmentsOfTile;
  const uint4* fast_q = w.template at<uint4>(L::kQueryFragments) + w.lane;
  const uint4* slow_q = w.template at<uint4>(L::kSlowFragments) + w.lane;
  const int held = s.end - base;
#pragma unroll 1
  for (int n = row; n < kChunk && n - w.g < held; n += kTile) {
    const uint4* rows = Resident ? w.rows() : s.halves;
    TileDots<D, Heads, Resident> d{
        angles, w.t,          rows + slots[n] * (D / 8), rows + slots[n + 8] * (D / 8), fast_q,
        slow_q, (w.g & 1) * 4};
    tile_dots(d);
#pragma unroll
    for (int block = 0; block < Heads / 4; ++block) {
      float* out = dots + 4 * block * L::kDotStride;
      out[0] = d.sum(0, block, u) * unit[block];
      out[8] = d.sum(1, block, u + 8 * each) * unit[block];
    }
    u += u_step;
    fast_q += L::kFastFragments;
    slow_q += q_step;
    dots += kTile;
  }
}

// A group of 16 key residuals (the last one of a stream has fewer), word by word side by side. Rows
// that are not there repeat the last one, and nobody reads their sums; words beyond the row repeat
// word 0, their queries are zero.
struct KeyGroup {
  CodeWords codes;
  int first;  // word of the stream
  int members;

  AKV_DEVICE int index(int r, int word, int words) const {
    return first + (word < words ? word : 0) * members + (r < members ? r : members - 1);
  }
  AKV_DEVICE uint32_t load(int r, int word, int words) const {
    return codes.load(index(r, word, words));
  }
};

// Sums of rows g and g + 8 with heads t + 4 block.
template <int Heads>
struct GroupDots {
  float sum[2][Heads / 4];
};

template <int D, int Heads>
AKV_DEVICE void group_dots2(const Piecework<D, Heads>& w, const KeyGroup& group,
                            GroupDots<Heads>* dots) {
  using L = Layout<D, Heads>;
  const uint4* fragments = w.template at<uint4>(L::kCodeFragments2) + w.lane;
  int32_t acc[Heads / 4][4] = {};
#pragma unroll
  for (int i = 0; i < L::kWords2; ++i) {
    const uint32_t x0 = group.load(w.g, 4 * i + w.t, D / 16);
    const uint32_t x1 = group.load(w.g + 8, 4 * i + w.t, D / 16);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const uint32_t c0 = (x0 >> (2 * step)) & 0x33333333u, c1 = (x1 >> (2 * step)) & 0x33333333u;
      const uint32_t a[4] = {key_levels(c0), key_levels(c1), key_levels(c0 >> 16),
                             key_levels(c1 >> 16)};
#pragma unroll
      for (int block = 0; block < Heads / 4; ++block) {
        const uint4 q = fragments[(block * L::kWords2 + i) * 32];
        const uint32_t b[2] = {step == 0 ? q.x : q.z, step == 0 ? q.y : q.w};
        mma_s8(acc[block], a, b);
      }
    }
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
#pragma unroll
    for (int block = 0; block < Heads / 4; ++block) {
      dots->sum[row][block] =
          static_cast<float>(256 * acc[block][2 * row] + acc[block][2 * row + 1]);
    }
  }
}

template <int D, int Heads>
AKV_DEVICE void group_dots4(const Piecework<D, Heads>& w, const KeyGroup& group,
                            GroupDots<Heads>* dots) {
  using L = Layout<D, Heads>;
  const uint32_t* levels = w.template at<uint32_t>(L::kLevels);
  const uint4* fragments = w.template at<uint4>(L::kCodeFragments4) + w.lane;
  const auto pair = [&](uint32_t codes) {
    return low_pair(levels[codes & 15], levels[codes >> 4 & 15]);
  };
  float acc[4] = {};
#pragma unroll
  for (int i = 0; i < L::kWords4; ++i) {
    const uint32_t x0 = group.load(w.g, 4 * i + w.t, D / 8);
    const uint32_t x1 = group.load(w.g + 8, 4 * i + w.t, D / 8);
    const uint4 q = fragments[i * 32];
    const uint32_t a[4] = {pair(x0), pair(x1), pair(x0 >> 8), pair(x1 >> 8)};
    const uint32_t b[2] = {q.x, q.y};
    mma_f16(acc, a, b);
    const uint32_t c[4] = {pair(x0 >> 16), pair(x1 >> 16), pair(x0 >> 24), pair(x1 >> 24)};
    const uint32_t d[2] = {q.z, q.w};
    mma_f16(acc, c, d);
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
#pragma unroll
    for (int block = 0; block < Heads / 4; ++block) dots->sum[row][block] = acc[2 * row + block];
  }
}

// Residual logits in base 2 to their tokens' places, a group of 16 per warp. Groups that straddle a
// chunk are made by both.
template <int D, int Heads>
AKV_DEVICE void key_residuals(const Piecework<D, Heads>& w, const Range& r) {
  using L = Layout<D, Heads>;
  const CompressedSideView& side = w.state().head.key;
  const float* units = w.template at<float>(L::kUnitsOfHeads) + 8 + w.t;
  float* logits = w.template at<float>(L::kResiduals) + w.t * L::kDotStride;
  const uint16_t* list = w.template at<uint16_t>(L::kKeyList);
  const int groups2 = groups_of(r.two0, r.two1);
  const int groups4 = groups_of(r.four0, r.four1);
#pragma unroll 1
  for (int i = w.warp; i < groups2 + groups4; i += kWarps) {
    const bool four = i >= groups2;
    const int first = ((four ? (r.four0 >> 4) - groups2 : r.two0 >> 4) + i) * 16;
    const int n = static_cast<int>(four ? side.n4 : side.n2);
    const int begin = four ? r.four0 : r.two0, end = four ? r.four1 : r.two1;
    const KeyGroup group{CodeWords(four ? side.codes4 : side.codes2),
                         first * (four ? D / 8 : D / 16), n - first < 16 ? n - first : 16};
    const Scales scales(w.state(), false, four);
    GroupDots<Heads> dots;
    if (four) {
      group_dots4(w, group, &dots);
    } else {
      group_dots2(w, group, &dots);
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int index = first + w.g + 8 * row;
      if (index < begin || index >= end) continue;
      const float scale = scales[index];
      float* out = logits + list[key_list(r, four, index)];
#pragma unroll
      for (int block = 0; block < Heads / 4; ++block) {
        const float unit = units[(four ? 8 : 0) + 4 * block];
        out[4 * block * L::kDotStride] = dots.sum[row][block] * scale * unit;
      }
    }
  }
}

// The lane's part of the products of a row, turned by its position, with the queries.
template <int D, int Heads, class Row>
AKV_DEVICE void turned_dots(const Piecework<D, Heads>& w, int64_t position, Row row,
                            float (&dots)[Heads]) {
  const float* query = w.template at<float>(Layout<D, Heads>::kQuery);
  const PairOrder order = w.order();
  const float* angles = w.args->rope.rows + position * 2 * order.half;
  for (int j = w.lane; j < D / 2; j += 32) {
    const float c = j < order.half ? __ldg(angles + j) : 1.0f;
    const float s = j < order.half ? __ldg(angles + order.half + j) : 0.0f;
    const float a = row(x_of_pair<D>(order, j)), b = row(y_of_pair<D>(order, j));
#pragma unroll
    for (int h = 0; h < Heads; ++h) {
      dots[h] += (a * c - b * s) * query[h * D + j] + (a * s + b * c) * query[h * D + D / 2 + j];
    }
  }
}

// What key_dots does, token by token, for a RoPE of which no pair is slow enough.
template <int D, int Heads>
AKV_DEVICE void steep_key_dots(const Piecework<D, Heads>& w, int base) {
  using L = Layout<D, Heads>;
  const KeySlots slots{staged(w, kKeySlots), w.state().unit_bytes[kKeySlots] == 2};
  const float* units = w.template at<float>(L::kUnitsOfHeads);
  float* out = w.template at<float>(L::kDots);
#pragma unroll 1
  for (int n = w.warp; n < kChunk && base + n < w.state().end; n += kWarps) {
    const bf16* anchor = w.state().head.key.anchors + int64_t{slots[n]} * D;
    const auto* bits = reinterpret_cast<const uint16_t*>(anchor);
    float dots[Heads] = {};
    turned_dots(
        w, base + n, [&](int d) { return low_bf16(__ldg(bits + d)); }, dots);
#pragma unroll
    for (int h = 0; h < Heads; ++h) {
      const float dot = warp_sum(dots[h]);
      if (w.lane == h) out[h * L::kDotStride + n] = dot * units[h];
    }
  }
}

// The `pre` domain, for fidelity: a warp rebuilds each residual, turns it and multiplies it.
template <int D, int Heads>
AKV_DEVICE void turned_residual(const Piecework<D, Heads>& w, bool four, int index,
                                int64_t position, float (&dots)[Heads]) {
  using L = Layout<D, Heads>;
  const CompressedSideView& side = w.state().head.key;
  const uint32_t* levels = w.template at<uint32_t>(L::kLevels);
  float* x = w.template at<float>(L::kCodeRows) + w.warp * D;
  constexpr float kInner = kLevels2[2], kOuter = kLevels2[3];
  const int per_word = four ? 8 : 16, bits = four ? 4 : 2;
  const int first = index & ~15, n = static_cast<int>(four ? side.n4 : side.n2);
  const int members = n - first < 16 ? n - first : 16;
  const uint8_t* codes = (four ? side.codes4 : side.codes2) + int64_t{first} * (D * bits / 8);
  __syncwarp();
  for (int d = w.lane; d < D; d += 32) {
    const uint8_t* word = codes + (d / per_word * members + (index & 15)) * 4;
    const int bit = d % per_word * bits;
    const uint32_t code = __ldg(word + bit / 8) >> (bit % 8) & (four ? 15u : 3u);
    const float level = code % 3 == 0 ? kOuter : kInner;
    x[d] = four ? __low2float(half2_of(levels[code])) : (code < 2 ? -level : level);
  }
  warp_hadamard<D>(x, w.lane);
  turned_dots(
      w, position, [&](int d) { return x[d] * __ldg(w.state().signs + d); }, dots);
}

template <int D, int Heads>
AKV_DEVICE void turned_key_residuals(const Piecework<D, Heads>& w, const Range& r, int base) {
  using L = Layout<D, Heads>;
  const float* units = w.template at<float>(L::kUnitsOfHeads);
  const uint16_t* list = w.template at<uint16_t>(L::kKeyList);
  float* logits = w.template at<float>(L::kResiduals);
  const int two = r.two1 - r.two0, total = two + r.four1 - r.four0;
#pragma unroll 1
  for (int i = w.warp; i < total; i += kWarps) {
    const bool four = i >= two;
    const int index = four ? r.four0 + i - two : r.two0 + i;
    const int n = list[key_list(r, four, index)];
    float dots[Heads] = {};
    turned_residual(w, four, index, base + n, dots);
    const float scale = Scales(w.state(), false, four)[index];
#pragma unroll
    for (int h = 0; h < Heads; ++h) {
      const float dot = warp_sum(dots[h]);
      if (w.lane == h) logits[h * L::kDotStride + n] = dot * scale * units[h];
    }
  }
}

}  // namespace akv::kernels::cuda::decode
