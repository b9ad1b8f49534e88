// Utilities of residuals. A block takes 64 tokens, a warp 16 of them, strips of 32 query lanes one
// after the other: V.y (and Eq. 6's logit error) on tensor cores, then every thread walks its lane
// down the warp's 16 tokens. Squares of weights leave the range of f32, so the sums are double.
#include "kernels/cuda/codec/tile.h"

namespace akv::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kTokens = 64;
constexpr int kRun = 16;    // tokens of a warp
constexpr int kStrip = 32;  // query lanes
constexpr int kOutStride = kStrip + 8;

struct UtilityShape {
  size_t values, strip, products, errors, residuals, square, total;  // byte offsets
};

__host__ __device__ constexpr UtilityShape utility_shape(int head_dim, bool eq6) {
  const size_t row = head_dim + kTilePad;
  UtilityShape s{};
  s.values = 0;
  s.strip = s.values + kTokens * row * sizeof(bf16);
  s.products = s.strip + kStrip * row * sizeof(bf16);
  s.square = s.products + kTokens * kOutStride * sizeof(float);
  s.errors = s.square + kTokens * sizeof(float);
  s.residuals = s.errors + (eq6 ? kTokens * kOutStride * sizeof(float) : 0);
  s.total = s.residuals + (eq6 ? kTokens * row * sizeof(float) : 0);
  return s;
}

struct UtilityWork {
  CodecLayer layer;
  LayerObservation o;
  LayerAnchors anchors;
  LayerAssignment assignment;
  UtilityOptions options;
  double* utility;
};

// rK of the block's tokens, rotated to their positions.
__device__ void load_residuals(const UtilityWork& u, int64_t first, int valid, float* tile) {
  const CodecLayer& layer = u.layer;
  const int depth = layer.head_dim, row = depth + kTilePad, head = blockIdx.y;
  const int64_t stride = static_cast<int64_t>(layer.kv_heads) * depth;
  const bf16* source = layer.k + first * stride + (u.o.first + head) * depth;
  load_tile(source, stride, kTokens, valid, depth, tile);
  __syncthreads();
  const int64_t at = (u.o.first + head) * layer.prefix() + first;
  const bf16* rows = u.anchors.rows + static_cast<int64_t>(head) * u.anchors.padded * depth;
  for (int i = threadIdx.x; i < valid * depth; i += kThreads) {
    const int r = i / depth, d = i % depth;
    const int64_t slot = u.assignment.slot[at + r];
    float& x = tile[r * row + d];
    x = fmaf(-u.assignment.gamma[at + r], widen(rows[slot * depth + d].bits), x);
  }
  __syncthreads();
  rotate_tile(layer.rope, first, valid, depth, tile);
}

// 32 lanes of one plane of y.
__device__ void load_outputs(const UtilityWork& u, int strip, int plane, bf16* tile) {
  const int64_t row = (static_cast<int64_t>(blockIdx.y) * 3 + plane) * u.layer.lanes() + strip;
  load_tile(u.o.y_planes + row * u.layer.head_dim, u.layer.head_dim, kStrip, kStrip,
            u.layer.head_dim, tile);
}

// The warp's 16 x 32 products, where its own threads find them: out [token][lane].
__device__ void store_products(const float (&acc)[4][4], float scale, float* out) {
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * kRun;
  float* to = out + (first + lane / 4) * kOutStride + 2 * (lane % 4);
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    to[n * 8] = acc[n][0] * scale;
    to[n * 8 + 1] = acc[n][1] * scale;
    to[8 * kOutStride + n * 8] = acc[n][2] * scale;
    to[8 * kOutStride + n * 8 + 1] = acc[n][3] * scale;
  }
}

// Weights of one lane by token; zero outside the non-window tokens.
struct LaneWeights {
  const float* alpha;   // of token 0
  const float* factor;  // of chunk 0
  int64_t prefix;
  int lanes;
  __device__ float operator()(int64_t t) const {
    if (t < 0 || t >= prefix) return 0.0f;
    return alpha[t * lanes] * factor[t / kObserveChunk * lanes];
  }
};

