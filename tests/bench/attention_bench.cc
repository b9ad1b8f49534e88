// One decode_attention call: the time of a layer of a decode step, as ns per token and KV head.
// Before a case is timed its output is compared with the double oracle.
//
//   attention_bench --benchmark_filter='compressed/isa:3'
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>

#include "common/base/worker_pool.h"
#include "kernels/compressed_attention.h"
#include "kernels/isa.h"
#include "tests/kernels/attention_case.h"

namespace {

using namespace akv;
using namespace akv::kernels;

struct Shape {
  const char* name;
  int tokens, kv_heads, group, head_dim, anchors;
  double density2, density4;  // what `pooled` leaves at 20x
};

constexpr Shape kShapes[] = {
    {"SmolLM2 8K", 8000, 3, 3, 64, 63, 0.08, 0.05},
    {"SmolLM2 2K", 2000, 3, 3, 64, 41, 0.02, 0.01},
    {"Llama-1B 32K", 32768, 8, 4, 64, 256, 0.08, 0.05},
    {"Llama-8B 32K", 32768, 8, 4, 128, 256, 0.15, 0.08},
    {"Qwen 16K", 16384, 2, 7, 64, 128, 0.08, 0.05},
    {"Gemma 16K", 16384, 1, 4, 256, 128, 0.15, 0.1},
    {"g=1 8K", 8192, 4, 1, 128, 64, 0.12, 0.06},
};

RopeTable& rope_of(int head_dim) {
  static std::map<int, std::unique_ptr<RopeTable>> tables;
  auto& table = tables[head_dim];
  if (table == nullptr) {
    RopeParams params;
    params.head_dim = head_dim;
    params.base = 100000.0;
    params.pairs = RopePairs::kInterleaved;
    table = std::make_unique<RopeTable>(params);
  }
  return *table;
}

// Rows of `sessions` sessions of one shape, all with prompts of their own.
class Batch {
 public:
  Batch(const Shape& shape, int sessions, bool dense, bool post)
      : heads_(shape.kv_heads * shape.group), suffix_(64, shape.kv_heads, shape.head_dim, 5) {
    for (int i = 0; i < sessions; ++i) {
      const auto seed = static_cast<uint64_t>(i + 1);
      testing::CaseOptions o;
      o.tokens = shape.tokens;
      o.anchors = shape.anchors;
      o.heads = heads_;
      o.kv_heads = shape.kv_heads;
      o.head_dim = shape.head_dim;
      o.post = post;
      o.density2 = shape.density2;
      o.density4 = shape.density4;
      o.seed = seed;
      if (dense) {
        dense_.push_back(std::make_unique<testing::DenseCase>(shape.tokens, shape.kv_heads,
                                                              shape.head_dim, seed));
      } else {
        compressed_.push_back(std::make_unique<testing::CompressedCase>(o));
      }
      queries_.push_back(testing::random_queries(heads_, shape.head_dim, seed + 100));
      outputs_.emplace_back(queries_.back().size());
    }
    for (size_t i = 0; i < queries_.size(); ++i) {
      AttentionRow row;
      if (dense) {
        row.dense_prompt = &dense_[i]->view();
      } else {
        row.prompt = &compressed_[i]->view();
      }
      row.suffix = suffix_.view(40);
      row.q = queries_[i].data();
      row.out = outputs_[i].data();
      rows_.push_back(row);
    }
  }

  int heads() const { return heads_; }
  const std::vector<AttentionRow>& rows() const { return rows_; }

  double error(const RopeTable& rope) const {
    std::vector<float> want(outputs_[0].size());
    AttentionRow row = rows_[0];
    row.out = want.data();
    reference::decode_attention(row, heads_, rope);
    return testing::relative_l2(outputs_[0], want);
  }

 private:
  int heads_;
  testing::SuffixCase suffix_;
  std::vector<std::unique_ptr<testing::CompressedCase>> compressed_;
  std::vector<std::unique_ptr<testing::DenseCase>> dense_;
  std::vector<std::vector<float>> queries_, outputs_;
  std::vector<AttentionRow> rows_;
};

void run(benchmark::State& state, bool dense, bool post) {
  const Isa isa = static_cast<Isa>(state.range(0));
  const Shape& shape = kShapes[state.range(1)];
  const int sessions = static_cast<int>(state.range(2)), threads = static_cast<int>(state.range(3));
  if (!isa_supported(isa)) return state.SkipWithError("instruction set not supported");
  const ScopedIsa scoped(isa);
  const Batch batch(shape, sessions, dense, post);
  const RopeTable& rope = rope_of(shape.head_dim);
  WorkerPool pool(threads);
  DecodeAttentionScratch scratch;
  const Parallel parallel = parallel_view(pool);
  decode_attention(batch.rows(), batch.heads(), rope, scratch, parallel);
  const double error = batch.error(rope);
  if (!(error < 1e-3)) return state.SkipWithError("differs from the reference");
  // The fastest call, beside the library's mean: on a shared machine most calls are interrupted.
  double best_s = INFINITY;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    decode_attention(batch.rows(), batch.heads(), rope, scratch, parallel);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    best_s = std::min(best_s, taken.count());
  }
  state.SetLabel(std::string(shape.name) + ", " + isa_name(isa));
  const double units = static_cast<double>(shape.tokens) * shape.kv_heads * sessions;
  state.counters["best_ns_per_token_head"] = best_s * 1e9 / units;
  state.counters["error"] = error;
}

void compressed(benchmark::State& state) { run(state, false, true); }
void compressed_pre(benchmark::State& state) { run(state, false, false); }
void dense(benchmark::State& state) { run(state, true, true); }

void cases(benchmark::internal::Benchmark* b) {
  b->ArgNames({"isa", "shape", "sessions", "threads"})->UseRealTime();
  for (int isa = 0; isa < 4; ++isa) {
    for (int shape = 0; shape < static_cast<int>(std::size(kShapes)); ++shape) {
      for (int threads : {1, 2}) b->Args({isa, shape, 1, threads});
    }
    b->Args({isa, 0, 8, 2});
  }
}

BENCHMARK(compressed)->Apply(cases);
BENCHMARK(dense)->Apply(cases);
BENCHMARK(compressed_pre)
    ->ArgNames({"isa", "shape", "sessions", "threads"})
    ->Args({3, 0, 1, 2})
    ->Args({1, 0, 1, 2});

}  // namespace

BENCHMARK_MAIN();
