// Chunks of a compressed head on their way in: cp.async of slots, coefficients and masks, and lists
// of the tokens that have residuals.
#pragma once

#include "kernels/cuda/decode_attention/state.h"

namespace akv::kernels::cuda::decode {

// A coefficient of 1 in either form.
inline constexpr int kOneAsLog8 = 81;
inline constexpr int kOneAsBf16 = 0x3f80;

// Fills the table of arrays from the head's view, once per piece; thread i takes array i. As chunks
// begin at multiples of kChunk, an array's bytes lie (source % 16) into their buffer in every one.
template <int D, int Heads>
AKV_DEVICE void describe_arrays(const Piecework<D, Heads>& w, int i) {
  PieceState& s = w.state();
  const CompressedSideView& side =
      (i == kValueSlots || i == kValueGammas || i >= kValueMask) ? s.head.value : s.head.key;
  const void* p = nullptr;
  int bytes = 1;
  if (i == kKeySlots || i == kValueSlots) {
    bytes = side.slots8 != nullptr ? 1 : 2;
    p = side.slots8 != nullptr ? static_cast<const void*>(side.slots8) : side.slots16;
  } else if (i == kKeyGammas || i == kValueGammas) {
    bytes = side.gamma8 != nullptr ? 1 : 2;
    p = side.gamma8 != nullptr ? static_cast<const void*>(side.gamma8) : side.gamma16;
  } else if (side.n2 + side.n4 > 0) {
    const int which = (i - kKeyMask) % 4;
    bytes = which < 2 ? 8 : 4;
    if (which == 0) p = side.mask;
    if (which == 1) p = side.mask4;
    if (which == 2) p = side.prefix2;
    if (which == 3) p = side.prefix4;
  }
  s.source[i] = static_cast<const uint8_t*>(p);
  s.unit_bytes[i] = bytes;
  s.staged[i] = w.raw_offset(i) + static_cast<int32_t>(reinterpret_cast<uintptr_t>(p) & 15);
}

// Starts the copies of the chunk at `base`: 16-byte blocks that enclose each array's part. Four
// warps have an array of tokens each, two have four arrays of masks or counts, 8 lanes for each.
template <int D, int Heads>
AKV_DEVICE void stage_chunk(const Piecework<D, Heads>& w, int base) {
  static_assert(kChunk * 2 <= 2 * 32 * 16 && kChunk / 64 * 8 + 16 <= 8 * 16 && kWarps >= 6);
  const PieceState& s = w.state();
  const int last = s.end < s.prefix ? s.end : s.prefix;
  const int tokens = last - base < kChunk ? last - base : kChunk;
  const bool masks = w.warp >= 4;
  const int item = masks ? kKeyMask + 4 * (w.warp - 4) + (w.lane >> 3) : w.warp;
  if (w.warp < 6 && tokens > 0 && s.source[item] != nullptr) {
    const int unit = s.unit_bytes[item];
    const uint8_t* source = s.source[item] + int64_t{masks ? base >> 6 : base} * unit;
    const int into = static_cast<int>(reinterpret_cast<uintptr_t>(source) & 15);
    const int bytes = into + (masks ? (tokens + 63) >> 6 : tokens) * unit;
    const int first = (masks ? w.lane & 7 : w.lane) * 16;
    unsigned char* to = w.shared + w.raw_offset(item) + first;
    source += first - into;
    if (first < bytes) cp_async<16>(to, source);
    if (!masks && first + 512 < bytes) cp_async<16>(to + 512, source + 512);
    if (!masks && first + 1024 < bytes) cp_async<16>(to + 1024, source + 1024);
  }
  cp_async_commit();
}

// Stream i: bit 0 values or keys, bit 1 the 4-bit or the 2-bit class, bit 2 scales or codes.
AKV_DEVICE void describe_stream(PieceState& s, int i) {
  const CompressedSideView& side = (i & 1) != 0 ? s.head.value : s.head.key;
  const bool four = (i & 2) != 0;
  const int row = s.head_dim / (four ? 2 : 4);
  const float* wide = four ? side.scale4_f32 : side.scale2_f32;
  const bf16* narrow = four ? side.scale4_bf16 : side.scale2_bf16;
  const void* scales = wide != nullptr ? static_cast<const void*>(wide) : narrow;
  const uint8_t* codes = four ? side.codes4 : side.codes2;
  s.stream[i] = (i & 4) != 0 ? static_cast<const uint8_t*>(scales) : codes;
  s.stream_bytes[i] = (i & 4) == 0 ? row : (wide != nullptr ? 4 : 2);
}

// Codes and scales are read where they lie: their next lines are called to L2 a chunk ahead, as
// many as this chunk has. The two warps that stage nothing have four streams each, 8 lanes for one.
template <int D, int Heads>
AKV_DEVICE void prefetch_residuals(const Piecework<D, Heads>& w) {
  static_assert(kWarps == 8);
  if (w.warp < 6) return;
  const PieceState& s = w.state();
  const int stream = 4 * (w.warp - 6) + (w.lane >> 3);
  const bool values = (stream & 1) != 0, four = (stream & 2) != 0;
  const CompressedSideView& side = values ? s.head.value : s.head.key;
  const Range& r = s.ranges[values ? 1 : 0];
  const int first = four ? r.four1 : r.two1, count = first - (four ? r.four0 : r.two0);
  const int n = static_cast<int>(four ? side.n4 : side.n2), bytes = s.stream_bytes[stream];
  const int rest = (count < n - first ? count : n - first) * bytes;
  const uint8_t* from = s.stream[stream] + int64_t{first} * bytes;
#pragma unroll 1
  for (int i = (w.lane & 7) * 128; i < rest; i += 8 * 128) prefetch_l2(from + i);
}

// One array of the staged chunk; of masks and counts only where the head has them.
template <int D, int Heads>
AKV_DEVICE unsigned char* staged(const Piecework<D, Heads>& w, int item) {
  return w.shared + w.state().staged[item];
}

// What the record does not hold of a chunk's tokens: the window, whose anchors are its own, and
// the places beyond the end, which are anchor 0 times 0.
template <int D, int Heads>
AKV_DEVICE void complete_chunk(const Piecework<D, Heads>& w, int base) {
  const PieceState& s = w.state();
  const int stored = s.prefix - base, first = stored > 0 ? stored : 0;
  for (int n = first + w.tid; n < kChunk; n += kThreads) {
    const bool window = base + n < s.end;
    const int slot = window ? s.anchors - s.window + n - stored : 0;
#pragma unroll
    for (int item = kKeySlots; item < kKeyMask; ++item) {
      const bool wide = s.unit_bytes[item] == 2, gamma = item == kKeyGammas || item == kValueGammas;
      const int one = wide ? kOneAsBf16 : kOneAsLog8;
      const int x = gamma ? (window ? one : 0) : slot;
      unsigned char* array = staged(w, item);
      if (wide) {
        reinterpret_cast<uint16_t*>(array)[n] = static_cast<uint16_t>(x);
      } else {
        array[n] = static_cast<unsigned char>(x);
      }
    }
  }
}

AKV_DEVICE float log8_value(int code) {
  const int magnitude = code & 127;
  if (magnitude == 0) return 0.0f;
  const float value = exp2_approx(static_cast<float>(magnitude - 1) * 0.0625f - 5.0f);
  return (code & 128) != 0 ? -value : value;
}

// Coefficients or slots of tokens n .. n + 3.
template <int D, int Heads>
AKV_DEVICE void load_gammas(const Piecework<D, Heads>& w, int item, int n, float (&gamma)[4]) {
  const unsigned char* array = staged(w, item);
  const float* table = w.template at<float>(Layout<D, Heads>::kGammas);
  const bool wide = w.state().unit_bytes[item] == 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    gamma[i] =
        wide ? low_bf16(reinterpret_cast<const uint16_t*>(array)[n + i]) : table[array[n + i]];
  }
}
template <int D, int Heads>
AKV_DEVICE void load_slots(const Piecework<D, Heads>& w, int item, int n, int (&slot)[4]) {
  const unsigned char* array = staged(w, item);
  const bool wide = w.state().unit_bytes[item] == 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    slot[i] = wide ? reinterpret_cast<const uint16_t*>(array)[n + i] : array[n + i];
  }
}

