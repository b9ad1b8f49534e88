// Attention outputs of the observed queries: y = alpha V, a product over the tokens. Spans of
// tokens are summed apart and joined in order.
#include "kernels/cuda/codec/observe.h"
#include "kernels/cuda/codec/tile.h"

namespace akv::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kSide = 64;  // query lanes and dimensions of one block's product
// Tokens are the product's depth, and a fragment's columns: 4 floats of padding keep its loads, 8
// lanes of four token pairs, out of each other's banks.
constexpr int kAlphaStride = kSide + 4;
constexpr int kValueStride = kSide + 8;
constexpr int kMinSpanChunks = 8;
constexpr int64_t kMaxSpans = 32;

struct OutputTiles {
  float alpha[kObserveChunk * kAlphaStride];  // [token][lane]
  bf16 values[kObserveChunk * kValueStride];  // [token][dimension]
};

// Weights and values of one chunk; lanes, dimensions and tokens out of range are zero.
__device__ bool load_chunk(const CodecLayer& layer, const LayerObservation& o, int64_t chunk,
                           int lane0, int dim0, OutputTiles& tiles) {
  const int lanes = layer.lanes(), head = blockIdx.z;
  const int64_t first = chunk * kObserveChunk;
  const int valid = static_cast<int>(min(int64_t{kObserveChunk}, layer.tokens - first));
  const float* alpha = o.alpha + (head * layer.tokens + first) * lanes + lane0;
  const float* factor = o.factor + (head * observe_chunks(layer.tokens) + chunk) * lanes + lane0;
  const int width = min(kSide, lanes - lane0);
  for (int i = threadIdx.x; i < kObserveChunk * kSide; i += kThreads) {
    const int row = i / kSide, w = i % kSide;
    float x = 0.0f;
    if (row < valid && w < width) x = alpha[static_cast<int64_t>(row) * lanes + w] * factor[w];
    tiles.alpha[row * kAlphaStride + w] = x;
  }
  const int64_t stride = static_cast<int64_t>(layer.kv_heads) * layer.head_dim;
  const bf16* values = layer.v + first * stride + (o.first + head) * layer.head_dim + dim0;
  const int dims = min(kSide, layer.head_dim - dim0);
  bool bad = false;
  for (int i = threadIdx.x; i < kObserveChunk * kSide / 8; i += kThreads) {
    const int row = i / (kSide / 8), part = i % (kSide / 8) * 8;
    uint4 eight = make_uint4(0, 0, 0, 0);
    if (row < valid && part < dims) {
      eight = *reinterpret_cast<const uint4*>(values + row * stride + part);
    }
    bad |= not_finite(eight);
    *reinterpret_cast<uint4*>(tiles.values + row * kValueStride + part) = eight;
  }
  return bad;
}

// acc += the warp's 32 lanes x 32 dimensions of alpha^T V over one chunk.
__device__ void multiply_chunk(const OutputTiles& tiles, int lane0, int dim0,
                               float (&acc)[2][4][4]) {
  const int lane = threadIdx.x % 32;
  const float* alpha = tiles.alpha + 2 * (lane % 4) * kAlphaStride + lane0 + lane / 4;
  const bf16* values = tiles.values + (lane % 16) * kValueStride + dim0 + (lane >> 4) * 8;
  const auto pair = [alpha](int token, int row) {
    const float* p = alpha + token * kAlphaStride + row;
    return make_float2(p[0], p[kAlphaStride]);
  };
#pragma unroll 1
  for (int k = 0; k < kObserveChunk; k += 16) {
    Planes x[2][4];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      x[m][0] = split(pair(k, 16 * m));
      x[m][1] = split(pair(k, 16 * m + 8));
      x[m][2] = split(pair(k + 8, 16 * m));
      x[m][3] = split(pair(k + 8, 16 * m + 8));
    }
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
      uint32_t r[4];
      ldmatrix_x4_trans(r, values + k * kValueStride + n * 8);
      const uint32_t b0[2] = {r[0], r[1]}, b1[2] = {r[2], r[3]};
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int p = 2; p >= 0; --p) {
          const uint32_t rows[4] = {x[m][0].plane[p], x[m][1].plane[p], x[m][2].plane[p],
                                    x[m][3].plane[p]};
          mma_bf16(acc[m][n], rows, b0);
          mma_bf16(acc[m][n + 1], rows, b1);
        }
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads) output_kernel(CodecLayer layer, LayerObservation o) {
  __shared__ __align__(16) unsigned char raw[sizeof(OutputTiles)];
  OutputTiles& tiles = *reinterpret_cast<OutputTiles*>(raw);
  const int depth = layer.head_dim, lanes = layer.lanes(), strips = (depth + kSide - 1) / kSide;
  const int lane0 = blockIdx.y / strips * kSide, dim0 = blockIdx.y % strips * kSide;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t chunks = observe_chunks(layer.tokens), span = blockIdx.x, spans = gridDim.x;
  float acc[2][4][4] = {};
  bool bad = false;
  for (int64_t chunk = span * chunks / spans; chunk < (span + 1) * chunks / spans; ++chunk) {
    bad |= load_chunk(layer, o, chunk, lane0, dim0, tiles);
    __syncthreads();
    multiply_chunk(tiles, warp / 2 * 32, warp % 2 * 32, acc);
    __syncthreads();
  }
  float* out = o.y_parts + (blockIdx.z * spans + span) * lanes * depth;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int w = lane0 + warp / 2 * 32 + m * 16 + lane / 4;
      const int d = dim0 + warp % 2 * 32 + n * 8 + lane % 4 * 2;
      if (d >= depth) continue;
      float2* to = reinterpret_cast<float2*>(out + static_cast<int64_t>(w) * depth + d);
      if (w < lanes) to[0] = make_float2(acc[m][n][0], acc[m][n][1]);
      if (w + 8 < lanes) to[4 * depth] = make_float2(acc[m][n][2], acc[m][n][3]);
    }
  }
  if (bad) raise(layer.faults, kInputNotFinite);
}

