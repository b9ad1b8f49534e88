// The model's operators on vectors of the host, whatever runs them: the tests' bodies are written
// once for CPU and device. Which backends a binary tests is decided by what it links (cpu_ops.cc or
// device_ops.cc).
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/rope.h"
#include "kernels/types.h"

namespace akv::kernels {

using Floats = std::vector<float>;
using Bf16s = std::vector<bf16>;

// Shape of a causal attention problem; keys and values have pos0 + rows rows.
struct FlashShape {
  int head_dim, kv_heads, group;
  int64_t pos0, rows;
};

class Ops {
 public:
  virtual ~Ops() = default;

  virtual Floats rmsnorm(const Floats& x, int dim, const Floats& weight, float eps) = 0;
  virtual Floats silu_mul(const Floats& gate, const Floats& up) = 0;
  virtual Floats add(const Floats& x, const Floats& y) = 0;
  virtual Floats add_bias(const Floats& x, const Floats& bias) = 0;
  virtual Floats rope(const RopeTable& table, const Floats& x, int heads,
                      const std::vector<int64_t>& positions) = 0;

  virtual Bf16s dequantize(const Matrix& m) = 0;
  virtual Floats embed(const Matrix& m, const std::vector<int32_t>& ids) = 0;
  virtual Bf16s to_bf16(const Floats& x) = 0;
  virtual Floats to_float(const Bf16s& x) = 0;

  // y [m, N] of each matrix, from stored weights; m <= 16. With `before`, added to it (one matrix).
  virtual std::vector<Floats> matmul_lowbit(const Floats& x, int m,
                                            const std::vector<Matrix>& w) = 0;
  // y [m, N] of a prefill product in bf16, or added to `before`; relative rounding of a product.
  virtual Floats gemm(const Floats& x, int64_t m, const Matrix& w, const Floats* before) = 0;
  virtual double gemm_tolerance() const = 0;

  // Attention in the backend's fastest form. q [rows, Hq, D] after RoPE; k before it.
  virtual Floats flash_prefill(const FlashShape& shape, const RopeTable& table, const Floats& q,
                               const Bf16s& k, const Bf16s& v) = 0;
};

struct OpsCase {
  std::string name;
  std::unique_ptr<Ops> (*make)();  // null where this machine cannot run it
};

// The backends that this binary tests.
std::vector<OpsCase> ops_cases();

class OpsTest : public testing::TestWithParam<OpsCase> {
 protected:
  void SetUp() override {
    ops_ = GetParam().make();
    if (ops_ == nullptr) GTEST_SKIP() << "not on this machine: " << GetParam().name;
  }
  Ops& ops() { return *ops_; }

 private:
  std::unique_ptr<Ops> ops_;
};

#define AKV_FOR_EACH_BACKEND(suite)                                        \
  INSTANTIATE_TEST_SUITE_P(Backend, suite, testing::ValuesIn(ops_cases()), \
                           [](const auto& backend) { return backend.param.name; })

}  // namespace akv::kernels
