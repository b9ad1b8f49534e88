// Exact attention of the observed queries: weights chunk by chunk, joined over the chunks.
#include "kernels/cuda/codec/observe.h"

#include "kernels/cuda/codec/tile.h"

namespace akv::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kStrip = 64;  // query lanes of one product
constexpr int kLogitStride = kStrip + 8;
constexpr float kMasked = -3e38f;

// Shared memory of weights_kernel: rotated keys, a strip of queries, a strip of logits.
size_t weights_bytes(int head_dim) {
  const size_t row = head_dim + kTilePad;
  return kObserveChunk * row * sizeof(float) + kStrip * row * sizeof(bf16) +
         kObserveChunk * kLogitStride * sizeof(float) + 2 * kStrip * sizeof(float);
}

// One strip's logits of the block's 64 tokens, 16 a warp.
template <int N>
__device__ void strip_logits(const float* keys, const bf16* queries, int depth, float* logits) {
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16;
  float acc[N][4] = {};
  multiply_f32<N>(keys + first * (depth + kTilePad), queries, depth, acc);
  const float scale = 1.0f / sqrtf(static_cast<float>(depth));
  float* out = logits + (first + lane / 4) * kLogitStride + 2 * (lane % 4);
#pragma unroll
  for (int n = 0; n < N; ++n) {
    *reinterpret_cast<float2*>(out + n * 8) = make_float2(acc[n][0] * scale, acc[n][1] * scale);
    *reinterpret_cast<float2*>(out + 8 * kLogitStride + n * 8) =
        make_float2(acc[n][2] * scale, acc[n][3] * scale);
  }
}

