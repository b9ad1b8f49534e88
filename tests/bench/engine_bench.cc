// engine_bench: the prefill and decode engines in process, without HTTP or network: what they take,
// at which depth, for how many sessions. Real model, real codec, distinct state memory a session.
//
//   engine_bench --model M [--threads N] [--rounds R] [--steps K] [--prefill-rounds R]
//                [--state-mib M [--page-share X]] [--mapped] DEPTH[xSESSIONS]...
//
// One JSON object a line: prefill and compression of DEPTH tokens (once a depth), and the best and
// median time of a decode step of SESSIONS rows behind it, over R rounds of K steps. --state-mib
// admits sessions of DEPTH tokens into a pool of that size until it refuses, then K steps of all.
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/worker_pool.h"
#include "common/device/host.h"
#include "decode_node/engine/cpu_step.h"
#include "kernels/isa.h"
#include "tests/bench/bench_state.h"

namespace akv::bench {
namespace {

struct Arguments {
  std::string model;
  int threads = cpu_count();
  int rounds = 5;
  int prefill_rounds = 1;
  int steps = 16;
  uint64_t state_mib = 0;  // 0: SESSIONS is given
  double page_share = 0.125;
  bool mapped = false;                         // weights stay on the file's pages
  std::vector<std::pair<int64_t, int>> cases;  // depth, sessions
};

Result<Arguments> parse(int argc, char** argv) {
  Arguments a;
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    const bool more = i + 1 < argc;
    if (text == "--model" && more) {
      a.model = argv[++i];
    } else if (text == "--threads" && more) {
      a.threads = std::atoi(argv[++i]);
    } else if (text == "--rounds" && more) {
      a.rounds = std::atoi(argv[++i]);
    } else if (text == "--prefill-rounds" && more) {
      a.prefill_rounds = std::atoi(argv[++i]);
    } else if (text == "--state-mib" && more) {
      a.state_mib = std::strtoull(argv[++i], nullptr, 10);
    } else if (text == "--page-share" && more) {
      a.page_share = std::atof(argv[++i]);
    } else if (text == "--mapped") {
      a.mapped = true;
    } else if (text == "--steps" && more) {
      a.steps = std::atoi(argv[++i]);
    } else {
      int64_t depth = 0;
      int sessions = 1;
      if (std::sscanf(text.c_str(), "%ldx%d", &depth, &sessions) < 1 || depth < 1 || sessions < 1) {
        return make_error(Code::kInvalidArgument, "'" + text + "' is not DEPTH[xSESSIONS]");
      }
      a.cases.emplace_back(depth, sessions);
    }
  }
  if (a.model.empty() || a.cases.empty() || a.threads < 1 || a.rounds < 1 || a.steps < 1 ||
      a.prefill_rounds < 1) {
    return make_error(Code::kInvalidArgument,
                      "usage: engine_bench --model M [--threads N] [--rounds R] [--steps K] "
                      "[--prefill-rounds R] [--state-mib M [--page-share X]] DEPTH[xSESSIONS]...");
  }
  return a;
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Prefills and compresses one prompt several times; prints the best round and the median. The share
// of compression is over the time of the forward pass alone, as in the paper.
Result<State> prefill_rounds(const std::shared_ptr<const model::Model>& model, int64_t depth,
                             const Arguments& a, const Parallel& parallel) {
  State kept;
  std::vector<double> total, compress, share, logits;
  for (int round = 0; round < a.prefill_rounds; ++round) {
    AKV_ASSIGN_OR_RETURN(kept, prefill(model, depth, parallel));
    total.push_back(kept.total_ms);
    compress.push_back(kept.compress_ms);
    share.push_back(kept.compress_ms / (kept.total_ms - kept.compress_ms));
    logits.push_back(kept.logits_ms);
  }
  const double best = *std::min_element(total.begin(), total.end());
  const double tokens = 1000.0 * static_cast<double>(depth);
  std::printf(
      "{\"what\":\"prefill\",\"depth\":%ld,\"rounds\":%d,\"total_ms\":%.1f,"
      "\"median_ms\":%.1f,\"compress_ms\":%.1f,\"compress_share_best\":%.4f,"
      "\"compress_share_median\":%.4f,\"logits_ms\":%.2f,\"tokens_per_s_best\":%.1f,"
      "\"tokens_per_s_median\":%.1f,\"state_bytes\":%lu,\"dense_bytes\":%lu,\"ratio\":%.3f,"
      "\"isa\":\"%s\"}\n",
      depth, a.prefill_rounds, best, median_of(total),
      *std::min_element(compress.begin(), compress.end()),
      *std::min_element(share.begin(), share.end()), median_of(share), median_of(logits),
      tokens / best, tokens / median_of(total), kept.plan.total_bytes, kept.plan.dense_bytes,
      kept.plan.ratio(), isa_name(active_isa()));
  std::fflush(stdout);
  return kept;
}

// Sessions with memory of their own: copies of one state.
Status decode(const std::shared_ptr<const model::Model>& model, const State& state, int sessions,
              const Arguments& a, const Parallel& parallel) {
  std::vector<kv::StateBuffer> buffers;
  decode::CpuStepEngine engine(model, parallel);
  std::vector<std::unique_ptr<decode::PromptState>> prompts;
  for (int i = 0; i < sessions; ++i) {
    AKV_ASSIGN_OR_RETURN(auto buffer, copy_of(state));
    buffers.push_back(std::move(buffer));
    AKV_ASSIGN_OR_RETURN(auto prompt, engine.adopt({buffers.back().bytes(), &state.plan, nullptr}));
    prompts.push_back(std::move(prompt));
  }
  std::vector<double> all;
  for (int round = 0; round < a.rounds; ++round) {
    std::vector<std::unique_ptr<decode::Suffix>> suffixes;
    for (int i = 0; i < sessions; ++i) {
      suffixes.push_back(
          std::make_unique<decode::Suffix>(decode::PageShape(model->config()), nullptr));
    }
    for (int step = 0; step <= a.steps; ++step) {
      std::vector<int32_t> tokens(static_cast<size_t>(sessions));
      std::vector<decode::StepEntry> entries(static_cast<size_t>(sessions));
      for (size_t i = 0; i < entries.size(); ++i) {
        tokens[i] = 1000 + step * 31 + static_cast<int32_t>(i);
        suffixes[i]->grow(step + 1);
        entries[i].prompt = prompts[i].get();
        entries[i].suffix = suffixes[i].get();
        entries[i].tokens = {&tokens[i], 1};
        entries[i].position = state.plan.tokens + step;
      }
      const TimePoint start = SteadyClock::now();
      AKV_RETURN_IF_ERROR(engine.forward(entries));
      if (step > 0) all.push_back(ms_since(start));  // the first one warms up
    }
  }
  std::sort(all.begin(), all.end());
  const double median = all[all.size() / 2];
  std::printf(
      "{\"what\":\"decode\",\"depth\":%ld,\"sessions\":%d,\"best_ms\":%.3f,"
      "\"median_ms\":%.3f,\"tokens_per_s_best\":%.1f,\"tokens_per_s_median\":%.1f}\n",
      state.plan.tokens, sessions, all.front(), median, 1000.0 * sessions / all.front(),
      1000.0 * sessions / median);
  std::fflush(stdout);
  return {};
}

// As many sessions as the pool of a decode node admits, all alive, each of them `steps` tokens
// further: every byte is charged as the node charges it.
Status fill_pool(const std::shared_ptr<const model::Model>& model, const State& state,
                 const Arguments& a, const Parallel& parallel) {
  decode::BytePool pool(a.state_mib << 20, a.page_share);
  const decode::PageShape page(model->config());
  std::vector<kv::StateBuffer> buffers;
  decode::CpuStepEngine engine(model, parallel);
  std::vector<std::unique_ptr<decode::PromptState>> prompts;
  std::vector<std::unique_ptr<decode::Suffix>> suffixes;
  while (pool.reserve_session(state.plan.total_bytes, page.bytes())) {
    AKV_ASSIGN_OR_RETURN(auto buffer, copy_of(state));
    buffers.push_back(std::move(buffer));
    AKV_ASSIGN_OR_RETURN(auto prompt, engine.adopt({buffers.back().bytes(), &state.plan, nullptr}));
    prompts.push_back(std::move(prompt));
    suffixes.push_back(std::make_unique<decode::Suffix>(page, &pool));
    suffixes.back()->adopt_reservation(1);
  }
  std::vector<double> times;
  for (int step = 0; step < a.steps; ++step) {
    std::vector<int32_t> tokens(prompts.size(), 1000 + step * 31);
    std::vector<decode::StepEntry> entries(prompts.size());
    for (size_t i = 0; i < entries.size(); ++i) {
      if (!suffixes[i]->grow(step + 1)) {
        return make_error(Code::kResourceExhausted, "a live session could not grow");
      }
      entries[i].prompt = prompts[i].get();
      entries[i].suffix = suffixes[i].get();
      entries[i].tokens = {&tokens[i], 1};
      entries[i].position = state.plan.tokens + step;
    }
    const TimePoint start = SteadyClock::now();
    AKV_RETURN_IF_ERROR(engine.forward(entries));
    times.push_back(ms_since(start));
  }
  std::printf(
      "{\"what\":\"sessions\",\"depth\":%ld,\"state_mib\":%lu,\"page_share\":%.4f,"
      "\"sessions\":%zu,\"generated\":%d,\"state_bytes\":%lu,\"page_bytes\":%lu,"
      "\"pool_bytes\":%lu,\"step_median_ms\":%.1f,\"dense_sessions\":%lu}\n",
      state.plan.tokens, a.state_mib, a.page_share, prompts.size(), a.steps, state.plan.total_bytes,
      page.bytes(), pool.state_bytes() + pool.page_bytes(), median_of(times),
      (a.state_mib << 20) / (state.plan.dense_bytes + page.bytes()));
  std::fflush(stdout);
  suffixes.clear();
  return {};
}

Status run(const Arguments& a) {
  AKV_ASSIGN_OR_RETURN(const auto model, load_model(a.model, a.mapped));
  WorkerPool pool(a.threads);
  const Parallel parallel = parallel_view(pool);
  std::map<int64_t, State> states;
  for (const auto& [depth, sessions] : a.cases) {
    if (!states.contains(depth)) {
      AKV_ASSIGN_OR_RETURN(auto state, prefill_rounds(model, depth, a, parallel));
      states.emplace(depth, std::move(state));
    }
    if (a.state_mib > 0) {
      AKV_RETURN_IF_ERROR(fill_pool(model, states.at(depth), a, parallel));
    } else {
      AKV_RETURN_IF_ERROR(decode(model, states.at(depth), sessions, a, parallel));
    }
  }
  return {};
}

}  // namespace
}  // namespace akv::bench

int main(int argc, char** argv) {
  const auto arguments = akv::bench::parse(argc, argv);
  if (!arguments.ok()) {
    std::fprintf(stderr, "%s\n", arguments.error().message.c_str());
    return 2;
  }
  const akv::Status status = akv::bench::run(*arguments);
  if (!status.ok()) std::fprintf(stderr, "engine_bench: %s\n", status.error().message.c_str());
  return status.ok() ? 0 : 1;
}
