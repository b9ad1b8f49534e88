// Coding of the chosen residuals: rotate, quantise, fit the scale, pack. A block takes one mask
// word, a warp one residual at a time.
#include "kernels/codec.h"
#include "kernels/compressed_view.h"
#include "kernels/cuda/codec/numeric.h"

namespace akv::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kPerLane = kMaxHeadDim / 32;

// Levels and thresholds of one width, as kernel parameters: constants in the instructions' reach.
template <int kCodes>
struct Codebook {
  float levels[kCodes];
  float thresholds[kCodes - 1];
};

struct Work {
  CodecLayer layer;
  EncodeParams p;
  Codebook<4> two;
  Codebook<16> four;
};

struct WarpRow {
  float x[kMaxHeadDim];
  uint8_t codes[kMaxHeadDim];
};

// One residual's place in its region, in bytes.
struct Place {
  int64_t scale, codes, chunk;
  int64_t index, count;  // within the head's stream
};

__device__ Place place_of(const Work& w, int side, int head, bool wide, int64_t index) {
  const EncodeParams& p = w.p;
  const int heads = w.layer.kv_heads, depth = w.layer.head_dim;
  const uint32_t* first = p.first + (side * heads) * 2;
  const uint32_t* count = p.count + (side * heads) * 2;
  const int64_t n2 = first[(heads - 1) * 2] + count[(heads - 1) * 2];
  const int64_t n4 = first[(heads - 1) * 2 + 1] + count[(heads - 1) * 2 + 1];
  const int64_t before = first[head * 2 + wide];
  const int64_t scale_bytes = p.scale_f32 ? 4 : 2;
  const int64_t codes2 = (n2 + n4) * scale_bytes, codes4 = codes2 + n2 * depth / 4;
  const int64_t chunks = codes4 + n4 * depth / 2;
  Place at;
  at.scale = ((wide ? n2 : 0) + before + index) * scale_bytes;
  at.codes = wide ? codes4 + before * depth / 2 : codes2 + before * depth / 4;
  at.chunk = chunks + (wide ? n2 : 0) + before + index;
  at.index = index;
  at.count = count[head * 2 + wide];
  return at;
}

// x - gamma x_a of token t, rotated to its position where keys are coded after RoPE, then U.
__device__ void load_row(const Work& w, int side, int head, int64_t t, const float* signs,
                         float* x) {
  const CodecLayer& layer = w.layer;
  const EncodeParams& p = w.p;
  const int depth = layer.head_dim, lane = threadIdx.x % 32;
  const int64_t at = (static_cast<int64_t>(side) * layer.kv_heads + head) * layer.prefix() + t;
  const int64_t anchor = p.positions[static_cast<int64_t>(head) * p.k + p.assignment.slot[at]];
  const float gamma = p.assignment.gamma[at];
  const bf16* rows = (side == 0 ? layer.k : layer.v) + static_cast<int64_t>(head) * depth;
  const int64_t stride = static_cast<int64_t>(layer.kv_heads) * depth;
  const uint32_t* own = reinterpret_cast<const uint32_t*>(rows + t * stride);
  const uint32_t* base = reinterpret_cast<const uint32_t*>(rows + anchor * stride);
  for (int i = lane; i < depth / 2; i += 32) {
    const float2 a = widen_pair(own[i]), b = widen_pair(base[i]);
    x[2 * i] = fmaf(-gamma, b.x, a.x);
    x[2 * i + 1] = fmaf(-gamma, b.y, a.y);
  }
  __syncwarp();
  if (side == 0 && p.post_rope) {
    const float* angles = layer.rope.rows + t * 2 * layer.rope.half;
    for (int j = lane; j < layer.rope.half; j += 32) rotate_pair(layer.rope, angles, j, x);
    __syncwarp();
  }
  const int block = hadamard_block(depth);
  for (int i = lane; i < depth; i += 32) x[i] *= signs[i];
  __syncwarp();
  for (int step = block / 2; step > 0; step /= 2) {
    for (int i = lane; i < depth / 2; i += 32) {
      const int low = i / step * 2 * step + i % step;
      const float a = x[low], b = x[low + step];
      x[low] = a + b;
      x[low + step] = a - b;
    }
    __syncwarp();
  }
}

