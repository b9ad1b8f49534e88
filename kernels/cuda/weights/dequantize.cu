#include "kernels/cuda/convert.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/weights/blocks.h"
#include "kernels/dequant.h"

namespace akv::kernels::cuda {
namespace {

constexpr int kThreads = 256;

unsigned blocks_for(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

__device__ __forceinline__ int64_t thread_index() {
  return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

// A thread expands eight elements: a store of 16 bytes to bf16.
template <TensorType Type>
__global__ void __launch_bounds__(kThreads)
    dequantize_kernel(const uint8_t* data, int64_t eights, bf16* out) {
  constexpr int kParts = Block<Type>::kElements / 8;
  const int64_t at = thread_index();
  if (at >= eights) return;
  float x[8];
  Block<Type>::decode8(data + at / kParts * Block<Type>::kBytes, static_cast<int>(at % kParts), x);
  store<8>(out + at * 8, x);
}

template <TensorType Type>
__global__ void __launch_bounds__(kThreads)
    dequantize_plain_kernel(const void* data, int64_t n, bf16* out) {
  const int64_t at = thread_index();
  if (at < n) out[at] = round_bf16(plain_element<Type>(data, at));
}

// Row ids[at / eights] of a matrix of `eights` eights a row.
template <TensorType Type>
__global__ void __launch_bounds__(kThreads)
    embed_kernel(const uint8_t* data, const int32_t* ids, int64_t count, int64_t eights,
                 float* out) {
  constexpr int kParts = Block<Type>::kElements / 8;
  const int64_t at = thread_index();
  if (at >= count * eights) return;
  const int64_t source = ids[at / eights] * eights + at % eights;
  float x[8];
  Block<Type>::decode8(data + source / kParts * Block<Type>::kBytes,
                       static_cast<int>(source % kParts), x);
  store<8>(out + at * 8, x);
}

template <TensorType Type>
__global__ void __launch_bounds__(kThreads)
    embed_plain_kernel(const void* data, const int32_t* ids, int64_t count, int64_t cols,
                       float* out) {
  const int64_t at = thread_index();
  if (at >= count * cols) return;
  out[at] = plain_element<Type>(data, ids[at / cols] * cols + at % cols);
}

template <int Width, class In, class Out>
__global__ void __launch_bounds__(kThreads) convert_kernel(const In* x, int64_t n, Out* out) {
  const int64_t at = thread_index() * Width;
  if (at >= n) return;
  float v[Width];
  load<Width>(x + at, v);
  store<Width>(out + at, v);
}

template <class In, class Out>
void convert(const In* x, int64_t n, Out* out, DeviceStream stream) {
  if (n == 0) return;
  if (n % 4 == 0 && aligned_by_four(x, out)) {
    AKV_LAUNCH((convert_kernel<4, In, Out>), blocks_for(n / 4), kThreads, 0, stream, x, n, out);
  } else {
    AKV_LAUNCH((convert_kernel<1, In, Out>), blocks_for(n), kThreads, 0, stream, x, n, out);
  }
}

}  // namespace

void dequantize(const Matrix& m, bf16* out, DeviceStream stream) {
  const int64_t n = m.rows * m.cols;
  if (n == 0) return;
  if (m.type == TensorType::kF32) {
    return convert(static_cast<const float*>(m.data), n, out, stream);
  }
  for_type(m.type, [&]<TensorType Type>() {
    if constexpr (is_plain(Type)) {
      if (n % 8 != 0) {
        AKV_LAUNCH((dequantize_plain_kernel<Type>), blocks_for(n), kThreads, 0, stream, m.data, n,
                   out);
        return;
      }
    }
    if constexpr (Type != TensorType::kF32) {
      AKV_LAUNCH((dequantize_kernel<Type>), blocks_for(n / 8), kThreads, 0, stream,
                 static_cast<const uint8_t*>(m.data), n / 8, out);
    }
  });
}

void embed(const Matrix& m, const int32_t* ids, int64_t count, float* out, DeviceStream stream) {
  const int64_t n = count * m.cols;
  if (n == 0) return;
  for_type(m.type, [&]<TensorType Type>() {
    if constexpr (is_plain(Type)) {
      AKV_LAUNCH((embed_plain_kernel<Type>), blocks_for(n), kThreads, 0, stream, m.data, ids, count,
                 m.cols, out);
    } else {
      AKV_LAUNCH((embed_kernel<Type>), blocks_for(n / 8), kThreads, 0, stream,
                 static_cast<const uint8_t*>(m.data), ids, count, m.cols / 8, out);
    }
  });
}

void convert_to_bf16(const float* x, int64_t n, bf16* out, DeviceStream stream) {
  convert(x, n, out, stream);
}

void convert_to_float(const bf16* x, int64_t n, float* out, DeviceStream stream) {
  convert(x, n, out, stream);
}

}  // namespace akv::kernels::cuda
