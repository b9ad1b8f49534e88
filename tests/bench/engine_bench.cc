// engine_bench: the prefill and decode engines in process, without HTTP or network: what they take,
// at which depth, for how many sessions. Real model, real codec, distinct state memory a session.
//
//   engine_bench --model M [--threads N] [--rounds R] [--steps K] DEPTH[xSESSIONS]...
//
// One JSON object a line: prefill and compression of DEPTH tokens (once a depth), and the best and
// median time of a decode step of SESSIONS rows behind it, over R rounds of K steps.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/worker_pool.h"
#include "common/device/host.h"
#include "common/kv/codec.h"
#include "common/model/wire.h"
#include "decode_node/engine/step.h"
#include "kernels/isa.h"
#include "prefill_node/engine/layer_stream.h"

namespace akv {
namespace {

struct Arguments {
  std::string model;
  int threads = cpu_count();
  int rounds = 5;
  int steps = 16;
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
  if (a.model.empty() || a.cases.empty() || a.threads < 1 || a.rounds < 1 || a.steps < 1) {
    return make_error(Code::kInvalidArgument,
                      "usage: engine_bench --model M [--threads N] [--rounds R] [--steps K] "
                      "DEPTH[xSESSIONS]...");
  }
  return a;
}

struct State {
  kv::StatePlan plan;
  kv::StateBuffer buffer;
};

// Prefills and compresses a prompt of made-up tokens, and prints what that took.
Result<State> prefill(const std::shared_ptr<const model::Model>& model, int64_t depth,
                      const Parallel& parallel) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < depth; ++i) ids.push_back(static_cast<int32_t>(i * 7919 % 40000 + 300));
  proto::CodecChoice choice;
  choice.theta = kv::auto_theta(depth);
  State state;
  AKV_ASSIGN_OR_RETURN(state.plan, model::plan_state(*model, depth, choice));
  AKV_ASSIGN_OR_RETURN(state.buffer, kv::StateBuffer::create(state.plan));
  const uint64_t checksum = kv::write_header(state.plan, model::state_identity(*model, ids),
                                             state.buffer.header(state.plan));
  prefill::LayerStream stream(model, {}, parallel);
  kv::Workspace workspace;
  double compress_ms = 0;
  const auto on_layer = [&](const prefill::LayerKv& layer) -> Status {
    const TimePoint start = SteadyClock::now();
    std::vector<bf16> q(static_cast<size_t>(32 * model->config().q_dim()));
    const auto rows = static_cast<size_t>(std::min<int64_t>(32, depth));
    for (size_t i = 0; i < rows * static_cast<size_t>(model->config().q_dim()); ++i) {
      q[i] = to_bf16(layer.q_window[i]);
    }
    const kv::LayerInput input{.layer = layer.layer,
                               .k_pre = layer.k_pre,
                               .v = layer.v,
                               .q_obs = q.data(),
                               .rope = &model->rope()};
    auto status =
        kv::compress_layer(input, state.plan, checksum,
                           state.buffer.record(state.plan, layer.layer), workspace, parallel);
    compress_ms += ms_since(start);
    return status;
  };
  const std::atomic<bool> cancelled{false};
  const TimePoint start = SteadyClock::now();
  AKV_ASSIGN_OR_RETURN(const auto prompt, stream.begin(ids));
  while (prompt->next_layer() < model->config().layers) {
    AKV_RETURN_IF_ERROR(stream.run_layer(*prompt, cancelled, on_layer));
  }
  const double total_ms = ms_since(start);
  std::printf(
      "{\"what\":\"prefill\",\"depth\":%ld,\"total_ms\":%.1f,\"compress_ms\":%.1f,"
      "\"tokens_per_s\":%.1f,\"state_bytes\":%lu,\"ratio\":%.3f,\"isa\":\"%s\"}\n",
      depth, total_ms, compress_ms, 1000.0 * static_cast<double>(depth) / total_ms,
      state.plan.total_bytes, state.plan.ratio(), isa_name(active_isa()));
  std::fflush(stdout);
  return state;
}

// Sessions with memory of their own: copies of one state.
Status decode(const std::shared_ptr<const model::Model>& model, const State& state, int sessions,
              const Arguments& a, const Parallel& parallel) {
  std::vector<kv::StateBuffer> buffers;
  std::vector<kv::StateView> views;
  for (int i = 0; i < sessions; ++i) {
    AKV_ASSIGN_OR_RETURN(auto buffer, kv::StateBuffer::create(state.plan));
    std::memcpy(buffer.bytes().data(), state.buffer.bytes().data(), buffer.size());
    buffers.push_back(std::move(buffer));
    views.push_back(kv::StateView::create(buffers.back().bytes(), state.plan));
  }
  decode::StepEngine engine(model, parallel);
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
        entries[i].prompt = &views[i];
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

Status run(const Arguments& a) {
  AKV_ASSIGN_OR_RETURN(const auto model, model::Model::load(a.model));
  WorkerPool pool(a.threads);
  const Parallel parallel = parallel_view(pool);
  std::map<int64_t, State> states;
  for (const auto& [depth, sessions] : a.cases) {
    if (!states.contains(depth)) {
      AKV_ASSIGN_OR_RETURN(auto state, prefill(model, depth, parallel));
      states.emplace(depth, std::move(state));
    }
    AKV_RETURN_IF_ERROR(decode(model, states.at(depth), sessions, a, parallel));
  }
  return {};
}

}  // namespace
}  // namespace akv

int main(int argc, char** argv) {
  const auto arguments = akv::parse(argc, argv);
  if (!arguments.ok()) {
    std::fprintf(stderr, "%s\n", arguments.error().message.c_str());
    return 2;
  }
  const akv::Status status = akv::run(*arguments);
  if (!status.ok()) std::fprintf(stderr, "engine_bench: %s\n", status.error().message.c_str());
  return status.ok() ? 0 : 1;
}
