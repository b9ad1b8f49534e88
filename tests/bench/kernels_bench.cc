// Micro-benchmarks of the model operators, each checked against its double oracle before it is
// timed. GFLOP/s count multiplies and adds of the operator's definition (causal attention: the
// half that is not masked); GB/s count stored weights read once per call.
//
//   kernels_bench --benchmark_filter=Flash    AKV_ISA=avx2 selects the instruction set
//   AKV_BENCH_THREADS=N                       workers (default: one per CPU); 1 counts CPU time
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "common/base/worker_pool.h"
#include "kernels/activation.h"
#include "kernels/dequant.h"
#include "kernels/flash_prefill.h"
#include "kernels/gemm.h"
#include "kernels/gemv.h"
#include "kernels/isa.h"
#include "kernels/norm.h"
#include "kernels/reference/model_ops.h"
#include "kernels/rope.h"

namespace {

using namespace akv;
using namespace akv::kernels;

WorkerPool& pool() {
  static WorkerPool workers([] {
    const char* wanted = std::getenv("AKV_BENCH_THREADS");
    const int n = wanted != nullptr ? std::atoi(wanted) : 0;
    return n > 0 ? n : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  }());
  return workers;
}

// Wall time, but for one worker its CPU time: the figure that holds on a machine shared with
// others.
void clock_of_workers(benchmark::internal::Benchmark* b) {
  if (pool().workers() > 1) b->UseRealTime();
}

std::vector<float> random_floats(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = normal(random);
  return values;
}

// Random blocks whose halves and floats are normal numbers: denormal ones cost a trap each.
std::vector<uint8_t> random_blocks(TensorType type, int64_t rows, int64_t cols) {
  std::vector<uint8_t> bytes(static_cast<size_t>(rows) * row_bytes(type, cols));
  std::minstd_rand random(5);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(0x10 | (random() >> 8 & 0x2f));
  return bytes;
}

// Stops the benchmark unless every sampled value is near the oracle's.
bool check(benchmark::State& state, const char* what, double got, double want, double tolerance) {
  if (std::abs(got - want) <= tolerance) return true;
  char message[160];
  std::snprintf(message, sizeof(message), "%s: got %.9g, reference %.9g", what, got, want);
  state.SkipWithError(message);
  return false;
}

void set_rates(benchmark::State& state, double flop, double bytes) {
  const double runs = static_cast<double>(state.iterations());
  if (flop > 0) {
    state.counters["GFLOP/s"] = benchmark::Counter(runs * flop * 1e-9, benchmark::Counter::kIsRate);
  }
  if (bytes > 0) {
    state.counters["GB/s"] = benchmark::Counter(runs * bytes * 1e-9, benchmark::Counter::kIsRate);
  }
}

// A sample of outputs of x W^T against the oracle; bf16 operands carry 2^-9 each.
bool check_product(benchmark::State& state, const std::vector<float>& x, const Matrix& w,
                   const std::vector<float>& y, int64_t m, double tolerance) {
  for (int64_t n = 0; n < w.rows; n += 37) {
    const int64_t row = n % m;
    double want = 0.0, size = 0.0;
    for (int64_t k = 0; k < w.cols; ++k) {
      const double term = static_cast<double>(x[static_cast<size_t>(row * w.cols + k)]) *
                          reference::weight(w, n, k);
      want += term;
      size += std::abs(term);
    }
    const double got = y[static_cast<size_t>(row * w.rows + n)];
    if (!check(state, "product", got, want, tolerance * size)) return false;
  }
  return true;
}

void Lowbit(benchmark::State& state, TensorType type, int64_t rows, int64_t cols) {
  const int m = static_cast<int>(state.range(0));
  // Enough copies that weights come from memory, as they do in a model.
  const int64_t one = rows * static_cast<int64_t>(row_bytes(type, cols));
  const int64_t copies = std::max<int64_t>(1, (int64_t{32} << 20) / one);
  const auto bytes = random_blocks(type, rows * copies, cols);
  const auto x = random_floats(m * cols, 1);
  std::vector<float> y(static_cast<size_t>(m * rows));
  const auto at = [&](int64_t copy) { return Matrix{bytes.data() + copy * one, type, rows, cols}; };
  matmul_lowbit(x.data(), m, at(0), y.data(), parallel_view(pool()));
  if (!check_product(state, x, at(0), y, m, 2e-6)) return;
  int64_t copy = 0;
  for (auto _ : state) {
    matmul_lowbit(x.data(), m, at(copy++ % copies), y.data(), parallel_view(pool()));
  }
  set_rates(state, 2.0 * static_cast<double>(m * rows * cols), static_cast<double>(one));
}

void Gemm(benchmark::State& state, Compute compute, int64_t rows, int64_t cols) {
  if (compute == Compute::kBf16 && active_isa() != Isa::kAvx512Bf16) {
    state.SkipWithError("no bf16 products here");
    return;
  }
  const int64_t m = state.range(0);
  const auto bytes = random_blocks(TensorType::kQ4_1, rows, cols);
  const Matrix w{bytes.data(), TensorType::kQ4_1, rows, cols};
  const auto x = random_floats(m * cols, 2);
  std::vector<float> y(static_cast<size_t>(m * rows));
  PackedWeights packed;
  packed.pack(w, compute, parallel_view(pool()));
  gemm(x.data(), m, packed, y.data(), parallel_view(pool()));
  if (!check_product(state, x, w, y, m, compute == Compute::kBf16 ? 4e-3 : 2e-6)) return;
  for (auto _ : state) gemm(x.data(), m, packed, y.data(), parallel_view(pool()));
  set_rates(state, 2.0 * static_cast<double>(m * rows * cols), 0);
}

void Pack(benchmark::State& state, TensorType type, int64_t rows, int64_t cols) {
  const auto bytes = random_blocks(type, rows, cols);
  const Matrix w{bytes.data(), type, rows, cols};
  PackedWeights packed;
  for (auto _ : state) packed.pack(w, best_compute(), parallel_view(pool()));
  state.counters["Gweights/s"] = benchmark::Counter(
      static_cast<double>(state.iterations() * rows * cols) * 1e-9, benchmark::Counter::kIsRate);
}

// The last chunk of a prompt of range(0) tokens, by rows of range(1).
void Flash(benchmark::State& state, Compute compute, int heads, int group, int dim) {
  const int64_t keys = state.range(0), rows = state.range(1);
  RopeParams params;
  params.head_dim = dim;
  const RopeTable rope(params);
  const auto q = random_floats(rows * heads * group * dim, 3);
  const auto floats = random_floats(keys * heads * dim, 4);
  std::vector<bf16> k(floats.size()), v(floats.size());
  convert_to_bf16(floats.data(), static_cast<int64_t>(floats.size()), k.data());
  std::copy(k.rbegin(), k.rend(), v.begin());
  std::vector<float> out(q.size());
  FlashPrefillScratch scratch;
  FlashPrefillParams p;
  p.q = q.data();
  p.k = k.data();
  p.v = v.data();
  p.rope = &rope;
  p.out = out.data();
  p.rows = rows;
  p.pos0 = keys - rows;
  p.q_heads = heads * group;
  p.kv_heads = heads;
  p.head_dim = dim;
  p.compute = compute;
  flash_prefill(p, scratch, parallel_view(pool()));
  // The oracle for the newest row alone.
  FlashPrefillParams last = p;
  last.rows = 1;
  last.pos0 = keys - 1;
  last.q += (rows - 1) * heads * group * dim;
  std::vector<double> want(static_cast<size_t>(heads * group * dim));
  reference::attention(last, want.data());
  for (size_t i = 0; i < want.size(); ++i) {
    const double got = out[out.size() - want.size() + i];
    if (!check(state, "attention", got, want[i], compute == Compute::kBf16 ? 1e-2 : 1e-5)) return;
  }
  for (auto _ : state) flash_prefill(p, scratch, parallel_view(pool()));
  const double seen = static_cast<double>(rows) * static_cast<double>(keys) -
                      static_cast<double>(rows * (rows - 1)) / 2;
  set_rates(state, 4.0 * seen * heads * group * dim, 0);
}

void Rmsnorm(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const int dim = 576;
  const auto x = random_floats(rows * dim, 6), weights = random_floats(dim, 7);
  std::vector<float> out(x.size());
  std::vector<double> want(x.size());
  rmsnorm(x.data(), rows, dim, weights.data(), 1e-5f, out.data(), parallel_view(pool()));
  reference::rmsnorm(x.data(), rows, dim, weights.data(), 1e-5, want.data());
  for (size_t i = 0; i < out.size(); i += 97) {
    if (!check(state, "norm", out[i], want[i], 1e-5 * std::abs(want[i]))) return;
  }
  for (auto _ : state) {
    rmsnorm(x.data(), rows, dim, weights.data(), 1e-5f, out.data(), parallel_view(pool()));
  }
  set_rates(state, 0, static_cast<double>(x.size() * 8));
}

void SiluMul(benchmark::State& state) {
  const int64_t n = state.range(0) * 1536;
  const auto gate = random_floats(n, 8), up = random_floats(n, 9);
  std::vector<float> out(gate.size());
  std::vector<double> want(gate.size());
  silu_mul(gate.data(), up.data(), n, out.data(), parallel_view(pool()));
  reference::silu_mul(gate.data(), up.data(), n, want.data());
  for (size_t i = 0; i < out.size(); i += 97) {
    if (!check(state, "silu", out[i], want[i], 2e-6 * std::abs(want[i]))) return;
  }
  for (auto _ : state) {
    silu_mul(gate.data(), up.data(), n, out.data(), parallel_view(pool()));
  }
  set_rates(state, 0, static_cast<double>(n * 12));
}

void Rope(benchmark::State& state) {
  const int64_t rows = state.range(0);
  RopeParams params;
  params.head_dim = 64;
  const RopeTable rope(params);
  rope.reserve(rows);
  auto x = random_floats(rows * 9 * 64, 10);
  for (auto _ : state) rope_apply(rope, x.data(), rows, 9, int64_t{0}, parallel_view(pool()));
  set_rates(state, 0, static_cast<double>(x.size() * 8));
}

}  // namespace