// A lane's coordinates lane, lane + 32, ...
struct Coordinates {
  float x[kPerLane];
  int n;
};

struct Fit {
  float cross, square;
  bool changed;
};

// Codes of x * inv; the sums that the best scale for them is made of.
template <int kCodes>
__device__ Fit fit_codes(const Coordinates& c, float inv, const Codebook<kCodes>& book,
                         uint32_t (&codes)[kPerLane]) {
  float cross = 0.0f, square = 0.0f;
  bool changed = false;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (i >= c.n) break;
    const float u = c.x[i] * inv;
    float level = book.levels[0];
    uint32_t code = 0;
#pragma unroll
    for (int k = 1; k < kCodes; ++k) {
      const bool up = u >= book.thresholds[k - 1];
      level = up ? book.levels[k] : level;
      code += up;
    }
    changed |= code != codes[i];
    codes[i] = code;
    cross = fmaf(c.x[i], level, cross);
    square = fmaf(level, level, square);
  }
  return {warp_sum(cross), warp_sum(square), __any_sync(kAllLanes, changed) != 0};
}

// As quantize_row on the CPU.
template <int kCodes>
__device__ float quantise(const Coordinates& c, int depth, bool least_squares,
                          const Codebook<kCodes>& book, uint32_t (&codes)[kPerLane]) {
  float energy = 0.0f, top = 0.0f;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    codes[i] = 0;
    if (i >= c.n) continue;
    energy = fmaf(c.x[i], c.x[i], energy);
    top = fmaxf(top, fabsf(c.x[i]));
  }
  const float norm2 = warp_sum(energy);
  if (!(norm2 > 0)) {
    fit_codes(c, 0.0f, book, codes);
    return 0.0f;
  }
  if (!least_squares) {
    const float scale = warp_max(top) / book.levels[kCodes - 1];
    fit_codes(c, 1.0f / scale, book, codes);
    return scale;
  }
  const float rms = sqrtf(norm2 / static_cast<float>(depth));
  Fit fit = fit_codes(c, 1.0f / rms, book, codes);
  for (int round = 0; round < 8 && fit.changed; ++round) {
    const float scale = fit.cross / fit.square;
    fit = fit_codes(c, 1.0f / scale, book, codes);
  }
  return fit.cross / fit.square;
}

// Packs the codes of one residual, one word a lane. The streams are aligned to 2 bytes at least.
__device__ void pack_row(const uint8_t* codes, int depth, int bits, int group, const Place& at,
                         std::byte* region) {
  const int per_word = 32 / bits, words = depth / per_word;
  for (int w = threadIdx.x % 32; w < words; w += 32) {
    uint32_t word = 0;
    for (int i = 0; i < per_word; ++i) {
      word |= static_cast<uint32_t>(codes[w * per_word + i]) << (bits * i);
    }
    const int64_t offset = at.codes + code_word_offset(at.index, at.count, w, words, group);
    uint16_t* to = reinterpret_cast<uint16_t*>(region + offset);
    to[0] = static_cast<uint16_t>(word);
    to[1] = static_cast<uint16_t>(word >> 16);
  }
}

