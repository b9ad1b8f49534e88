#include "tests/bench/bench_state.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "common/base/clock.h"
#include "common/kv/codec.h"
#include "common/model/gguf.h"
#include "common/model/wire.h"
#include "prefill_node/engine/layer_stream.h"

namespace akv::bench {
namespace {

std::vector<int32_t> made_up_ids(int64_t depth) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < depth; ++i) ids.push_back(static_cast<int32_t>(i * 7919 % 40000 + 300));
  return ids;
}

Result<State> empty_state(const model::Model& model, int64_t depth) {
  proto::CodecChoice choice;
  choice.theta = kv::auto_theta(depth);
  State state;
  AKV_ASSIGN_OR_RETURN(state.plan, model::plan_state(model, depth, choice));
  AKV_ASSIGN_OR_RETURN(state.buffer, kv::StateBuffer::create(state.plan));
  return state;
}

// Noisy copies of 64 centres, so that projections are neither exact nor lost.
std::vector<bf16> clustered_rows(int64_t tokens, int row, std::minstd_rand& random) {
  std::normal_distribution<float> normal;
  std::vector<float> centres(64 * static_cast<size_t>(row)), noise(8192);
  for (float& x : centres) x = normal(random);
  for (float& x : noise) x = 0.5f * normal(random);
  std::vector<bf16> out;
  out.reserve(static_cast<size_t>(tokens * row));
  for (int64_t t = 0; t < tokens; ++t) {
    const float* centre = centres.data() + static_cast<size_t>(random() % 64) * row;
    const size_t first = random();
    for (int i = 0; i < row; ++i) {
      out.push_back(to_bf16(centre[i] + noise[(first + static_cast<size_t>(i)) % noise.size()]));
    }
  }
  return out;
}

}  // namespace

Result<std::shared_ptr<const model::Model>> load_model(const std::string& path, bool mapped) {
  AKV_ASSIGN_OR_RETURN(auto model, model::Model::load(path));
  const std::atomic<bool> stop{mapped};
  const auto moved = model->file().map().move_to_huge_pages(stop);
  if (!moved.ok()) std::fprintf(stderr, "weights stay mapped: %s\n", moved.error().message.c_str());
  return model;
}

Result<State> prefill(const std::shared_ptr<const model::Model>& model, int64_t depth,
                      const Parallel& parallel) {
  const std::vector<int32_t> ids = made_up_ids(depth);
  AKV_ASSIGN_OR_RETURN(State state, empty_state(*model, depth));
  const uint64_t checksum = kv::write_header(state.plan, model::state_identity(*model, ids),
                                             state.buffer.header(state.plan));
  prefill::LayerStream stream(model, {}, parallel);
  kv::Workspace workspace;
  const size_t q_count =
      static_cast<size_t>(std::min<int64_t>(32, depth)) * model->config().q_dim();
  const auto on_layer = [&](const prefill::LayerKv& layer) -> Status {
    const TimePoint start = SteadyClock::now();
    std::vector<bf16> q(q_count);
    for (size_t i = 0; i < q_count; ++i) q[i] = to_bf16(layer.q_window[i]);
    const kv::LayerInput input{.layer = layer.layer,
                               .k_pre = layer.k_pre,
                               .v = layer.v,
                               .q_obs = q.data(),
                               .rope = &model->rope()};
    auto status =
        kv::compress_layer(input, state.plan, checksum,
                           state.buffer.record(state.plan, layer.layer), workspace, parallel);
    state.compress_ms += ms_since(start);
    return status;
  };
  const std::atomic<bool> cancelled{false};
  const TimePoint start = SteadyClock::now();
  AKV_ASSIGN_OR_RETURN(const auto prompt, stream.begin(ids));
  while (prompt->next_layer() < model->config().layers) {
    AKV_RETURN_IF_ERROR(stream.run_layer(*prompt, cancelled, on_layer));
  }
  state.total_ms = ms_since(start);
  const TimePoint head = SteadyClock::now();
  std::vector<float> logits(static_cast<size_t>(model->config().vocab));
  stream.last_logits(*prompt, logits.data());
  state.logits_ms = ms_since(head);
  return state;
}

Result<State> synthetic(const model::Model& model, int64_t depth, const Parallel& parallel) {
  AKV_ASSIGN_OR_RETURN(State state, empty_state(model, depth));
  const auto& config = model.config();
  const uint64_t checksum = kv::write_header(state.plan, model::state_identity(model, {}),
                                             state.buffer.header(state.plan));
  std::minstd_rand random(1);
  const auto k = clustered_rows(depth, config.kv_dim(), random);
  const auto v = clustered_rows(depth, config.kv_dim(), random);
  const auto q = clustered_rows(state.plan.options.window, config.q_dim(), random);
  const kernels::RopeTable rope(model.rope().params(), depth + 1);
  kv::Workspace workspace;
  const kv::LayerInput input{
      .layer = 0, .k_pre = k.data(), .v = v.data(), .q_obs = q.data(), .rope = &rope};
  const TimePoint start = SteadyClock::now();
  const auto first = state.buffer.record(state.plan, 0);
  AKV_RETURN_IF_ERROR(kv::compress_layer(input, state.plan, checksum, first, workspace, parallel));
  state.compress_ms = ms_since(start) * config.layers;
  for (int layer = 1; layer < config.layers; ++layer) {
    const auto record = state.buffer.record(state.plan, layer);
    std::memcpy(record.data(), first.data(), std::min(record.size(), first.size()));
  }
  return state;
}

Result<kv::StateBuffer> copy_of(const State& state) {
  AKV_ASSIGN_OR_RETURN(auto buffer, kv::StateBuffer::create(state.plan));
  std::memcpy(buffer.bytes().data(), state.buffer.bytes().data(), buffer.size());
  return buffer;
}

}  // namespace akv::bench
