#include "kernels/cuda/weights/matmul_lowbit.h"

#include "kernels/cuda/weights/blocks.h"
#include "kernels/dequant.h"

namespace akv::kernels::cuda {
namespace {

LowbitMatrix matrix_of(const LowbitProduct& product) {
  LowbitMatrix w;
  w.data = static_cast<const uint8_t*>(product.w.data);
  w.y = product.y;
  w.rows = product.w.rows;
  w.row_bytes = static_cast<int64_t>(row_bytes(product.w.type, product.w.cols));
  w.grain = w.row_bytes % 16 == 0 ? 16 : (w.row_bytes % 4 == 0 ? 4 : 2);
  return w;
}

}  // namespace

void matmul_lowbit(const float* x, int m, std::span<const LowbitProduct> products, bool accumulate,
                   DeviceStream stream) {
  bool done[kMaxLowbitProducts] = {};
  for (size_t first = 0; first < products.size(); ++first) {
    if (done[first]) continue;
    LowbitArgs args;
    args.x = x;
    args.cols = products[first].w.cols;
    args.m = m;
    args.accumulate = accumulate;
    int count = 0;
    for (size_t i = first; i < products.size(); ++i) {
      if (products[i].w.type != products[first].w.type) continue;
      args.products[count++] = matrix_of(products[i]);
      done[i] = true;
    }
    for_type(products[first].w.type,
             [&]<TensorType Type>() { run_lowbit<Type>(args, count, stream); });
  }
}

void matmul_lowbit(const float* x, int m, const Matrix& w, float* y, bool accumulate,
                   DeviceStream stream) {
  const LowbitProduct product{w, y};
  matmul_lowbit(x, m, std::span<const LowbitProduct>(&product, 1), accumulate, stream);
}

}  // namespace akv::kernels::cuda
