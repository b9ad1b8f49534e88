// What the threads of a block know of the compressed piece that they work on.
#pragma once

#include "kernels/cuda/decode_attention/arguments.h"
#include "kernels/cuda/decode_attention/rotation.h"

namespace akv::kernels::cuda::decode {

// Arrays of a head that come chunk by chunk: slots and coefficients of both sides, then mask,
// mask4, prefix2 and prefix4 of the keys, then of the values. Null where a record has none.
enum RawItem { kKeySlots, kKeyGammas, kValueSlots, kValueGammas, kKeyMask, kValueMask = 8 };

// Residuals of one side within a chunk, as ranges of its two streams.
struct Range {
  int32_t two0 = 0, two1 = 0;
  int32_t four0 = 0, four1 = 0;
};

// What is the same for all threads of a block, in shared memory: registers are short.
struct PieceState {
  CompressedHeadView head;
  const uint8_t* source[12];  // arrays of the head, by RawItem
  int32_t unit_bytes[12];     // per token, or per word of 64
  Range ranges[2];            // of the chunk: keys, values
  int32_t* histogram;         // [Heads][histogram_stride(k)]
  const float* signs;
  const float* q;  // of the part's first head
  int32_t heads;   // of the part
  int32_t begin, end;
  int32_t prefix, anchors, window;
  int32_t post;      // domain of the key residuals
  int32_t resident;  // rows() holds all the keys' anchors; else 16 rows of each warp
  int32_t stale;     // it does not hold them yet
  int32_t steep;     // RoPE's pairs are all too fast for Bands
  int32_t wide;      // its slow pairs are slow enough for a chunk
};
static_assert(sizeof(PieceState) <= 640);
static_assert(sizeof(CompressedHeadView) % 4 == 0);

// A token of a chunk, in the registers of the thread that owns it. Places are one more than those
// in the lists, so that 0 is none.
struct Token {
  float key_gamma = 0;
  float value_gamma = 0;
  float value_scale = 0;    // of its residual
  int32_t value_slot = -1;  // -1: no token of the piece
  uint32_t places = 0;      // of its residuals' logits (low half) and weight (high half)

  AKV_DEVICE bool valid() const { return value_slot >= 0; }
  AKV_DEVICE int key_place() const { return static_cast<int>(places & 0xffffu) - 1; }
  AKV_DEVICE int value_place() const { return static_cast<int>(places >> 16) - 1; }
};

// Softmax so far of head lane % Heads; the same in all warps.
//   peak   whole; weights are 2^(logit - peak)
//   total  sum of weights, mass: sum of weights times |coefficient| (bounds the histogram)
//   fixed  the histogram counts in units of 2^-fixed (relative to peak)
struct Running {
  float peak = -1e6f;
  float total = 0;
  float mass = 0;
  float fixed = 0;
};
static_assert(sizeof(Running) == 16);
inline constexpr float kMaxFixed = 100.0f;
inline constexpr float kNever = -1e6f;

template <class T>
AKV_DEVICE T* shared_at(unsigned char* shared, int64_t offset) {
  return reinterpret_cast<T*>(shared + offset);
}

// A block at work on a piece: the thread's place, and the way to what all threads share.
template <int D, int Heads>
struct Piecework {
  using L = Layout<D, Heads>;
  const KernelArgs* args;
  unsigned char* shared;
  int tid, warp, lane, g, t;  // g = lane / 4, t = lane % 4: row and column of MMA fragments

  AKV_DEVICE PieceState& state() const { return *shared_at<PieceState>(shared, L::kState); }
  template <class T>
  AKV_DEVICE T* at(int64_t offset) const {
    return shared_at<T>(shared, offset);
  }
  // The keys' anchors as halves in the order of rotation.
  AKV_DEVICE uint4* rows() const { return shared_at<uint4>(shared, args->rows_offset); }
  // Between chunks the running state lies in shared memory, each warp's own; lanes of a head write
  // and read the same.
  AKV_DEVICE Running& running() const {
    return shared_at<Running>(shared, L::kRunning)[warp * Heads + lane % Heads];
  }
  AKV_DEVICE PairOrder order() const {
    return {args->rope.half, args->rope.pairs == RopePairs::kInterleaved};
  }
  AKV_DEVICE int histogram_words() const {
    return static_cast<int>(histogram_stride(state().anchors));
  }
  AKV_DEVICE unsigned char* raw(int item) const {
    const int64_t offset = item < kKeyMask
                               ? int64_t{item} * L::kRawTokens
                               : int64_t{4} * L::kRawTokens + (item - kKeyMask) * L::kRawWords;
    return shared + L::kRaw + offset;
  }
};

}  // namespace akv::kernels::cuda::decode