// Decode: the layers and the head of SmolLM2-135M Q4_1, then other formats.
BENCHMARK_CAPTURE(Lowbit, Q4_1_576x576, TensorType::kQ4_1, 576, 576)
    ->Arg(1)
    ->Arg(8)
    ->Apply(clock_of_workers);
BENCHMARK_CAPTURE(Lowbit, Q4_1_1536x576, TensorType::kQ4_1, 1536, 576)
    ->Arg(1)
    ->Arg(8)
    ->Arg(16)
    ->Apply(clock_of_workers);
BENCHMARK_CAPTURE(Lowbit, Q4_1_576x1536, TensorType::kQ4_1, 576, 1536)
    ->Arg(1)
    ->Arg(8)
    ->Apply(clock_of_workers);
BENCHMARK_CAPTURE(Lowbit, Q8_0_49152x576, TensorType::kQ8_0, 49152, 576)
    ->Arg(1)
    ->Arg(8)
    ->Apply(clock_of_workers);
BENCHMARK_CAPTURE(Lowbit, Q4_0_2048x2048, TensorType::kQ4_0, 2048, 2048)
    ->Arg(1)
    ->Arg(8)
    ->Apply(clock_of_workers);
BENCHMARK_CAPTURE(Lowbit, Q5_1_2048x2048, TensorType::kQ5_1, 2048, 2048)
    ->Arg(1)
    ->Apply(clock_of_workers);
