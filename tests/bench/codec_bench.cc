// Compression of a whole prompt, all layers, and verification of the state:
//   codec_bench [--tokens N] [--threads N] [--profile pooled|paper] [--theta X] [--head-dim D]
//               [--kv-heads H] [--group G] [--layers L] [--rounds R]
// One JSON object a line: the best round, milliseconds of wall clock and of CPU.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "common/base/worker_pool.h"
#include "common/kv/codec.h"
#include "common/kv/state.h"
#include "kernels/isa.h"

namespace {

using akv::bf16;

// Rows as a model's: noisy copies of a few centres, so that projections are neither exact nor lost.
std::vector<bf16> clustered_rows(int64_t tokens, int row, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> centres(64 * static_cast<size_t>(row));
  for (float& x : centres) x = normal(rng);
  std::vector<bf16> out;
  out.reserve(static_cast<size_t>(tokens * row));
  for (int64_t t = 0; t < tokens; ++t) {
    const float* centre = centres.data() + static_cast<size_t>(rng() % 64) * row;
    for (int i = 0; i < row; ++i) out.push_back(akv::to_bf16(centre[i] + 0.5f * normal(rng)));
  }
  return out;
}

double cpu_ms() {
  timespec ts;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
  return static_cast<double>(ts.tv_sec) * 1e3 + static_cast<double>(ts.tv_nsec) / 1e6;
}
double wall_ms() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(now).count();
}

struct Setup {
  akv::kv::StatePlan plan;
  std::vector<bf16> k, v, q;
  std::unique_ptr<akv::kernels::RopeTable> rope;
};

Setup make_setup(std::map<std::string, std::string>& flag) {
  const int head_dim = std::stoi(flag["--head-dim"]), kv_heads = std::stoi(flag["--kv-heads"]);
  const int group = std::stoi(flag["--group"]), layers = std::stoi(flag["--layers"]);
  const int64_t tokens = std::stoll(flag["--tokens"]);
  akv::kv::PlanRequest request;
  const auto options = akv::kv::profile_options(flag["--profile"]);
  if (!options.ok()) {
    std::fprintf(stderr, "codec_bench: %s\n", options.error().message.c_str());
    std::exit(2);
  }
  request.options = *options;
  request.theta = std::stod(flag["--theta"]);
  const auto plan =
      akv::kv::plan_state({layers, kv_heads * group, kv_heads, head_dim}, tokens, request);
  if (!plan.ok()) {
    std::fprintf(stderr, "codec_bench: %s\n", plan.error().message.c_str());
    std::exit(2);
  }
  std::mt19937 rng(1);
  Setup s;
  s.plan = *plan;
  s.k = clustered_rows(tokens, kv_heads * head_dim, rng);
  s.v = clustered_rows(tokens, kv_heads * head_dim, rng);
  s.q = clustered_rows(request.options.window, kv_heads * group * head_dim, rng);
  akv::kernels::RopeParams params;
  params.head_dim = head_dim;
  params.base = 100000;
  params.pairs = akv::kernels::RopePairs::kInterleaved;
  s.rope = std::make_unique<akv::kernels::RopeTable>(params, tokens);
  s.rope->reserve(tokens);
  return s;
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> flag = {
      {"--tokens", "8000"}, {"--threads", "2"},   {"--profile", "pooled"},
      {"--theta", "0.05"},  {"--head-dim", "64"}, {"--kv-heads", "3"},
      {"--group", "3"},     {"--layers", "30"},   {"--rounds", "5"}};
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!flag.contains(argv[i])) {
      std::fprintf(stderr, "codec_bench: unknown flag %s\n", argv[i]);
      return 2;
    }
    flag[argv[i]] = argv[i + 1];
  }
  const Setup s = make_setup(flag);
  akv::WorkerPool pool(std::stoi(flag["--threads"]));
  const akv::Parallel parallel = akv::parallel_view(pool);
  auto buffer = akv::kv::StateBuffer::create(s.plan);
  if (!buffer.ok()) return 1;
  akv::kv::Workspace workspace;
  double wall = 1e300, cpu = 1e300, verify = 1e300;
  for (int round = 0; round < std::stoi(flag["--rounds"]); ++round) {
    const double wall0 = wall_ms(), cpu0 = cpu_ms();
    for (int l = 0; l < s.plan.shape.layers; ++l) {
      const akv::kv::LayerInput input{l, s.k.data(), s.v.data(), s.q.data(), s.rope.get()};
      if (!akv::kv::compress_layer(input, s.plan, 1, buffer->record(s.plan, l), workspace, parallel)
               .ok()) {
        return 1;
      }
    }
    wall = std::min(wall, wall_ms() - wall0);
    cpu = std::min(cpu, cpu_ms() - cpu0);
    const double verify0 = wall_ms();
    for (int l = 0; l < s.plan.shape.layers; ++l) {
      if (!akv::kv::verify_record(buffer->record(s.plan, l), l, s.plan, 1).ok()) return 1;
    }
    verify = std::min(verify, wall_ms() - verify0);
  }
  std::printf(
      "{\"bench\":\"codec\",\"isa\":\"%s\",\"threads\":%s,\"profile\":\"%s\",\"tokens\":%s,"
      "\"layers\":%s,\"state_bytes\":%llu,\"ratio\":%.4f,\"compress_ms\":%.1f,"
      "\"compress_cpu_ms\":%.1f,\"verify_ms\":%.2f,\"workspace_bytes\":%zu}\n",
      akv::isa_name(akv::active_isa()), flag["--threads"].c_str(), flag["--profile"].c_str(),
      flag["--tokens"].c_str(), flag["--layers"].c_str(),
      static_cast<unsigned long long>(s.plan.total_bytes), s.plan.ratio(), wall, cpu, verify,
      workspace.bytes());
  return 0;
}