// Exponentials relative to the chunk's maximum. Two threads share a lane, 32 tokens each.
__device__ void strip_weights(const CodecLayer& layer, const LayerObservation& o, int64_t chunk,
                              int strip, const float* logits, float* shared) {
  const int column = threadIdx.x % kStrip, part = threadIdx.x / kStrip;
  const int w = strip + column, lanes = layer.lanes(), head = blockIdx.y;
  const int64_t first = chunk * kObserveChunk + part * 32;
  // The query of window row w / group sees the positions up to its own.
  const int64_t visible = min(layer.tokens, layer.prefix() + w / layer.group + 1);
  const int rows = static_cast<int>(max(int64_t{0}, min(int64_t{32}, visible - first)));
  const float* own = logits + part * 32 * kLogitStride + column;
  float top = kMasked;
  for (int r = 0; r < rows; ++r) top = fmaxf(top, own[r * kLogitStride]);
  shared[threadIdx.x] = top;
  __syncthreads();
  top = fmaxf(top, shared[threadIdx.x ^ kStrip]);
  __syncthreads();
  float sum = 0.0f;
  if (w < lanes) {
    float* alpha = o.alpha + (head * layer.tokens + first) * lanes + w;
    const int present = static_cast<int>(min(int64_t{32}, layer.tokens - first));
    for (int r = 0; r < present; ++r) {
      const float e = r < rows ? expf(own[r * kLogitStride] - top) : 0.0f;
      alpha[static_cast<int64_t>(r) * lanes] = e;
      sum += e;
    }
  }
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (part == 0 && w < lanes) {
    const int64_t at = (head * observe_chunks(layer.tokens) + chunk) * lanes + w;
    o.factor[at] = top;
    o.chunk_sum[at] = sum + shared[threadIdx.x ^ kStrip];
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads) weights_kernel(CodecLayer layer, LayerObservation o) {
  AKV_DYNAMIC_SHARED(float, keys);
  const int depth = layer.head_dim, head = o.first + blockIdx.y;
  const int64_t chunk = blockIdx.x, first = chunk * kObserveChunk;
  bf16* queries = reinterpret_cast<bf16*>(keys + kObserveChunk * (depth + kTilePad));
  float* logits = reinterpret_cast<float*>(queries + kStrip * (depth + kTilePad));
  float* shared = logits + kObserveChunk * kLogitStride;
  const int64_t stride = static_cast<int64_t>(layer.kv_heads) * depth;
  const int valid = static_cast<int>(min(int64_t{kObserveChunk}, layer.tokens - first));
  bool bad =
      load_tile(layer.k + first * stride + head * depth, stride, kObserveChunk, valid, depth, keys);
  __syncthreads();
  rotate_tile(layer.rope, first, valid, depth, keys);
  for (int strip = 0; strip < layer.lanes(); strip += kStrip) {
    bad |= load_queries(layer, head, strip, kStrip, queries);
    __syncthreads();
    if (layer.lanes() - strip > kStrip / 2) {
      strip_logits<8>(keys, queries, depth, logits);
    } else {
      strip_logits<4>(keys, queries, depth, logits);
    }
    __syncthreads();
    strip_weights(layer, o, chunk, strip, logits, shared);
  }
  if (bad) raise(layer.faults, kInputNotFinite);
}

// Turns the chunks' maxima into the factors that make weights of their exponentials. A block has 32
// lanes and 32 interleaved slices of the chunks.
__global__ void __launch_bounds__(1024) join_kernel(CodecLayer layer, LayerObservation o) {
  __shared__ float tops[32][33];
  __shared__ double sums[32][33];
  const int lanes = layer.lanes(), slice = threadIdx.y;
  const int w = blockIdx.x * 32 + threadIdx.x;
  const int64_t chunks = observe_chunks(layer.tokens);
  float* factor = o.factor + blockIdx.y * chunks * lanes + w;
  const float* chunk_sum = o.chunk_sum + blockIdx.y * chunks * lanes + w;
  float top = kMasked;
  for (int64_t c = slice; c < chunks; c += 32) top = fmaxf(top, factor[c * lanes]);
  tops[slice][threadIdx.x] = top;
  __syncthreads();
  for (int s = 0; s < 32; ++s) top = fmaxf(top, tops[s][threadIdx.x]);
  double total = 0;
  for (int64_t c = slice; c < chunks; c += 32) {
    total += exp(static_cast<double>(factor[c * lanes]) - top) * chunk_sum[c * lanes];
  }
  sums[slice][threadIdx.x] = total;
  __syncthreads();
  total = 0;
  for (int s = 0; s < 32; ++s) total += sums[s][threadIdx.x];
  for (int64_t c = slice; c < chunks; c += 32) {
    const double weight = exp(static_cast<double>(factor[c * lanes]) - top) / total;
    factor[c * lanes] = w < layer.queries() ? static_cast<float>(weight) : 0.0f;
  }
}

// One warp a token.
__global__ void __launch_bounds__(256) mean_kernel(CodecLayer layer, LayerObservation o) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * 8 + threadIdx.x / 32;
  const int lane = threadIdx.x % 32, lanes = layer.lanes(), head = blockIdx.y;
  if (t >= layer.prefix()) return;
  const float* alpha = o.alpha + (head * layer.tokens + t) * lanes;
  const float* factor =
      o.factor + (head * observe_chunks(layer.tokens) + t / kObserveChunk) * lanes;
  float sum = 0.0f;
  for (int w = lane; w < lanes; w += 32) sum = fmaf(alpha[w], factor[w], sum);
  sum = warp_sum(sum);
  if (lane == 0) {
    const float inv = 1.0f / static_cast<float>(layer.queries());
    o.mean_alpha[head * layer.prefix() + t] = sum * inv;
  }
}

}  // namespace

void observe_weights(const CodecLayer& layer, const LayerObservation& o, DeviceStream stream) {
  const size_t bytes = weights_bytes(layer.head_dim);
  const unsigned chunks = static_cast<unsigned>(observe_chunks(layer.tokens));
  const unsigned heads = static_cast<unsigned>(o.heads);
  AKV_SHARED_ATTRIBUTE(weights_kernel, bytes);
  AKV_LAUNCH(weights_kernel, dim3(chunks, heads), dim3(kThreads), bytes, stream, layer, o);
  AKV_LAUNCH(join_kernel, dim3(static_cast<unsigned>(layer.lanes()) / 32, heads), dim3(32, 32), 0,
             stream, layer, o);
  const unsigned tokens = static_cast<unsigned>((layer.prefix() + 7) / 8);
  AKV_LAUNCH(mean_kernel, dim3(tokens, heads), dim3(256), 0, stream, layer, o);
}

}  // namespace akv::kernels::cuda
