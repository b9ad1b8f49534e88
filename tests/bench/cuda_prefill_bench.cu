// Times causal prefill attention on a GPU: our kernel against cuDNN's SDPA, Llama-3.1-8B's shape
// (32 query and 8 KV heads of 128), bf16, prompts of 2K to 32K tokens in one call, and the engine's
// own form, a chunk of 4,096 rows at the end of 32K. JSON lines; results are compared first.
//
// usage: cuda_prefill_bench [max prompt tokens, default 32768]
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "kernels/flash_prefill.h"
#include "tests/bench/cuda_bench.h"
#include "tests/bench/cudnn_sdpa.h"

namespace akv::bench {
namespace {

using kernels::cuda::FlashPrefillParams;

constexpr int kHeads = 32, kKvHeads = 8, kDim = 128;
constexpr int64_t kChunkRows = 4096;  // the engine's default on a GPU

// Operands and outputs of a whole prompt.
struct Prompt {
  DeviceMemory memory;
  int64_t tokens;
  bf16 *q, *k, *v, *ours, *theirs;

  explicit Prompt(int64_t count) : tokens(count) {
    const int64_t q_count = tokens * kHeads * kDim, kv_count = tokens * kKvHeads * kDim;
    q = filled(q_count, 1);
    k = filled(kv_count, 2);
    v = filled(kv_count, 3);
    ours = memory.allocate<bf16>(static_cast<size_t>(q_count));
    theirs = memory.allocate<bf16>(static_cast<size_t>(q_count));
  }

 private:
  bf16* filled(int64_t count, uint64_t seed) {
    bf16* p = memory.allocate<bf16>(static_cast<size_t>(count));
    fill_random(p, count, seed);
    return p;
  }
};

// Of both products of rows [begin, begin + rows), without what the mask leaves out.
double flop_of(int64_t begin, int64_t rows) {
  const double keys = static_cast<double>(rows) * (static_cast<double>(begin) + 0.5 * rows);
  return 4 * keys * kHeads * kDim;
}

int rounds_of(int64_t tokens) { return tokens <= 8192 ? 9 : 5; }

double time_ours(const Prompt& p, int64_t begin, cudaStream_t stream) {
  FlashPrefillParams params;
  params.q = p.q + begin * kHeads * kDim;
  params.k = p.k;
  params.v = p.v;
  params.out_bf16 = p.ours + begin * kHeads * kDim;
  params.rows = p.tokens - begin;
  params.pos0 = begin;
  params.q_heads = kHeads;
  params.kv_heads = kKvHeads;
  params.head_dim = kDim;
  return seconds_per_call(stream, 2, rounds_of(p.tokens),
                          [&](int) { kernels::cuda::flash_prefill(params, DeviceStream{stream}); });
}

double time_cudnn(const Prompt& p, cudaStream_t stream) {
  SdpaProblem problem;
  problem.heads = kHeads;
  problem.kv_heads = kKvHeads;
  problem.q_tokens = problem.kv_tokens = p.tokens;
  problem.head_dim = kDim;
  problem.causal = true;
  problem.q = {p.tokens * kHeads * kDim, kDim, kHeads * kDim};
  problem.kv = {p.tokens * kKvHeads * kDim, kDim, kKvHeads * kDim};
  const auto sdpa = make_cudnn_sdpa(problem);
  DeviceMemory memory;
  const SdpaBuffers buffers{p.q, p.k, p.v, p.theirs,
                            memory.allocate<std::byte>(sdpa->workspace_bytes() + 256)};
  return seconds_per_call(stream, 2, rounds_of(p.tokens), [&](int) { sdpa->run(buffers, stream); });
}

class Case {
 public:
  Case(int64_t tokens, const Roofs& roofs, Report& report, cudaStream_t stream)
      : roofs_(roofs), report_(report), stream_(stream), prompt_(tokens), config_(in_k(tokens)) {}

  void run() {
    double ours = 0, theirs = 0;
    if (!report_.attempt(config_, "ours", [&] {
          ours = time_ours(prompt_, 0, stream_);
          time("ours", ours, flop_of(0, prompt_.tokens));
        })) {
      return;
    }
    if (prompt_.tokens > 4 * kChunkRows) run_last_chunk();
    try {
      theirs = time_cudnn(prompt_, stream_);
    } catch (const std::exception& e) {
      return report_.missing(config_, "cuDNN SDPA", e.what());
    }
    const double share = time("cuDNN SDPA", theirs, flop_of(0, prompt_.tokens));
    report_.figure({.config = config_,
                    .metric = "ours over cuDNN SDPA",
                    .value = theirs / ours,
                    .unit = "x",
                    .roof_share = share * theirs / ours,
                    .reach = 0.7,
                    .aim = 1});
    report_.attempt(config_, "difference of ours and cuDNN's", [&] { compare(); });
  }

 private:
  double time(const std::string& metric, double seconds, double flop) {
    const double share = flop / seconds / roofs_.bf16_flop_per_s;
    report_.figure({.config = config_,
                    .metric = metric,
                    .value = seconds * 1e3,
                    .unit = "ms",
                    .roof_share = share,
                    .note = std::to_string(flop / seconds * 1e-12) + " TFLOP/s"});
    return share;
  }
  void run_last_chunk() {
    report_.attempt(config_, "ours, the last 4,096 rows", [&] {
      const int64_t begin = prompt_.tokens - kChunkRows;
      time("ours, the last 4,096 rows", time_ours(prompt_, begin, stream_),
           flop_of(begin, kChunkRows));
    });
  }
  void compare() {
    const auto count = static_cast<size_t>(prompt_.tokens * kHeads * kDim);
    const double error = relative_l2(prompt_.ours, prompt_.theirs, count);
    report_.figure({.config = config_,
                    .metric = "difference of ours and cuDNN's",
                    .value = error,
                    .unit = "relative L2"});
    if (!(error < 2e-2)) throw std::runtime_error("our kernel and cuDNN disagree");
  }

  const Roofs& roofs_;
  Report& report_;
  cudaStream_t stream_;
  Prompt prompt_;
  std::string config_;
};

int run(int64_t max_tokens) {
  Report report("cuda_prefill");
  if (const std::string why = no_device(); !why.empty()) {
    report.skipped(why);
    return 0;
  }
  report.attempt("all", "set-up", [&] {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    const Roofs roofs = device_roofs();
    report.figure({.config = "device",
                   .metric = "bf16 roof by its clock",
                   .value = roofs.bf16_flop_per_s * 1e-12,
                   .unit = "TFLOP/s"});
    for (const int64_t tokens : lengths({2048, 4096, 8192, 16384, 32768}, max_tokens)) {
      report.attempt(in_k(tokens), "all", [&] { Case(tokens, roofs, report, stream).run(); });
    }
    if (const std::string version = cudnn_version(); !version.empty()) {
      std::fprintf(stderr, "cuDNN %s\n", version.c_str());
    }
  });
  return report.status();
}

}  // namespace
}  // namespace akv::bench

int main(int argc, char** argv) { return akv::bench::run(argc > 1 ? std::atoll(argv[1]) : 32768); }
