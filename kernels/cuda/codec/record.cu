// What a record repeats of its input, dense records, and the memory operations of an encode.
#include "kernels/cuda/codec/numeric.h"

namespace akv::kernels::cuda {
namespace {

// One block an anchor; grid (k, heads, side).
__global__ void __launch_bounds__(128) rows_kernel(CodecLayer layer, RecordRows r) {
  const int slot = blockIdx.x, head = blockIdx.y, side = blockIdx.z, depth = layer.head_dim;
  const int64_t position = r.positions[static_cast<int64_t>(head) * r.k + slot];
  const bf16* source = side == 0 ? layer.k : layer.v;
  const uint32_t* from =
      reinterpret_cast<const uint32_t*>(source + (position * layer.kv_heads + head) * depth);
  const int64_t row = (static_cast<int64_t>(side) * layer.kv_heads + head) * r.k + slot;
  uint32_t* to = reinterpret_cast<uint32_t*>(r.anchors + row * depth);
  for (int i = threadIdx.x; i < depth / 2; i += 128) to[i] = from[i];
  const int selected = r.k - layer.window;
  if (side != 0 || slot >= selected || threadIdx.x != 0) return;
  const int64_t index = static_cast<int64_t>(head) * selected + slot;
  if (r.positions32 != nullptr) r.positions32[index] = static_cast<uint32_t>(position);
  if (r.positions64 != nullptr) r.positions64[index] = position;
}

__global__ void __launch_bounds__(256) token_positions_kernel(int64_t prefix, int32_t* out) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (t < prefix) out[t] = static_cast<int32_t>(t);
}

// One warp a token and head: tokens in x, heads in y.
__global__ void __launch_bounds__(256) dense_kernel(CodecLayer layer, bf16* k_out, bf16* v_out) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * 8 + threadIdx.x / 32;
  const int lane = threadIdx.x % 32, head = blockIdx.y, depth = layer.head_dim;
  if (t >= layer.tokens) return;
  const int64_t from = (t * layer.kv_heads + head) * depth, to = (head * layer.tokens + t) * depth;
  const DeviceRope& rope = layer.rope;
  const float* angles = rope.rows + t * 2 * rope.half;
  bool bad = false;
  for (int j = lane; j < depth / 2; j += 32) {
    const uint32_t pair = reinterpret_cast<const uint32_t*>(layer.v + from)[j];
    bad |= not_finite(pair) || not_finite(reinterpret_cast<const uint32_t*>(layer.k + from)[j]);
    reinterpret_cast<uint32_t*>(v_out + to)[j] = pair;
  }
  for (int j = lane; j < rope.half; j += 32) {
    const int first = rope.pairs == RopePairs::kHalf ? j : 2 * j;
    const int second = rope.pairs == RopePairs::kHalf ? j + rope.half : 2 * j + 1;
    const float c = angles[j], s = angles[rope.half + j];
    const float a = widen(layer.k[from + first].bits), b = widen(layer.k[from + second].bits);
    k_out[to + first].bits = narrow(fmaf(a, c, -(b * s)));
    k_out[to + second].bits = narrow(fmaf(a, s, b * c));
  }
  for (int j = 2 * rope.half + lane; j < depth; j += 32) k_out[to + j] = layer.k[from + j];
  if (bad) raise(layer.faults, kInputNotFinite);
}

}  // namespace

void write_record_rows(const CodecLayer& layer, const RecordRows& r, DeviceStream stream) {
  AKV_LAUNCH(rows_kernel,
             dim3(static_cast<unsigned>(r.k), static_cast<unsigned>(layer.kv_heads), 2), dim3(128),
             0, stream, layer, r);
  if (r.token_positions != nullptr) {
    const unsigned blocks = static_cast<unsigned>((layer.prefix() + 255) / 256);
    AKV_LAUNCH(token_positions_kernel, dim3(blocks), dim3(256), 0, stream, layer.prefix(),
               r.token_positions);
  }
}

void write_dense_record(const CodecLayer& layer, bf16* k_out, bf16* v_out, DeviceStream stream) {
  const unsigned blocks = static_cast<unsigned>((layer.tokens + 7) / 8);
  AKV_LAUNCH(dense_kernel, dim3(blocks, static_cast<unsigned>(layer.kv_heads)), dim3(256), 0,
             stream, layer, k_out, v_out);
}

void clear_bytes(void* device, size_t bytes, DeviceStream stream) {
  static_cast<void>(cudaMemsetAsync(device, 0, bytes, static_cast<cudaStream_t>(stream.handle)));
}

void copy_to_device(void* device, const void* host, size_t bytes, DeviceStream stream) {
  static_cast<void>(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice,
                                    static_cast<cudaStream_t>(stream.handle)));
}

void copy_to_host(void* host, const void* device, size_t bytes, DeviceStream stream) {
  static_cast<void>(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost,
                                    static_cast<cudaStream_t>(stream.handle)));
}

}  // namespace akv::kernels::cuda
