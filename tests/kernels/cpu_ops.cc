// The operators of kernels/cpu, once per instruction set.
#include <cmath>

#include "common/base/worker_pool.h"
#include "kernels/activation.h"
#include "kernels/dequant.h"
#include "kernels/flash_prefill.h"
#include "kernels/gemm.h"
#include "kernels/gemv.h"
#include "kernels/isa.h"
#include "kernels/norm.h"
#include "tests/kernels/ops.h"

namespace akv::kernels {
namespace {

class CpuOps : public Ops {
 public:
  explicit CpuOps(Isa isa) : isa_(isa), pool_(2), parallel_(parallel_view(pool_)) {}

  Floats rmsnorm(const Floats& x, int dim, const Floats& weight, float eps) override {
    Floats out(x.size());
    const auto rows = static_cast<int64_t>(x.size()) / dim;
    kernels::rmsnorm(x.data(), rows, dim, weight.data(), eps, out.data(), parallel_);
    return out;
  }
  Floats silu_mul(const Floats& gate, const Floats& up) override {
    Floats out(gate.size());
    kernels::silu_mul(gate.data(), up.data(), size_of(gate), out.data(), parallel_);
    return out;
  }
  Floats add(const Floats& x, const Floats& y) override {
    Floats out = x;
    kernels::add(out.data(), y.data(), size_of(x), parallel_);
    return out;
  }
  Floats add_bias(const Floats& x, const Floats& bias) override {
    Floats out = x;
    kernels::add_bias(out.data(), size_of(x) / size_of(bias), size_of(bias), bias.data(),
                      parallel_);
    return out;
  }
  Floats rope(const RopeTable& table, const Floats& x, int heads,
              const std::vector<int64_t>& positions) override {
    Floats out = x;
    rope_apply(table, out.data(), static_cast<int64_t>(positions.size()), heads, positions.data(),
               parallel_);
    return out;
  }
  Bf16s dequantize(const Matrix& m) override {
    Bf16s out(static_cast<size_t>(m.rows * m.cols));
    dequantize_rows(m, 0, m.rows, out.data());
    return out;
  }
  Floats embed(const Matrix& m, const std::vector<int32_t>& ids) override {
    Floats out;
    for (const int32_t id : ids) {
      out.resize(out.size() + static_cast<size_t>(m.cols));
      dequantize_rows(m, id, 1, out.data() + static_cast<int64_t>(out.size()) - m.cols);
    }
    return out;
  }
  Bf16s to_bf16(const Floats& x) override {
    Bf16s out(x.size());
    convert_to_bf16(x.data(), size_of(x), out.data());
    return out;
  }
  Floats to_float(const Bf16s& x) override {
    Floats out(x.size());
    convert_to_float(x.data(), static_cast<int64_t>(x.size()), out.data());
    return out;
  }
  std::vector<Floats> matmul_lowbit(const Floats& x, int m, const std::vector<Matrix>& w) override {
    std::vector<Floats> y;
    std::vector<LowbitProduct> products;
    for (const Matrix& matrix : w) y.emplace_back(static_cast<size_t>(m * matrix.rows), NAN);
    for (size_t i = 0; i < w.size(); ++i) products.push_back({w[i], y[i].data()});
    kernels::matmul_lowbit(x.data(), m, products, parallel_);
    return y;
  }
  Floats gemm(const Floats& x, int64_t m, const Matrix& w, const Floats* before) override {
    PackedWeights packed;
    // oneDNN keeps the instruction set of its first use, so bf16 has a test of its own
    // (matmul_test).
    packed.pack(w, Compute::kF32, parallel_);
    Floats y = before != nullptr ? *before : Floats(static_cast<size_t>(m * w.rows), NAN);
    kernels::gemm(x.data(), m, packed, y.data(), parallel_, before != nullptr);
    return y;
  }
  double gemm_tolerance() const override { return 1e-6; }

  Floats flash_prefill(const FlashShape& shape, const RopeTable& table, const Floats& q,
                       const Bf16s& k, const Bf16s& v) override {
    Floats out(q.size(), NAN);
    FlashPrefillParams params;
    params.q = q.data();
    params.k = k.data();
    params.v = v.data();
    params.rope = &table;
    params.out = out.data();
    params.rows = shape.rows;
    params.pos0 = shape.pos0;
    params.kv_heads = shape.kv_heads;
    params.q_heads = shape.kv_heads * shape.group;
    params.head_dim = shape.head_dim;
    params.compute = best_compute();
    kernels::flash_prefill(params, scratch_, parallel_);
    return out;
  }

 private:
  static int64_t size_of(const Floats& x) { return static_cast<int64_t>(x.size()); }

  ScopedIsa isa_;
  WorkerPool pool_;
  Parallel parallel_;
  FlashPrefillScratch scratch_;
};

template <Isa Level>
std::unique_ptr<Ops> make() {
  return isa_supported(Level) ? std::make_unique<CpuOps>(Level) : nullptr;
}

}  // namespace

std::vector<OpsCase> ops_cases() {
  return {{"portable", &make<Isa::kPortable>},
          {"avx2", &make<Isa::kAvx2>},
          {"avx512", &make<Isa::kAvx512>},
          {"avx512bf16", &make<Isa::kAvx512Bf16>}};
}

}  // namespace akv::kernels