__device__ void code_residual(const Work& w, int side, int head, int64_t t, bool wide,
                              const Place& at, const float* signs, WarpRow& row) {
  const int depth = w.layer.head_dim, lane = threadIdx.x % 32;
  const EncodeParams& p = w.p;
  load_row(w, side, head, t, signs, row.x);
  Coordinates c;
  c.n = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    c.x[i] = lane + 32 * i < depth ? row.x[lane + 32 * i] : 0.0f;
    c.n += lane + 32 * i < depth;
  }
  uint32_t codes[kPerLane];
  const float scale = wide ? quantise(c, depth, p.least_squares, w.four, codes)
                           : quantise(c, depth, p.least_squares, w.two, codes);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (i < c.n) row.codes[lane + 32 * i] = static_cast<uint8_t>(codes[i]);
  }
  __syncwarp();
  std::byte* region = p.region[side];
  pack_row(row.codes, depth, wide ? 4 : 2, side == 0 ? kKeyCodeGroup : kValueCodeGroup, at, region);
  if (lane == 0) {
    float stored = scale;
    if (p.scale_f32) {
      *reinterpret_cast<float*>(region + at.scale) = scale;
    } else {
      const uint16_t bits = narrow(scale);
      *reinterpret_cast<uint16_t*>(region + at.scale) = bits;
      stored = widen(bits);
    }
    if (p.chunk_byte && side == 1) region[at.chunk] = static_cast<std::byte>(t % 64);
    if (!is_finite(stored)) raise(w.layer.faults, kScaleNotFinite);
  }
  __syncwarp();
}

// Grid (words, heads, side).
__global__ void __launch_bounds__(32 * kWarps) encode_kernel(Work w) {
  __shared__ float signs[kMaxHeadDim];
  __shared__ WarpRow rows[kWarps];
  const EncodeParams& p = w.p;
  const int depth = w.layer.head_dim, heads = w.layer.kv_heads, per_head = p.two_widths ? 2 : 1;
  const int head = blockIdx.y, side = blockIdx.z, warp = threadIdx.x / 32;
  const int64_t word = blockIdx.x, words = gridDim.x;
  const int64_t at = (static_cast<int64_t>(side) * heads + head) * per_head * words + word;
  const uint64_t any = p.masks[at], four = p.two_widths ? p.masks[at + words] : 0;
  if (any == 0) return;
  const float unit = 1.0f / sqrtf(static_cast<float>(hadamard_block(depth)));
  for (int i = threadIdx.x; i < depth; i += 32 * kWarps) {
    signs[i] = (split_mix(p.seed, static_cast<uint64_t>(i)) >> 63) != 0 ? -unit : unit;
  }
  __syncthreads();
  uint64_t rest = any;
  for (int i = 0; i < __popcll(any); ++i, rest &= rest - 1) {
    if (i % kWarps != warp) continue;
    const int bit = __ffsll(static_cast<long long>(rest)) - 1;
    const uint64_t below = (uint64_t{1} << bit) - 1;
    const bool wide = ((four >> bit) & 1) != 0;
    const uint64_t others = wide ? four & below : any & ~four & below;
    const int64_t index = p.prefixes[wide ? at + words : at] + __popcll(others);
    code_residual(w, side, head, word * 64 + bit, wide, place_of(w, side, head, wide, index), signs,
                  rows[warp]);
  }
}

template <int kCodes>
Codebook<kCodes> make_book(const float (&levels)[kCodes], const float (&thresholds)[kCodes - 1]) {
  Codebook<kCodes> book;
  for (int i = 0; i < kCodes; ++i) book.levels[i] = levels[i];
  for (int i = 0; i + 1 < kCodes; ++i) book.thresholds[i] = thresholds[i];
  return book;
}

}  // namespace

void encode_residuals(const CodecLayer& layer, const EncodeParams& p, DeviceStream stream) {
  const Work w{layer, p, make_book(kLevels2, kThresholds2), make_book(kLevels4, kThresholds4)};
  const unsigned words = static_cast<unsigned>((layer.prefix() + 63) / 64);
  AKV_LAUNCH(encode_kernel, dim3(words, static_cast<unsigned>(layer.kv_heads), 2),
             dim3(32 * kWarps), 0, stream, w);
}

}  // namespace akv::kernels::cuda
