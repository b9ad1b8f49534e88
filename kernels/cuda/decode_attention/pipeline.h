// Chunks of a compressed head on their way in: cp.async of slots, coefficients and masks one chunk
// ahead, and their decoding, a thread for each token.
#pragma once

#include "kernels/cuda/decode_attention/state.h"

namespace akv::kernels::cuda::decode {

// Fills the table of arrays from the head's view, once per piece; thread i takes array i.
AKV_DEVICE void describe_arrays(PieceState& s, int i) {
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
}

// Starts the copies of the chunk at `base`: 16-byte blocks that enclose each array's part. As base
// is a multiple of kChunk, an array's bytes lie (source % 16) into their buffer in every chunk.
template <int D, int Heads>
AKV_DEVICE void stage_chunk(const Piecework<D, Heads>& w, int base) {
  const int last = w.state().end < w.state().prefix ? w.state().end : w.state().prefix;
  const int tokens = last - base < kChunk ? last - base : kChunk;
  const PieceState& s = w.state();
  for (int item = w.warp; item < 12 && tokens > 0; item += kWarps) {
    const uint8_t* source = s.source[item];
    if (source == nullptr) continue;
    const int units = item < kKeyMask ? tokens : (tokens + 63) / 64;
    const int first = item < kKeyMask ? base : base / 64;
    source += int64_t{first} * s.unit_bytes[item];
    const int into = static_cast<int>(reinterpret_cast<uintptr_t>(source) & 15);
    const int bytes = into + units * s.unit_bytes[item];
    for (int i = w.lane * 16; i < bytes; i += 32 * 16) {
      cp_async<16>(w.raw(item) + i, source - into + i);
    }
  }
  cp_async_commit();
}

// Codes and scales are read where they lie: their next lines are called to L2 a chunk ahead, as
// many as this chunk has. A warp takes codes or scales of one width class of one side.
template <int D, int Heads>
AKV_DEVICE void prefetch_residuals(const Piecework<D, Heads>& w) {
  const PieceState& s = w.state();
  const bool values = (w.warp & 1) != 0, four = (w.warp & 2) != 0, scales = (w.warp & 4) != 0;
  const CompressedSideView& side = values ? s.head.value : s.head.key;
  const Range& r = s.ranges[values ? 1 : 0];
  const int first = four ? r.four1 : r.two1, count = first - (four ? r.four0 : r.two0);
  const int n = static_cast<int>(four ? side.n4 : side.n2);
  const int last = first + count < n ? first + count : n;
  const void* base = four ? side.codes4 : side.codes2;
  int64_t bytes = four ? D / 2 : D / 4;
  if (scales) {
    const bool narrow = side.scale2_bf16 != nullptr || side.scale4_bf16 != nullptr;
    bytes = narrow ? 2 : 4;
    if (narrow) {
      base = four ? side.scale4_bf16 : side.scale2_bf16;
    } else {
      base = four ? side.scale4_f32 : side.scale2_f32;
    }
  }
  const auto* from = static_cast<const uint8_t*>(base);
  for (int64_t i = first * bytes + w.lane * 128; i < last * bytes; i += 32 * 128) {
    prefetch_l2(from + i);
  }
}

// One array of the staged chunk.
template <int D, int Heads>
AKV_DEVICE const unsigned char* staged(const Piecework<D, Heads>& w, int item) {
  const uint8_t* source = w.state().source[item];
  if (source == nullptr) return nullptr;
  return w.raw(item) + (reinterpret_cast<uintptr_t>(source) & 15);
}

AKV_DEVICE int slot_of(const PieceState& s, const unsigned char* slots, int item, int n) {
  return s.unit_bytes[item] == 1 ? slots[n] : reinterpret_cast<const uint16_t*>(slots)[n];
}

AKV_DEVICE float gamma_of(const PieceState& s, const unsigned char* gammas, int item, int n) {
  if (s.unit_bytes[item] == 2) {
    return low_bf16(reinterpret_cast<const uint16_t*>(gammas)[n]);
  }
  const int code = gammas[n], magnitude = code & 127;
  if (magnitude == 0) return 0.0f;
  const float value = exp2_approx(static_cast<float>(magnitude - 1) * 0.0625f - 5.0f);
  return (code & 128) != 0 ? -value : value;
}

// Masks and counts of one side in the staged chunk; mask is null where nothing has a residual.
struct MaskWords {
  const uint64_t* mask;
  const uint64_t* mask4;
  const uint32_t* prefix2;
  const uint32_t* prefix4;

