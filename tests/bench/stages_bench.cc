// stages_bench: what binds a decode step. Times each stage of a step apart, with the bytes and
// multiply-adds of its launches, beside the machine's own roofs measured in the same run.
//
//   stages_bench --model M [--threads N] [--rounds R] [--synthetic] DEPTH[xSESSIONS]...
//
// One JSON object a line. --synthetic takes made-up states, at depths beyond the model's context.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/worker_pool.h"
#include "common/device/host.h"
#include "common/model/graph.h"
#include "kernels/isa.h"
#include "kernels/rope.h"
#include "kernels/work.h"
#include "tests/bench/bench_state.h"

namespace akv::bench {
namespace {

struct Arguments {
  std::string model;
  int threads = cpu_count();
  int rounds = 20;
  bool synthetic = false;
  bool mapped = false;                         // weights stay on the file's pages
  std::vector<std::pair<int64_t, int>> cases;  // depth, sessions
};

bool parse(int argc, char** argv, Arguments& a) {
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    if (text == "--synthetic") {
      a.synthetic = true;
    } else if (text == "--mapped") {
      a.mapped = true;
    } else if (text.starts_with("--") && i + 1 < argc) {
      const char* value = argv[++i];
      if (text == "--model") a.model = value;
      if (text == "--threads") a.threads = std::atoi(value);
      if (text == "--rounds") a.rounds = std::atoi(value);
    } else {
      long depth = 0;
      int sessions = 1;
      if (std::sscanf(text.c_str(), "%ldx%d", &depth, &sessions) < 1) return false;
      a.cases.emplace_back(depth, sessions);
    }
  }
  return !a.model.empty() && !a.cases.empty() && a.threads > 0 && a.rounds > 0;
}

// Best rate of copying 256 MiB by all workers: bytes read and written a second, as STREAM counts.
double copy_gb_per_s(const Parallel& parallel) {
  constexpr size_t kBytes = size_t{128} << 20, kPiece = size_t{1} << 20;
  std::vector<char> from(kBytes, 1), to(kBytes);
  double best = 0;
  for (int round = 0; round < 6; ++round) {
    const TimePoint start = SteadyClock::now();
    parallel.run(static_cast<int>(kBytes / kPiece), [&](int piece, int) {
      const size_t at = static_cast<size_t>(piece) * kPiece;
      std::memcpy(&to[at], &from[at], kPiece);
    });
    best = std::max(best, 2.0 * kBytes / ms_since(start) / 1e6);
  }
  return best;
}

// Best rate of reading 128 MiB by all workers, in search of a byte that is not there.
double read_gb_per_s(const Parallel& parallel) {
  constexpr size_t kBytes = size_t{128} << 20, kPiece = size_t{1} << 20;
  const std::vector<char> bytes(kBytes, 1);
  double best = 0;
  for (int round = 0; round < 6; ++round) {
    std::atomic<int> found{0};
    const TimePoint start = SteadyClock::now();
    parallel.run(static_cast<int>(kBytes / kPiece), [&](int piece, int) {
      const char* from = &bytes[static_cast<size_t>(piece) * kPiece];
      if (std::memchr(from, 2, kPiece) != nullptr) ++found;
    });
    if (found == 0) best = std::max(best, kBytes / ms_since(start) / 1e6);
  }
  return best;
}

// Peak of f32 multiply-adds a second by the GEMM of this machine's prefill: the roof that dense
// arithmetic has here.
double gemm_gmadd_per_s(const model::Model& model, const Parallel& parallel) {
  const Matrix& w = model.layer(0).w_up;
  kernels::PackedWeights packed;
  packed.pack(w, kernels::best_compute(), parallel);
  constexpr int64_t kRows = 512;
  std::vector<float> x(static_cast<size_t>(kRows * w.cols), 0.5f);
  std::vector<float> y(static_cast<size_t>(kRows * w.rows));
  double best = 0;
  for (int round = 0; round < 10; ++round) {
    const TimePoint start = SteadyClock::now();
    kernels::gemm(x.data(), kRows, packed, y.data(), parallel);
    const auto work = kernels::gemm_work(kRows, w.rows, w.cols, packed.compute());
    best = std::max(best, static_cast<double>(work.multiply_adds) / ms_since(start) / 1e6);
  }
  return best;
}

enum Stage { kQkv, kAttention, kOut, kMlp, kHead, kStages };
constexpr std::array<const char*, kStages> kNames = {"qkv", "attention", "attn_out", "mlp", "head"};

struct Totals {
  std::array<double, kStages> ms{};
  std::array<kernels::Work, kStages> work{};
};

// One step of `sessions` rows, stage by stage, all layers. Rows' tokens stand at a position that
// the model knows: only the attention's lengths matter to the clock.
class Stepper {
 public:
  Stepper(const std::shared_ptr<const model::Model>& model, const State& state, int sessions,
          const Parallel& parallel)
      : model_(model),
        rope_(model->rope().params(), state.plan.tokens + 1),
        graph_(model, {.path = model::WeightPath::kLowBit, .max_rows = kRows}, parallel),
        parallel_(parallel),
        count_(sessions) {
    const auto& c = model->config();
    const auto n = static_cast<size_t>(sessions);
    for (int i = 0; i < sessions; ++i) {
      auto copy = copy_of(state);
      if (!copy.ok()) std::abort();
      buffers_.push_back(std::move(*copy));
      views_.push_back(kv::StateView::create(buffers_.back().bytes(), state.plan));
    }
    x_.assign(n * c.d_model, 0.01f);
    q_.resize(n * c.q_dim());
    attn_.resize(q_.size());
    k_.resize(n * c.kv_dim());
    v_.resize(k_.size());
    logits_.resize(n * static_cast<size_t>(c.vocab));
    rows_.resize(n);
    positions_.assign(n, std::min<int64_t>(state.plan.tokens, c.context_length - 1));
    for (size_t i = 0; i < n; ++i) logit_rows_.push_back(static_cast<int64_t>(i));
  }