// One block a lane: joins the spans, cuts y into planes, and takes |y|^2 and |q|^2 / D.
__global__ void __launch_bounds__(64)
    finish_kernel(CodecLayer layer, LayerObservation o, int spans) {
  __shared__ double sums[2][2];
  const int depth = layer.head_dim, lanes = layer.lanes(), w = blockIdx.x, head = blockIdx.y;
  const bool real = w < layer.queries();
  const int64_t query = static_cast<int64_t>(w / layer.group) * layer.kv_heads * layer.group +
                        (o.first + head) * layer.group + w % layer.group;
  double y2 = 0, q2 = 0;
  for (int i = threadIdx.x; i < depth; i += 64) {
    double sum = 0;
    for (int s = 0; s < spans; ++s) {
      sum += o.y_parts[((static_cast<int64_t>(head) * spans + s) * lanes + w) * depth + i];
    }
    const float y = static_cast<float>(sum);
    const Planes planes = split(make_float2(y, 0.0f));
#pragma unroll
    for (int p = 0; p < 3; ++p) {
      o.y_planes[((static_cast<int64_t>(head) * 3 + p) * lanes + w) * depth + i].bits =
          static_cast<uint16_t>(planes.plane[p] & 0xffffu);
    }
    y2 += static_cast<double>(y) * y;
    if (real) {
      const double q = widen(layer.q[query * depth + i].bits);
      q2 += q * q;
    }
  }
  y2 = warp_sum(y2);
  q2 = warp_sum(q2);
  if (threadIdx.x % 32 == 0) {
    sums[0][threadIdx.x / 32] = y2;
    sums[1][threadIdx.x / 32] = q2;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    o.y2[head * lanes + w] = static_cast<float>(sums[0][0] + sums[0][1]);
    o.q2[head * lanes + w] = static_cast<float>((sums[1][0] + sums[1][1]) / depth);
  }
}

}  // namespace

int observe_spans(int64_t tokens) {
  const int64_t spans = observe_chunks(tokens) / kMinSpanChunks;
  return static_cast<int>(spans < 1 ? 1 : spans > kMaxSpans ? kMaxSpans : spans);
}

void observe_layer(const CodecLayer& layer, const LayerObservation& o, DeviceStream stream) {
  observe_weights(layer, o, stream);
  const unsigned spans = static_cast<unsigned>(observe_spans(layer.tokens));
  const unsigned heads = static_cast<unsigned>(o.heads);
  const int tiles = (layer.lanes() + kSide - 1) / kSide * ((layer.head_dim + kSide - 1) / kSide);
  AKV_LAUNCH(output_kernel, dim3(spans, static_cast<unsigned>(tiles), heads), dim3(kThreads), 0,
             stream, layer, o);
  AKV_LAUNCH(finish_kernel, dim3(static_cast<unsigned>(layer.lanes()), heads), dim3(64), 0, stream,
             layer, o, static_cast<int>(spans));
}

}  // namespace akv::kernels::cuda