  AKV_DEVICE uint64_t four(int word) const { return mask4 == nullptr ? 0 : mask4[word]; }
  AKV_DEVICE int before4(int word) const {
    return mask4 == nullptr ? 0 : static_cast<int>(prefix4[word]);
  }
  // The ranges of words [0, words).
  AKV_DEVICE Range range(int words) const {
    Range r;
    if (mask == nullptr || words <= 0) return r;
    const uint64_t last4 = four(words - 1);
    r.two0 = static_cast<int>(prefix2[0]);
    r.two1 = static_cast<int>(prefix2[words - 1]) + __popcll(mask[words - 1] & ~last4);
    r.four0 = before4(0);
    r.four1 = before4(words - 1) + __popcll(last4);
    return r;
  }
  // Index of token n's residual in its stream, or -1.
  AKV_DEVICE int place(int n, bool* four_bits) const {
    if (mask == nullptr) return -1;
    const int word = n >> 6;
    const uint64_t any = mask[word], four_mask = four(word);
    if (((any >> (n & 63)) & 1) == 0) return -1;
    const uint64_t below = (uint64_t{1} << (n & 63)) - 1;
    *four_bits = ((four_mask >> (n & 63)) & 1) != 0;
    if (*four_bits) return before4(word) + __popcll(four_mask & below);
    return static_cast<int>(prefix2[word]) + __popcll(any & ~four_mask & below);
  }
};

template <int D, int Heads>
AKV_DEVICE MaskWords mask_words(const Piecework<D, Heads>& w, int first_item) {
  return {reinterpret_cast<const uint64_t*>(staged(w, first_item)),
          reinterpret_cast<const uint64_t*>(staged(w, first_item + 1)),
          reinterpret_cast<const uint32_t*>(staged(w, first_item + 2)),
          reinterpret_cast<const uint32_t*>(staged(w, first_item + 3))};
}

AKV_DEVICE float scale_of(const CompressedSideView& side, bool four_bits, int index) {
  const bf16* narrow = four_bits ? side.scale4_bf16 : side.scale2_bf16;
  const float* wide = four_bits ? side.scale4_f32 : side.scale2_f32;
  if (wide != nullptr) return __ldg(wide + index);
  return low_bf16(__ldg(reinterpret_cast<const uint16_t*>(narrow) + index));
}

// Lists of a chunk's residuals. Key logits stand in stream order, 2 bits first. Value weights too,
// but each class begins where its stream has a group of 16, so that a pair of weights is a word.
AKV_DEVICE int key_list(const Range& r, bool four_bits, int index) {
  return four_bits ? r.two1 - r.two0 + index - r.four0 : index - r.two0;
}
AKV_DEVICE int value_list4(const Range& r) { return ((r.two1 + 15) & ~15) - (r.two0 & ~15); }
AKV_DEVICE int value_list(const Range& r, bool four_bits, int index) {
  return four_bits ? value_list4(r) + index - (r.four0 & ~15) : index - (r.two0 & ~15);
}

// The thread's tokens of the chunk, and the slots of all keys in shared memory.
template <int D, int Heads>
AKV_DEVICE void decode_tokens(const Piecework<D, Heads>& w, int base, Token (&tokens)[2]) {
  using L = Layout<D, Heads>;
  const PieceState& s = w.state();
  const int stored =
      w.state().prefix - base;  // tokens of the chunk before this are not the window's
  const int held = stored < w.state().end - base ? stored : w.state().end - base;
  const int words = ((held < kChunk ? held : kChunk) + 63) / 64;
  const MaskWords key_masks = mask_words(w, kKeyMask), value_masks = mask_words(w, kValueMask);
  const Range keys = key_masks.range(words), values = value_masks.range(words);
  if (w.tid == 0) {
    w.state().ranges[0] = keys;
    w.state().ranges[1] = values;
  }
  auto* slots = w.template at<uint16_t>(L::kSlots);
  auto* positions = w.template at<uint16_t>(L::kPositions);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int n = w.tid + i * kThreads;
    Token token;
    int key_slot = 0;
    const bool valid = base + n < w.state().end;
    if (valid && n < stored) {
      key_slot = slot_of(s, staged(w, kKeySlots), kKeySlots, n);
      token.value_slot = slot_of(s, staged(w, kValueSlots), kValueSlots, n);
      token.key_gamma = gamma_of(s, staged(w, kKeyGammas), kKeyGammas, n);
      token.value_gamma = gamma_of(s, staged(w, kValueGammas), kValueGammas, n);
      bool four_bits = false;
      int index = key_masks.place(n, &four_bits);
      if (index >= 0) {
        const int place = key_list(keys, four_bits, index);
        token.places = static_cast<uint32_t>(place) + 1;
        positions[place] = static_cast<uint16_t>(n);
      }
      index = value_masks.place(n, &four_bits);
      if (index >= 0) {
        token.places |= static_cast<uint32_t>(value_list(values, four_bits, index) + 1) << 16;
        token.value_scale = scale_of(s.head.value, four_bits, index);
      }
    } else if (valid) {  // the window: its own anchors
      key_slot = token.value_slot = w.state().anchors - w.state().window + n - stored;
      token.key_gamma = token.value_gamma = 1.0f;
    }
    slots[n] = static_cast<uint16_t>(key_slot);
    tokens[i] = token;
  }
}

}  // namespace akv::kernels::cuda::decode
