// Nearest anchor and coefficient. The search is a product of 128 tokens with all anchors, tile by
// tile, of which only the best two of a token are kept; what they cannot decide, and all that is
// stored, is computed in double as on the CPU.
#include "kernels/cuda/codec/gamma.h"
#include "kernels/cuda/codec/tile.h"

namespace akv::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTokens = 128;
constexpr int kAnchors = 64;
// Cosines closer than this are compared again in double: well above the rounding of bf16 products
// summed in f32.
constexpr float kCloseRace = 3e-5f;

// The best anchor seen, ties to the lowest slot, and the cosine of the second best (a tie's:
// equal).
struct Race {
  float best;
  int slot;
  float second;
};

__device__ __forceinline__ void join(Race& a, const Race& b) {
  const bool wins = b.best > a.best || (b.best == a.best && b.slot < a.slot);
  const float loser = wins ? a.best : b.best;
  const float second = wins ? b.second : a.second;
  if (wins) {
    a.best = b.best;
    a.slot = b.slot;
  }
  a.second = fmaxf(second, loser);
}

struct Results {
  Race race[2][kTokens];  // of the two halves of a tile's anchors
  uint16_t slot[kTokens];
  uint16_t code[kTokens];
  float gamma[kTokens];
  float residual2[kTokens];
};

size_t assign_bytes(int head_dim) {
  return (kTokens + 2 * kAnchors) * static_cast<size_t>(head_dim + kTilePad) * sizeof(bf16) +
         sizeof(Results);
}

__device__ void fetch_anchors(const bf16* rows, int tile, int depth, bf16* to) {
  const int per_row = depth / 8;
  for (int i = threadIdx.x; i < kAnchors * per_row; i += kThreads) {
    const int row = i / per_row, part = i % per_row * 8;
    cp_async<16>(to + row * (depth + kTilePad) + part,
                 rows + (static_cast<int64_t>(tile) * kAnchors + row) * depth + part);
  }
  cp_async_commit();
}

// Best two anchors of this warp's 32 tokens among its half of every tile.
__device__ void search(const bf16* x, bf16* tiles, const bf16* rows, const float* inv_norm,
                       int padded, int depth, Results& results) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int token0 = warp / 2 * 32, column0 = warp % 2 * 32 + 2 * (lane % 4);
  Race race[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) race[i] = Race{-1.0f, 0, -1.0f};
  const int count = padded / kAnchors, tile_elements = kAnchors * (depth + kTilePad);
  fetch_anchors(rows, 0, depth, tiles);
  for (int tile = 0; tile < count; ++tile) {
    cp_async_wait<0>();
    __syncthreads();
    if (tile + 1 < count) {
      fetch_anchors(rows, tile + 1, depth, tiles + (tile + 1) % 2 * tile_elements);
    }
    float acc[2][4][4] = {};
    multiply_bf16<2, 4>(x + token0 * (depth + kTilePad),
                        tiles + tile % 2 * tile_elements + warp % 2 * 32 * (depth + kTilePad),
                        depth, acc);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int slot = tile * kAnchors + column0 + n * 8 + e;
        const float inv = inv_norm[slot];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float cosine = fabsf(acc[i / 2][n][i % 2 * 2 + e]) * inv;
          // False for the NaN of an anchor that is no candidate.
          if (cosine > race[i].best) {
            race[i] = Race{cosine, slot, race[i].best};
          } else if (cosine > race[i].second) {
            race[i].second = cosine;
          }
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
      Race other;
      other.best = __shfl_xor_sync(kAllLanes, race[i].best, step);
      other.slot = __shfl_xor_sync(kAllLanes, race[i].slot, step);
      other.second = __shfl_xor_sync(kAllLanes, race[i].second, step);
      join(race[i], other);
    }
    if (lane % 4 == 0) results.race[warp % 2][token0 + i * 8 + lane / 4] = race[i];
  }
}

// <x, y> in double, by the warp. Products of bf16 are exact, and so is nearly every sum.
__device__ double dot(const bf16* x, const bf16* y, int depth) {
  double sum = 0;
  for (int i = threadIdx.x % 32; i < depth / 2; i += 32) {
    const float2 a = widen_pair(reinterpret_cast<const uint32_t*>(x)[i]);
    const float2 b = widen_pair(reinterpret_cast<const uint32_t*>(y)[i]);
    sum += static_cast<double>(a.x) * b.x + static_cast<double>(a.y) * b.y;
  }
  return warp_sum(sum);
}

// The largest cosine in double over all candidates, ties to the lowest slot; a lane an anchor.
__device__ int decide_race(const bf16* x, const bf16* rows, const float* inv_norm,
                           const double* norm2, int k, int depth) {
  double best = -1;
  int slot = 0;
  for (int a = threadIdx.x % 32; a < k; a += 32) {
    if (!(inv_norm[a] > 0)) continue;
    const uint32_t* row = reinterpret_cast<const uint32_t*>(rows + static_cast<int64_t>(a) * depth);
    double sum = 0;
    for (int i = 0; i < depth / 2; ++i) {
      const float2 p = widen_pair(reinterpret_cast<const uint32_t*>(x)[i]);
      const float2 q = widen_pair(row[i]);
      sum += static_cast<double>(p.x) * q.x + static_cast<double>(p.y) * q.y;
    }
    const double cosine = fabs(sum) / sqrt(norm2[a]);
    if (cosine > best) {
      best = cosine;
      slot = a;
    }
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const double other = __shfl_xor_sync(kAllLanes, best, step);
    const int other_slot = __shfl_xor_sync(kAllLanes, slot, step);
    if (other > best || (other == best && other_slot < slot)) {
      best = other;
      slot = other_slot;
    }
  }
  return slot;
}