  Totals step() {
    Totals t;
    for (int layer = 0; layer < model_->config().layers; ++layer) run_layer(layer, t);
    blocks([&](int64_t begin, int64_t rows) {
      const auto span =
          std::span(logit_rows_).subspan(static_cast<size_t>(begin), static_cast<size_t>(rows));
      timed(t, kHead, [&] {
        graph_.logits(x_.data(), span, logits_.data() + begin * model_->config().vocab);
      });
      const std::array head = {model_->head()};
      t.work[kHead] += kernels::matmul_lowbit_work(static_cast<int>(rows), head);
    });
    return t;
  }

 private:
  static constexpr int64_t kRows = 16;

  template <class F>
  void blocks(F&& f) {
    for (int64_t begin = 0; begin < count_; begin += kRows)
      f(begin, std::min(kRows, count_ - begin));
  }
  template <class F>
  static void timed(Totals& t, Stage stage, F&& f) {
    const TimePoint start = SteadyClock::now();
    f();
    t.ms[stage] += ms_since(start);
  }

  void run_layer(int layer, Totals& t) {
    const auto& c = model_->config();
    const auto& w = model_->layer(layer);
    const std::array qkv = {w.wq, w.wk, w.wv}, mlp = {w.w_gate, w.w_up, w.w_down};
    const std::array out = {w.wo};
    blocks([&](int64_t begin, int64_t rows) {
      const auto at =
          std::span(positions_).subspan(static_cast<size_t>(begin), static_cast<size_t>(rows));
      timed(t, kQkv, [&] {
        graph_.qkv(layer, x_.data() + begin * c.d_model, at,
                   {.q = q_.data() + begin * c.q_dim(),
                    .k_rot = k_.data() + begin * c.kv_dim(),
                    .v = v_.data() + begin * c.kv_dim()});
      });
      t.work[kQkv] += kernels::matmul_lowbit_work(static_cast<int>(rows), qkv);
    });
    attend(layer, t);
    blocks([&](int64_t begin, int64_t rows) {
      float* x = x_.data() + begin * c.d_model;
      timed(t, kOut, [&] { graph_.attn_out(layer, attn_.data() + begin * c.q_dim(), rows, x); });
      timed(t, kMlp, [&] { graph_.mlp(layer, rows, x); });
      t.work[kOut] += kernels::matmul_lowbit_work(static_cast<int>(rows), out);
      t.work[kMlp] += kernels::matmul_lowbit_work(static_cast<int>(rows), mlp);
    });
  }

  void attend(int layer, Totals& t) {
    const auto& c = model_->config();
    for (size_t i = 0; i < rows_.size(); ++i) {
      rows_[i] = {};
      rows_[i].prompt = views_[i].compressed(layer);
      rows_[i].dense_prompt = views_[i].dense(layer);
      rows_[i].q = q_.data() + i * static_cast<size_t>(c.q_dim());
      rows_[i].out = attn_.data() + i * static_cast<size_t>(c.q_dim());
    }
    timed(t, kAttention,
          [&] { kernels::decode_attention(rows_, c.heads, rope_, scratch_, parallel_); });
    t.work[kAttention] += kernels::decode_attention_work(rows_, c.heads);
  }

