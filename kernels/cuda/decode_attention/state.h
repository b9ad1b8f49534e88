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
  int32_t staged[12];         // where a chunk's part begins in shared memory
  const uint8_t* stream[8];   // codes and scales, by describe_stream
  int32_t stream_bytes[8];    // of a residual there
  Range ranges[2];            // of the chunk: keys, values
  int32_t* histogram;         // [Heads][histogram_stride(k)]
  const uint4* halves;        // the keys' anchors, where rows() does not hold them
  const float* signs;
  const float* q;  // of the part's first head
  int32_t head_dim;
  int32_t heads;  // of the part
  int32_t begin, end;
  int32_t index;  // of the piece in the plan
  int32_t prefix, anchors, window;
  int32_t post;           // domain of the key residuals
  int32_t resident;       // rows() holds all the keys' anchors; else 16 rows of each warp
  int32_t stale;          // it does not hold them yet
  int32_t steep;          // RoPE's pairs are all too fast for Bands
  int32_t largest_scale;  // in a sample of the value residuals, the float's bits
  int32_t wide;           // its slow pairs are slow enough for a chunk
};
static_assert(sizeof(PieceState) <= 768);
static_assert(sizeof(CompressedHeadView) % 4 == 0);

// Softmax so far of a head. Peaks are whole numbers in base 2: weights are 2^(logit - peak).
//   mass   at least the sum of weights times |coefficient|: bounds the histogram
//   fixed  the histogram counts in units of 2^-fixed (relative to peak)
struct Running {
  int32_t peak;
  float mass;
  int32_t fixed;
  int32_t pad;
};
static_assert(sizeof(Running) == 16);
inline constexpr int kMaxFixed = 100;
inline constexpr int kNever = -1000000;

// What warps tell each other of a chunk's softmax.
template <int Heads>
struct Shares {
  int32_t peak[Heads];        // of all chunks so far
  uint32_t mass[2][Heads];    // of this chunk (by parity) in units of 1 / kMassUnits
  int32_t large[Heads];       // 2^large is more than any thread's part of a chunk's mass, or 0
  Running running[2][Heads];  // before this chunk, by its parity
};
AKV_DEVICE int parity_of(int token) { return token / kChunk & 1; }
inline constexpr float kMassUnits = 4096.0f;
inline constexpr float kLargestMass = 4096.0f;  // of a thread's, that such units can count

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
  AKV_DEVICE Shares<Heads>& shares() const { return *shared_at<Shares<Heads>>(shared, L::kShares); }
  AKV_DEVICE PairOrder order() const {
    return {args->rope.half, args->rope.pairs == RopePairs::kInterleaved};
  }
  AKV_DEVICE int histogram_words() const {
    return static_cast<int>(histogram_stride(state().anchors));
  }
  // Buffers of the arrays of a chunk.
  AKV_DEVICE static int32_t raw_offset(int item) {
    return static_cast<int32_t>(L::kRaw) +
           (item < kKeyMask ? item * L::kRawTokens
                            : 4 * L::kRawTokens + (item - kKeyMask) * L::kRawWords);
  }
};

}  // namespace akv::kernels::cuda::decode