// The scales of one class of one side.
struct Scales {
  const uint8_t* array;
  bool wide;

  AKV_DEVICE Scales(const PieceState& s, bool values, bool four)
      : array(s.stream[4 + (four ? 2 : 0) + (values ? 1 : 0)]),
        wide(s.stream_bytes[4 + (four ? 2 : 0) + (values ? 1 : 0)] == 4) {}
  AKV_DEVICE float operator[](int index) const {
    if (wide) return __ldg(reinterpret_cast<const float*>(array) + index);
    return low_bf16(__ldg(reinterpret_cast<const uint16_t*>(array) + index));
  }
  template <int N>
  AKV_DEVICE void load(const int (&index)[N], float (&x)[N]) const {
    if (wide) {
#pragma unroll
      for (int i = 0; i < N; ++i) x[i] = __ldg(reinterpret_cast<const float*>(array) + index[i]);
      return;
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      x[i] = low_bf16(__ldg(reinterpret_cast<const uint16_t*>(array) + index[i]));
    }
  }
};

// Groups of 16 that the residuals [begin, end) of a stream touch.
AKV_DEVICE int groups_of(int begin, int end) {
  return end > begin ? ((end + 15) >> 4) - (begin >> 4) : 0;
}

// Lists of a chunk's residuals in stream order: which token. Those of keys share an array, 4-bit
// ones from its end. Those of values begin where their stream has a group of 16, and are filled up
// to whole groups with a token that has no weight.
AKV_DEVICE int key_list(const Range& r, bool four_bits, int index) {
  return four_bits ? kChunk - 1 - (index - r.four0) : index - r.two0;
}
inline constexpr int kNobody = kChunk;