// Means over `pool` tokens around each of the 16 from `first` on. Where the windows of all 16 share
// a core they are core + what only earlier ones hold + what only later ones hold: additions only,
// as differences of running sums would drown small weights beside large ones.
__device__ void pooled_weights(const LaneWeights& weight, int64_t first, int pool,
                               float (&out)[kRun]) {
  const int half = pool / 2;
  if (pool < kRun - 1) {
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      float sum = 0.0f;
      for (int64_t t = first + i - half; t <= first + i + half; ++t) sum += weight(t);
      out[i] = sum;
    }
  } else {
    float core = 0.0f;
    for (int64_t t = first + kRun - 1 - half; t <= first + half; ++t) core += weight(t);
    float sum = 0.0f;
    out[kRun - 1] = core;
#pragma unroll
    for (int i = kRun - 2; i >= 0; --i) {
      sum += weight(first - half + i);
      out[i] = core + sum;
    }
    sum = 0.0f;
#pragma unroll
    for (int i = 1; i < kRun; ++i) {
      sum += weight(first + half + i);
      out[i] += sum;
    }
  }
  const float inv = 1.0f / static_cast<float>(pool);
#pragma unroll
  for (int i = 0; i < kRun; ++i) out[i] *= inv;
}

// |V|^2 of the warp's tokens.
__device__ void row_squares(const bf16* values, int depth, float* square) {
  const int lane = threadIdx.x % 32, run = threadIdx.x / 32 * kRun;
  for (int r = run; r < run + kRun; ++r) {
    float sum = 0.0f;
    for (int i = lane; i < depth; i += 32) {
      const float x = widen(values[r * (depth + kTilePad) + i].bits);
      sum = fmaf(x, x, sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) square[r] = sum;
  }
}

// What this thread's lane of a strip adds to the sums of the warp's tokens.
template <bool kEq6>
__device__ __forceinline__ void add_lane(const UtilityWork& u, int w, int64_t first,
                                         const float* square, const float* products,
                                         const float* errors, double (&key)[kRun],
                                         double (&value)[kRun]) {
  const LayerObservation& o = u.o;
  const int lanes = u.layer.lanes(), head = blockIdx.y;
  const LaneWeights weight{o.alpha + head * u.layer.tokens * lanes + w,
                           o.factor + head * observe_chunks(u.layer.tokens) * lanes + w,
                           u.layer.prefix(), lanes};
  float mean[kRun];
  pooled_weights(weight, first, kEq6 ? 1 : u.options.pool, mean);
  const double y2 = o.y2[head * lanes + w];
  const double direction = o.q2[head * lanes + w] / static_cast<float>(u.layer.head_dim);
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    const double alpha = mean[i];
    const double alpha2 = alpha * alpha;
    double error = direction;
    if (kEq6) {
      const double e = errors[i * kOutStride];
      error = e * e;
    }
    // |V - y|^2 from its expansion, as cancellation may leave it a little below zero.
    const double distance = (square[i] - 2.0 * products[i * kOutStride]) + y2;
    key[i] += alpha2 * error * (distance > 0.0 ? distance : 0.0);
    value[i] += alpha2;
  }
}

// Utilities of the warp's tokens from its lanes' sums.
template <bool kEq6>
__device__ __forceinline__ void write_utilities(const UtilityWork& u, int64_t first, int valid,
                                                const double (&key)[kRun],
                                                const double (&value)[kRun]) {
  const CodecLayer& layer = u.layer;
  const int head = u.o.first + blockIdx.y;
  const double inv = 1.0 / layer.queries();
  const int64_t at = head * layer.prefix() + first;
  const int64_t values_at = layer.kv_heads * layer.prefix() + at;
  const int32_t* positions = u.anchors.positions + static_cast<int64_t>(blockIdx.y) * u.anchors.k;
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    const double k_sum = warp_sum(key[i]), v_sum = warp_sum(value[i]);
    if (threadIdx.x % 32 != 0 || i >= valid) continue;
    // An anchor holds its own slot; it carries no residual.
    const bool anchor = positions[u.assignment.slot[at + i]] == first + i;
    const double k_scale = kEq6 ? inv : inv * u.assignment.residual2[at + i];
    const double v_scale = inv * u.assignment.residual2[values_at + i];
    u.utility[at + i] = anchor ? -1.0 : k_sum * k_scale;
    u.utility[values_at + i] = anchor ? -1.0 : v_sum * v_scale;
  }
}

