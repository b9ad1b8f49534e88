// The operators of kernels/cuda: on the shim, or on a GPU where the binary is linked for one.
#include "kernels/activation.h"
#include "kernels/dequant.h"
#include "kernels/flash_prefill.h"
#include "kernels/gemm.h"
#include "kernels/gemv.h"
#include "kernels/norm.h"
#include "tests/kernels/device_array.h"
#include "tests/kernels/device_rope.h"
#include "tests/kernels/ops.h"

namespace akv::kernels {
namespace {

using DeviceFloats = DeviceArray<float>;

class DeviceOps : public Ops {
 public:
  Floats rmsnorm(const Floats& x, int dim, const Floats& weight, float eps) override {
    DeviceFloats in(x), w(weight), out(x.size());
    const auto rows = static_cast<int64_t>(x.size()) / dim;
    cuda::rmsnorm(in.data(), rows, dim, w.data(), eps, out.data(), stream_);
    return out.read();
  }
  Floats silu_mul(const Floats& gate, const Floats& up) override {
    DeviceFloats g(gate), u(up), out(gate.size());
    cuda::silu_mul(g.data(), u.data(), size_of(gate), out.data(), stream_);
    return out.read();
  }
  Floats add(const Floats& x, const Floats& y) override {
    DeviceFloats a(x), b(y);
    cuda::add(a.data(), b.data(), size_of(x), stream_);
    return a.read();
  }
  Floats add_bias(const Floats& x, const Floats& bias) override {
    DeviceFloats a(x), b(bias);
    cuda::add_bias(a.data(), size_of(x) / size_of(bias), size_of(bias), b.data(), stream_);
    return a.read();
  }
  Floats rope(const RopeTable& table, const Floats& x, int heads,
              const std::vector<int64_t>& positions) override {
    DeviceRopeTable on_device(table, positions);
    DeviceFloats a(x);
    DeviceArray<int64_t> at(on_device.places());
    cuda::rope_apply(on_device.view(), a.data(), static_cast<int64_t>(positions.size()), heads,
                     at.data(), stream_);
    return a.read();
  }
  Bf16s dequantize(const Matrix& m) override {
    DeviceArray<unsigned char> stored(m.data, stored_bytes(m));
    DeviceArray<bf16> out(static_cast<size_t>(m.rows * m.cols));
    cuda::dequantize({stored.data(), m.type, m.rows, m.cols}, out.data(), stream_);
    return out.read();
  }
  Floats embed(const Matrix& m, const std::vector<int32_t>& ids) override {
    DeviceArray<unsigned char> stored(m.data, stored_bytes(m));
    DeviceArray<int32_t> rows(ids);
    DeviceFloats out(ids.size() * static_cast<size_t>(m.cols));
    cuda::embed({stored.data(), m.type, m.rows, m.cols}, rows.data(),
                static_cast<int64_t>(ids.size()), out.data(), stream_);
    return out.read();
  }
  Bf16s to_bf16(const Floats& x) override {
    DeviceFloats in(x);
    DeviceArray<bf16> out(x.size());
    cuda::convert_to_bf16(in.data(), size_of(x), out.data(), stream_);
    return out.read();
  }
  Floats to_float(const Bf16s& x) override {
    DeviceArray<bf16> in(x);
    DeviceFloats out(x.size());
    cuda::convert_to_float(in.data(), static_cast<int64_t>(x.size()), out.data(), stream_);
    return out.read();
  }
  std::vector<Floats> matmul_lowbit(const Floats& x, int m, const std::vector<Matrix>& w) override {
    DeviceFloats in(x);
    std::vector<std::unique_ptr<DeviceArray<unsigned char>>> stored;
    std::vector<std::unique_ptr<DeviceFloats>> y;
    std::vector<LowbitProduct> products;
    for (const Matrix& matrix : w) {
      stored.push_back(
          std::make_unique<DeviceArray<unsigned char>>(matrix.data, stored_bytes(matrix)));
      y.push_back(std::make_unique<DeviceFloats>(static_cast<size_t>(m * matrix.rows)));
      products.push_back(
          {{stored.back()->data(), matrix.type, matrix.rows, matrix.cols}, y.back()->data()});
    }
    cuda::matmul_lowbit(in.data(), m, products, false, stream_);
    std::vector<Floats> out;
    for (const auto& one : y) out.push_back(one->read());
    return out;
  }
  Floats gemm(const Floats& x, int64_t m, const Matrix& w, const Floats* before) override {
    DeviceArray<unsigned char> stored(w.data, stored_bytes(w));
    DeviceArray<bf16> weights(static_cast<size_t>(w.rows * w.cols)), in(x.size());
    DeviceFloats wide(x);
    DeviceFloats y =
        before != nullptr ? DeviceFloats(*before) : DeviceFloats(static_cast<size_t>(m * w.rows));
    cuda::dequantize({stored.data(), w.type, w.rows, w.cols}, weights.data(), stream_);
    cuda::convert_to_bf16(wide.data(), size_of(x), in.data(), stream_);
    gemm_.run(in.data(), m, weights.data(), w.rows, w.cols, y.data(), before != nullptr, stream_);
    return y.read();
  }
  double gemm_tolerance() const override { return 4e-3; }

  Floats flash_prefill(const FlashShape& shape, const RopeTable& table, const Floats& q,
                       const Bf16s& k, const Bf16s& v) override {
    const Bf16s turned = rotate_keys(shape, table, k);
    DeviceArray<bf16> queries(to_bf16(q)), keys(turned), values(v), narrow(q.size());
    DeviceFloats out(q.size());
    cuda::FlashPrefillParams params;
    params.q = queries.data();
    params.k = keys.data();
    params.v = values.data();
    params.out = out.data();
    params.out_bf16 = narrow.data();
    params.rows = shape.rows;
    params.pos0 = shape.pos0;
    params.kv_heads = shape.kv_heads;
    params.q_heads = shape.kv_heads * shape.group;
    params.head_dim = shape.head_dim;
    cuda::flash_prefill(params, stream_);
    const Floats wide = out.read();
    const Bf16s rounded = narrow.read();
    for (size_t i = 0; i < wide.size(); ++i) {
      EXPECT_EQ(rounded[i].bits, akv::to_bf16(wide[i]).bits) << i;
      if (testing::Test::HasFailure()) break;
    }
    return wide;
  }

 private:
  static int64_t size_of(const Floats& x) { return static_cast<int64_t>(x.size()); }
  static size_t stored_bytes(const Matrix& m) {
    return static_cast<size_t>(m.rows) * row_bytes(m.type, m.cols);
  }
  static Bf16s rotate_keys(const FlashShape& shape, const RopeTable& table, const Bf16s& k) {
    Bf16s turned(k.size());
    const auto dim = static_cast<size_t>(shape.head_dim);
    Floats row(dim);
    for (size_t at = 0; at < k.size(); at += dim) {
      for (size_t d = 0; d < dim; ++d) row[d] = akv::to_float(k[at + d]);
      const auto position = static_cast<int64_t>(at / dim) / shape.kv_heads;
      rope_rotate(table, row.data(), position, row.data());
      for (size_t d = 0; d < dim; ++d) turned[at + d] = akv::to_bf16(row[d]);
    }
    return turned;
  }

  DeviceStream stream_;
  cuda::Gemm gemm_{nullptr, 0};
};

std::unique_ptr<Ops> make() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return nullptr;
  return std::make_unique<DeviceOps>();
}

}  // namespace

std::vector<OpsCase> ops_cases() { return {{"device", &make}}; }

}  // namespace akv::kernels