// The sum over the lanes before this one; `total` that of all.
AKV_DEVICE int lanes_before(int x, int lane, int* total) {
  int sum = x;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, sum, offset);
    if (lane >= offset) sum += other;
  }
  *total = __shfl_sync(0xffffffffu, sum, 31);
  return sum - x;
}

// Makes the list of one class of one side, by a warp: each lane has 16 tokens.
template <int D, int Heads>
AKV_DEVICE void list_residuals(const Piecework<D, Heads>& w, int base, bool values, bool four) {
  using L = Layout<D, Heads>;
  static_assert(kChunk == 32 * 16);
  const PieceState& s = w.state();
  const int item = values ? kValueMask : kKeyMask;
  const int held = s.prefix < s.end ? s.prefix - base : s.end - base;
  const bool any4 = s.source[item + 1] != nullptr;
  Range& range = w.state().ranges[values ? 1 : 0];
  if (four && !any4) {
    if (w.lane == 0) range.four0 = range.four1 = 0;
    return;
  }
  const bool here = s.source[item] != nullptr && 16 * w.lane < held;
  const auto half_word = [&](int which) {
    return uint32_t{reinterpret_cast<const uint16_t*>(staged(w, item + which))[w.lane]};
  };
  const uint32_t mask4 = here && any4 ? half_word(1) : 0;
  uint32_t rest = four ? mask4 : (here ? half_word(0) & ~mask4 : 0);
  int total = 0;
  const int before = lanes_before(__popc(rest), w.lane, &total);
  int begin = 0;
  if (total > 0) begin = *reinterpret_cast<const int32_t*>(staged(w, item + (four ? 3 : 2)));
  if (w.lane == 0) {
    (four ? range.four0 : range.two0) = begin;
    (four ? range.four1 : range.two1) = begin + total;
  }
  auto* list =
      w.template at<uint16_t>(!values ? L::kKeyList : (four ? L::kValueList4 : L::kValueList2));
  const int first = values ? begin & 15 : (four ? kChunk - 1 : 0);
  const int step = !values && four ? -1 : 1;
  for (int at = first + step * before; rest != 0; rest &= rest - 1, at += step) {
    list[at] = static_cast<uint16_t>(16 * w.lane + __ffs(static_cast<int>(rest)) - 1);
  }
  if (!values) return;
  const int end = first + total;
  if (w.lane < first) list[w.lane] = kNobody;
  if (end + w.lane < (end + 15) / 16 * 16) list[end + w.lane] = kNobody;
}

}  // namespace akv::kernels::cuda::decode
