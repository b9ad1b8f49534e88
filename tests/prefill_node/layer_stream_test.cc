#include "prefill_node/engine/layer_stream.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "common/base/worker_pool.h"
#include "common/kv/codec.h"
#include "common/model/wire.h"
#include "prefill_node/engine/cpu_engine.h"

namespace akv::prefill {
namespace {

std::shared_ptr<const model::Model> small_model() {
  if (!std::filesystem::exists(AKV_MODEL_PATH)) return nullptr;
  auto model = model::Model::load(AKV_MODEL_PATH);
  EXPECT_TRUE(model.ok());
  return model.ok() ? *model : nullptr;
}

std::vector<int32_t> some_ids(int64_t count) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(1000 + i * 7919 % 30000));
  return ids;
}

// What a run leaves behind: logits, and each layer's K/V and window queries.
struct Trace {
  std::vector<float> logits;
  std::map<int, std::vector<uint16_t>> k;
  std::map<int, std::vector<float>> q_window;
  uint64_t peak_dense_bytes = 0;
};

Trace run(const std::shared_ptr<const model::Model>& model, int64_t tokens, int64_t chunk_rows) {
  WorkerPool pool(2);
  LayerStream stream(model, StreamOptions{.chunk_rows = chunk_rows, .f32 = true},
                     parallel_view(pool));
  auto prompt = stream.begin(some_ids(tokens));
  EXPECT_TRUE(prompt.ok());
  const std::atomic<bool> cancelled{false};
  const auto& config = model->config();
  Trace trace;
  const auto on_layer = [&](const LayerKv& layer) -> Status {
    trace.peak_dense_bytes = std::max(trace.peak_dense_bytes, stream.dense_kv_bytes());
    auto& k = trace.k[layer.layer];
    for (int64_t i = 0; i < tokens * config.kv_dim(); ++i) k.push_back(layer.k_pre[i].bits);
    trace.q_window[layer.layer].assign(layer.q_window, layer.q_window + 32 * config.q_dim());
    return {};
  };
  while ((*prompt)->next_layer() < config.layers) {
    EXPECT_TRUE(stream.run_layer(**prompt, cancelled, on_layer).ok());
  }
  EXPECT_EQ(stream.dense_kv_bytes(), 0u);
  trace.logits.resize(static_cast<size_t>(config.vocab));
  stream.last_logits(**prompt, trace.logits.data());
  return trace;
}

// The window of 32 ends at token 150: with chunks of 64 it lies in the last two (128 .. 150 and
// before), with chunks of 140 the border is inside it.
TEST(LayerStream, ChunkBordersAnywhereChangeNothing) {
  const auto model = small_model();
  if (!model) GTEST_SKIP() << "the model is not fetched";
  const Trace whole = run(model, 150, 512);
  for (const int64_t chunk : {64, 140}) {
    const Trace parts = run(model, 150, chunk);
    EXPECT_EQ(parts.logits, whole.logits) << chunk;
    EXPECT_EQ(parts.k, whole.k) << chunk;
    EXPECT_EQ(parts.q_window, whole.q_window) << chunk;
  }
}

TEST(LayerStream, OneLayerOfDenseKvIsAlive) {
  const auto model = small_model();
  if (!model) GTEST_SKIP() << "the model is not fetched";
  const Trace trace = run(model, 100, 64);
  EXPECT_EQ(trace.peak_dense_bytes, 4u * 100 * 3 * 64);
  EXPECT_EQ(trace.k.size(), 30u);
}

TEST(LayerStream, RefusesWhatDoesNotFitAndStopsWhenCancelled) {
  const auto model = small_model();
  if (!model) GTEST_SKIP() << "the model is not fetched";
  LayerStream stream(model, StreamOptions{.chunk_rows = 64}, serial());
  EXPECT_EQ(stream.begin({}).error().code, Code::kInvalidArgument);
  EXPECT_EQ(stream.begin(some_ids(model->config().context_length + 1)).error().code,
            Code::kContextLength);
  const std::vector<int32_t> outside{1, model->config().vocab};
  EXPECT_EQ(stream.begin(outside).error().code, Code::kInvalidArgument);
  auto prompt = stream.begin(some_ids(80));
  const std::atomic<bool> cancelled{true};
  const auto never = [](const LayerKv&) -> Status {
    ADD_FAILURE() << "a cancelled layer was handed over";
    return {};
  };
  EXPECT_EQ(stream.run_layer(**prompt, cancelled, never).error().code, Code::kCancelled);
  EXPECT_EQ(stream.dense_kv_bytes(), 0u);
}

// The plan says how many queries the codec observes, not the engine: each record is that of the
// same layer compressed with the plan's own window.
TEST(CpuPromptEngine, ObservesThePlansWindow) {
  const auto model = small_model();
  if (!model) GTEST_SKIP() << "the model is not fetched";
  const auto ids = some_ids(200);
  for (const char* window : {"16", "48"}) {
    proto::CodecChoice choice;
    choice.theta = 0.5;
    choice.min_compress_tokens = 0;
    choice.options = {{"window", window}};
    const auto plan = *model::plan_state(*model, 200, choice);
    ASSERT_EQ(plan.codec, kv::Codec::kAnchorKv);
    CpuPromptEngine engine(model, StreamOptions{.chunk_rows = 64}, 2);
    LayerStream stream(model, StreamOptions{.chunk_rows = 64}, serial());
    auto prompt = *engine.begin(ids, plan.options.window);
    auto same = *stream.begin(ids, plan.options.window);
    const std::atomic<bool> cancelled{false};
    std::vector<std::byte> record(plan.record_bytes[0]), expected(plan.record_bytes[0]);
    LayerOrder order;
    order.record.plan = &plan;
    order.record.state_checksum = 7;
    order.record.bytes = record;
    bool done = false;
    order.record.done = [&](const Result<FinishedRecord>& finished) { done = finished.ok(); };
    ASSERT_TRUE(engine.run_layer(*prompt, cancelled, order).ok());
    EXPECT_TRUE(done);
    const auto on_layer = [&](const LayerKv& layer) -> Status {
      std::vector<bf16> q;
      const auto values = static_cast<size_t>(plan.options.window * model->config().q_dim());
      for (size_t i = 0; i < values; ++i) q.push_back(to_bf16(layer.q_window[i]));
      kv::LayerInput input{.layer = 0, .k_pre = layer.k_pre, .v = layer.v, .q_obs = q.data()};
      input.rope = &model->rope();
      kv::Workspace workspace;
      return kv::compress_layer(input, plan, 7, expected, workspace, serial());
    };
    ASSERT_TRUE(stream.run_layer(*same, cancelled, on_layer).ok());
    EXPECT_EQ(record, expected) << window;
  }
}

}  // namespace
}  // namespace akv::prefill