// The slot of a token that is an anchor, else -1.
__device__ int own_slot(const int32_t* positions, int k, int32_t t) {
  int low = 0, high = k;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (positions[middle] < t) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < k && positions[low] == t ? low : -1;
}

__device__ int choose_slot(const bf16* x, Race race, const bf16* rows, const float* inv_norm,
                           const double* norm2, int k, int depth) {
  const double square = dot(x, x, depth);
  // A zero vector, or no candidate at all.
  if (square == 0 || race.best < 0) return 0;
  const float cut = race.best - kCloseRace * sqrtf(static_cast<float>(square));
  if (race.second >= cut) return decide_race(x, rows, inv_norm, norm2, k, depth);
  return race.slot;
}

// |x - gamma a|^2 in f32, by the warp.
__device__ float distance2(const bf16* x, const bf16* a, float gamma, int depth) {
  float sum = 0.0f;
  for (int i = threadIdx.x % 32; i < depth / 2; i += 32) {
    const float2 p = widen_pair(reinterpret_cast<const uint32_t*>(x)[i]);
    const float2 q = widen_pair(reinterpret_cast<const uint32_t*>(a)[i]);
    const float d0 = fmaf(-gamma, q.x, p.x), d1 = fmaf(-gamma, q.y, p.y);
    sum = fmaf(d0, d0, sum);
    sum = fmaf(d1, d1, sum);
  }
  return warp_sum(sum);
}

__device__ void store(const LayerAssignment& out, int64_t at, const Results& results, int token) {
  out.slot[at] = results.slot[token];
  out.gamma[at] = results.gamma[token];
  out.residual2[at] = results.residual2[token];
  if (out.index_bytes == 2) {
    static_cast<uint16_t*>(out.slots_out)[at] = results.slot[token];
  } else {
    static_cast<uint8_t*>(out.slots_out)[at] = static_cast<uint8_t>(results.slot[token]);
  }
  if (out.log8) {
    static_cast<uint8_t*>(out.gammas_out)[at] = static_cast<uint8_t>(results.code[token]);
  } else {
    static_cast<uint16_t*>(out.gammas_out)[at] = results.code[token];
  }
}

// Grid (tokens / 128, heads, side).
__global__ void __launch_bounds__(kThreads, 2)
    assign_kernel(CodecLayer layer, LayerAnchors a, LayerAssignment out) {
  AKV_DYNAMIC_SHARED(bf16, x);
  const int depth = layer.head_dim, head = blockIdx.y, side = blockIdx.z;
  const int row = depth + kTilePad;
  bf16* tiles = x + kTokens * row;  // two
  Results& results = *reinterpret_cast<Results*>(x + (kTokens + 2 * kAnchors) * row);
  const int64_t prefix = layer.prefix(), first = static_cast<int64_t>(blockIdx.x) * kTokens;
  const int valid = static_cast<int>(min(int64_t{kTokens}, prefix - first));
  const int64_t stride = static_cast<int64_t>(layer.kv_heads) * depth;
  const bf16* source = side == 0 ? layer.k : layer.v;
  load_tile(source + first * stride + (a.first + head) * depth, stride, kTokens, valid, depth, x);
  const int64_t anchor0 = (static_cast<int64_t>(side) * a.heads + head) * a.padded;
  const bf16* rows = a.rows + anchor0 * depth;
  const float* inv_norm = a.inv_norm + anchor0;
  const double* norm2 = a.norm2 + anchor0;
  const int32_t* positions = a.positions + static_cast<int64_t>(head) * a.k;
  search(x, tiles, rows, inv_norm, a.padded, depth, results);
  __syncthreads();
  for (int token = threadIdx.x / 32; token < valid; token += kThreads / 32) {
    const bf16* own_row = x + token * row;
    const int own = own_slot(positions, a.k, static_cast<int32_t>(first + token));
    int slot = own;
    if (own < 0) {
      Race race = results.race[0][token];
      join(race, results.race[1][token]);
      slot = choose_slot(own_row, race, rows, inv_norm, norm2, a.k, depth);
    }
    const bf16* anchor = rows + static_cast<int64_t>(slot) * depth;
    double gamma = 0;
    if (own >= 0) {
      gamma = 1;
    } else if (norm2[slot] > 0) {
      gamma = dot(own_row, anchor, depth) / norm2[slot];
    }
    const StoredGamma stored = store_gamma(gamma, out.log8);
    const float residual2 = distance2(own_row, anchor, stored.value, depth);
    if (threadIdx.x % 32 == 0) {
      results.slot[token] = static_cast<uint16_t>(slot);
      results.code[token] = stored.code;
      results.gamma[token] = stored.value;
      results.residual2[token] = residual2;
      if (!is_finite(stored.value)) raise(layer.faults, kGammaNotFinite);
    }
  }
  __syncthreads();
  const int64_t at =
      (static_cast<int64_t>(side) * layer.kv_heads + a.first + head) * prefix + first;
  for (int token = threadIdx.x; token < valid; token += kThreads) {
    store(out, at + token, results, token);
  }
}

}  // namespace

void assign_anchors(const CodecLayer& layer, const LayerAnchors& a, const LayerAssignment& out,
                    DeviceStream stream) {
  const size_t bytes = assign_bytes(layer.head_dim);
  const unsigned blocks = static_cast<unsigned>((layer.prefix() + kTokens - 1) / kTokens);
  AKV_SHARED_ATTRIBUTE(assign_kernel, bytes);
  AKV_LAUNCH(assign_kernel, dim3(blocks, static_cast<unsigned>(a.heads), 2), dim3(kThreads), bytes,
             stream, layer, a, out);
}

}  // namespace akv::kernels::cuda