  std::shared_ptr<const model::Model> model_;
  kernels::RopeTable rope_;
  model::Graph graph_;
  Parallel parallel_;
  int64_t count_;
  std::vector<kv::StateBuffer> buffers_;
  std::vector<kv::StateView> views_;
  std::vector<float> x_, q_, attn_, logits_;
  std::vector<bf16> k_, v_;
  std::vector<kernels::AttentionRow> rows_;
  std::vector<int64_t> positions_, logit_rows_;
  kernels::DecodeAttentionScratch scratch_;
};

void print_stage(const char* stage, int64_t depth, int sessions, double ms,
                 const kernels::Work& work, double copy, double gemm) {
  const double gb = static_cast<double>(work.bytes) / ms / 1e6;
  const double madds = static_cast<double>(work.multiply_adds) / ms / 1e6;
  std::printf(
      "{\"what\":\"stage\",\"depth\":%ld,\"sessions\":%d,\"stage\":\"%s\",\"ms\":%.4f,"
      "\"bytes\":%lu,\"multiply_adds\":%lu,\"gb_per_s\":%.2f,\"gmadd_per_s\":%.2f,"
      "\"of_copy\":%.3f,\"of_gemm\":%.3f,\"binds\":\"%s\"}\n",
      depth, sessions, stage, ms, work.bytes, work.multiply_adds, gb, madds, gb / copy,
      madds / gemm, gb / copy > madds / gemm ? "memory" : "arithmetic");
}

Status run_case(const std::shared_ptr<const model::Model>& model, const Arguments& a, int64_t depth,
                int sessions, const Parallel& parallel, double copy, double gemm) {
  State state;
  if (a.synthetic) {
    AKV_ASSIGN_OR_RETURN(state, synthetic(*model, depth, parallel));
  } else {
    AKV_ASSIGN_OR_RETURN(state, prefill(model, depth, parallel));
  }
  Stepper stepper(model, state, sessions, parallel);
  Totals best;
  double best_sum = 1e300;
  for (int round = 0; round <= a.rounds; ++round) {
    const Totals t = stepper.step();
    double sum = 0;
    for (int s = 0; s < kStages; ++s) {
      sum += t.ms[s];
      best.ms[s] = round < 2 ? t.ms[s] : std::min(best.ms[s], t.ms[s]);
    }
    best.work = t.work;
    if (round > 0) best_sum = std::min(best_sum, sum);
  }
  kernels::Work all, weights;
  double weights_ms = 0;
  for (int s = 0; s < kStages; ++s) {
    print_stage(kNames[s], depth, sessions, best.ms[s], best.work[s], copy, gemm);
    all += best.work[s];
    if (s == kAttention) continue;
    weights += best.work[s];
    weights_ms += best.ms[s];
  }
  print_stage("weights", depth, sessions, weights_ms, weights, copy, gemm);
  print_stage("step", depth, sessions, best_sum, all, copy, gemm);
  std::fflush(stdout);
  return {};
}

Status run(const Arguments& a) {
  AKV_ASSIGN_OR_RETURN(const auto model, load_model(a.model, a.mapped));
  WorkerPool pool(a.threads);
  const Parallel parallel = parallel_view(pool);
  const double copy = copy_gb_per_s(parallel);
  const double read = read_gb_per_s(parallel);
  const double gemm = gemm_gmadd_per_s(*model, parallel);
  std::printf(
      "{\"what\":\"roofs\",\"copy_gb_per_s\":%.2f,\"read_gb_per_s\":%.2f,\"gemm_gmadd_per_s\":%.2f,"
      "\"isa\":\"%s\",\"threads\":%d}\n",
      copy, read, gemm, isa_name(active_isa()), a.threads);
  for (const auto& [depth, sessions] : a.cases) {
    AKV_RETURN_IF_ERROR(run_case(model, a, depth, sessions, parallel, copy, gemm));
  }
  return {};
}

}  // namespace
}  // namespace akv::bench

int main(int argc, char** argv) {
  akv::bench::Arguments arguments;
  if (!akv::bench::parse(argc, argv, arguments)) {
    std::fprintf(
        stderr,
        "usage: stages_bench --model M [--threads N] [--rounds R] [--synthetic] [--mapped] "
        "DEPTH[xSESSIONS]...\n");
    return 2;
  }
  const akv::Status status = akv::bench::run(arguments);
  if (!status.ok()) std::fprintf(stderr, "stages_bench: %s\n", status.error().message.c_str());
  return status.ok() ? 0 : 1;
}