template <bool kEq6>
__global__ void __launch_bounds__(kThreads) utility_kernel(UtilityWork u) {
  AKV_DYNAMIC_SHARED(unsigned char, shared);
  const CodecLayer& layer = u.layer;
  const int depth = layer.head_dim, head = u.o.first + blockIdx.y, row = depth + kTilePad;
  const UtilityShape shape = utility_shape(depth, kEq6);
  bf16* values = reinterpret_cast<bf16*>(shared + shape.values);
  bf16* strip_rows = reinterpret_cast<bf16*>(shared + shape.strip);
  float* products = reinterpret_cast<float*>(shared + shape.products);
  float* errors = reinterpret_cast<float*>(shared + shape.errors);
  float* residuals = reinterpret_cast<float*>(shared + shape.residuals);
  float* square = reinterpret_cast<float*>(shared + shape.square);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTokens;
  const int valid = static_cast<int>(min(int64_t{kTokens}, layer.prefix() - first));
  const int64_t stride = static_cast<int64_t>(layer.kv_heads) * depth;
  const int lane = threadIdx.x % 32, run = threadIdx.x / 32 * kRun;
  load_tile(layer.v + first * stride + head * depth, stride, kTokens, valid, depth, values);
  if (kEq6) load_residuals(u, first, valid, residuals);
  __syncthreads();
  row_squares(values, depth, square);

  double key[kRun] = {}, value[kRun] = {};
  for (int strip = 0; strip < layer.lanes(); strip += kStrip) {
    float acc[1][4][4] = {};
    for (int plane = 2; plane >= 0; --plane) {
      load_outputs(u, strip, plane, strip_rows);
      __syncthreads();
      multiply_bf16<1, 4>(values + run * row, strip_rows, depth, acc);
      __syncthreads();
    }
    store_products(acc[0], 1.0f, products);
    if (kEq6) {
      load_queries(layer, head, strip, kStrip, strip_rows);
      __syncthreads();
      float error[4][4] = {};
      multiply_f32<4>(residuals + run * row, strip_rows, depth, error);
      store_products(error, 1.0f / sqrtf(static_cast<float>(depth)), errors);
      __syncthreads();
    }
    __syncwarp();
    const int own = run * kOutStride + lane;
    add_lane<kEq6>(u, strip + lane, first + run, square + run, products + own, errors + own, key,
                   value);
    __syncwarp();
  }
  write_utilities<kEq6>(u, first + run, valid - run, key, value);
}

}  // namespace

void rate_residuals(const CodecLayer& layer, const LayerObservation& o, const LayerAnchors& anchors,
                    const LayerAssignment& assignment, const UtilityOptions& options,
                    double* utility, DeviceStream stream) {
  const UtilityWork u{layer, o, anchors, assignment, options, utility};
  const size_t bytes = utility_shape(layer.head_dim, options.eq6).total;
  const dim3 grid(static_cast<unsigned>((layer.prefix() + kTokens - 1) / kTokens),
                  static_cast<unsigned>(o.heads));
  if (options.eq6) {
    AKV_SHARED_ATTRIBUTE(utility_kernel<true>, bytes);
    AKV_LAUNCH(utility_kernel<true>, grid, dim3(kThreads), bytes, stream, u);
  } else {
    AKV_SHARED_ATTRIBUTE(utility_kernel<false>, bytes);
    AKV_LAUNCH(utility_kernel<false>, grid, dim3(kThreads), bytes, stream, u);
  }
}

}  // namespace akv::kernels::cuda