BENCHMARK_CAPTURE(Lowbit, Q4_K_2048x2048, TensorType::kQ4_K, 2048, 2048)
    ->Arg(1)
    ->Arg(8)
    ->Apply(clock_of_workers);
BENCHMARK_CAPTURE(Lowbit, Q6_K_2048x2048, TensorType::kQ6_K, 2048, 2048)
    ->Arg(1)
    ->Apply(clock_of_workers);
BENCHMARK_CAPTURE(Lowbit, BF16_2048x2048, TensorType::kBF16, 2048, 2048)
    ->Arg(1)
    ->Apply(clock_of_workers);
// Prefill.
BENCHMARK_CAPTURE(Gemm, f32_1536x576, Compute::kF32, 1536, 576)
    ->Arg(64)
    ->Arg(512)
    ->Apply(clock_of_workers);
BENCHMARK_CAPTURE(Gemm, f32_576x1536, Compute::kF32, 576, 1536)->Arg(512)->Apply(clock_of_workers);
BENCHMARK_CAPTURE(Gemm, bf16_1536x576, Compute::kBf16, 1536, 576)
    ->Arg(64)
    ->Arg(512)
    ->Apply(clock_of_workers);
BENCHMARK_CAPTURE(Gemm, bf16_576x1536, Compute::kBf16, 576, 1536)
    ->Arg(512)
    ->Apply(clock_of_workers);
BENCHMARK_CAPTURE(Pack, Q4_1_1536x576, TensorType::kQ4_1, 1536, 576)->Apply(clock_of_workers);
BENCHMARK_CAPTURE(Flash, f32_D64_H3x3, Compute::kF32, 3, 3, 64)
    ->Args({512, 512})
    ->Args({2048, 512})
    ->Args({8192, 512})
    ->Apply(clock_of_workers);
BENCHMARK_CAPTURE(Flash, bf16_D64_H3x3, Compute::kBf16, 3, 3, 64)
    ->Args({512, 512})
    ->Args({2048, 512})
    ->Args({8192, 512})
    ->Apply(clock_of_workers);
BENCHMARK_CAPTURE(Flash, f32_D128_H8x4, Compute::kF32, 8, 4, 128)
    ->Args({4096, 512})
    ->Apply(clock_of_workers);
BENCHMARK_CAPTURE(Flash, bf16_D128_H8x4, Compute::kBf16, 8, 4, 128)
    ->Args({4096, 512})
    ->Apply(clock_of_workers);
BENCHMARK(Rmsnorm)->Arg(1)->Arg(512)->Apply(clock_of_workers);
BENCHMARK(SiluMul)->Arg(1)->Arg(512)->Apply(clock_of_workers);
BENCHMARK(Rope)->Arg(512)->Apply(clock_of_workers);

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  benchmark::AddCustomContext("isa", isa_name(active_isa()));
  benchmark::AddCustomContext("amx", amx_available() ? "yes" : "no");
  benchmark::AddCustomContext("workers", std::to_string(pool().workers()));
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
