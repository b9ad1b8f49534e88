// Memory figures of Llama-3.1-8B's shape, computed by the functions that the daemons allocate and
// admit by, so no device is needed: what a prompt of 128K tokens takes of a device while it is
// prefilled, against its full cache; and how many sessions of 64K tokens stay in 80 GB beside the
// model's weights, compressed and dense.
#include <string>

#include "common/kv/device_encoder.h"
#include "common/kv/plan.h"
#include "common/model/config.h"
#include "common/model/device_graph.h"
#include "decode_node/cache/byte_pool.h"
#include "decode_node/cache/suffix.h"
#include "tests/bench/cuda_bench.h"

namespace akv::bench {
namespace {

constexpr int64_t kChunkRows = 4096;  // the engine's default on a GPU
constexpr double kMiB = 1 << 20;
constexpr uint64_t kDeviceBytes = 80'000'000'000;
constexpr uint64_t kWeights = 8'030'261'248;  // parameters of Llama-3.1-8B
constexpr double kPageShare = 0.125;          // the decode daemon's, never given to states

model::ModelConfig llama() {
  model::ModelConfig config;
  config.layers = 32;
  config.d_model = 4096;
  config.d_ff = 14336;
  config.heads = 32;
  config.kv_heads = 8;
  config.head_dim = 128;
  config.vocab = 128256;
  return config;
}

kv::KvShape shape_of(const model::ModelConfig& c) {
  return {c.layers, c.heads, c.kv_heads, c.head_dim};
}

kv::StatePlan plan_of(int64_t tokens, kv::Codec codec) {
  kv::PlanRequest request;
  request.codec = codec;
  request.theta = kv::auto_theta(tokens);
  return *kv::plan_state(shape_of(llama()), tokens, request);
}

Figure computed(std::string config, std::string metric, double value, const char* unit) {
  Figure f;
  f.config = std::move(config);
  f.metric = std::move(metric);
  f.value = value;
  f.unit = unit;
  f.computed = true;
  return f;
}

// The device engine's memory (prefill_node/engine/device_engine.cc), by its parts.
void prefill_memory(const Report& report) {
  constexpr int64_t kTokens = 131072;
  const model::ModelConfig c = llama();
  const kv::StatePlan plan = plan_of(kTokens, kv::Codec::kAnchorKv);
  const auto mib = [](double bytes) { return bytes / kMiB; };
  const double s = kTokens;
  const double hidden = s * (c.d_model * 2 + 4);  // kernels/packed_rows.h
  const double layer_kv = 3 * s * c.kv_dim() * 2 + 2.0 * plan.options.window * c.q_dim();
  const auto codec = static_cast<double>(kv::DeviceEncoder::memory_bytes(plan));
  const double chunk =
      static_cast<double>(model::DevicePrefillGraph::scratch_bytes(c, kChunkRows)) +
      4.0 * kChunkRows * c.d_model + 2.0 * kChunkRows * c.q_dim() * 2 + 4.0 * c.vocab;
  const auto full = static_cast<double>(plan.dense_bytes);
  const std::string config = "prefill, " + in_k(kTokens);
  report.figure(computed(config, "full cache", mib(full), "MiB"));
  report.figure(computed(config, "hidden states", mib(hidden), "MiB"));
  report.figure(computed(config, "K and V of the layer at work", mib(layer_kv), "MiB"));
  report.figure(computed(config, "codec", mib(codec), "MiB"));
  report.figure(computed(config, "a chunk's scratch, the same for all prompts", mib(chunk), "MiB"));
  Figure peak = computed(config, "full cache over the prompt's peak",
                         full / (hidden + layer_kv + codec), "x smaller");
  peak.reach = 8;
  peak.aim = c.layers;
  peak.note = "hidden states included";
  report.figure(peak);
  report.figure(computed(config, "full cache over the peak of K, V and codec",
                         full / (layer_kv + codec), "x smaller"));
}

// Sessions that a pool admits, each with its state and the first page of its suffix.
int admitted(const kv::StatePlan& plan, uint64_t page_bytes, uint64_t capacity) {
  decode::BytePool pool(capacity, kPageShare);
  int sessions = 0;
  while (pool.reserve_session(plan.total_bytes, page_bytes)) ++sessions;
  return sessions;
}

void resident_sessions(const Report& report) {
  constexpr int64_t kTokens = 65536;
  const uint64_t page = decode::PageShape(llama()).bytes();
  const uint64_t capacity = kDeviceBytes - 2 * kWeights;
  const kv::StatePlan ours = plan_of(kTokens, kv::Codec::kAnchorKv);
  const kv::StatePlan dense = plan_of(kTokens, kv::Codec::kNone);
  const std::string config = "sessions of " + in_k(kTokens) + " in 80 GB beside bf16 weights";
  const int many = admitted(ours, page, capacity), few = admitted(dense, page, capacity);
  report.figure(computed(config, "compressed sessions", many, "sessions"));
  report.figure(computed(config, "dense sessions", few, "sessions"));
  report.figure(
      computed(config, "compressed over dense sessions", static_cast<double>(many) / few, "x"));
  Figure bytes = computed(config, "dense over compressed KV bytes", ours.ratio(), "x");
  bytes.reach = 20;
  report.figure(bytes);
}

int run() {
  Report report("cuda_memory");
  report.attempt("prefill", "peak memory", [&] { prefill_memory(report); });
  report.attempt("sessions", "admission", [&] { resident_sessions(report); });
  return report.status();
}

}  // namespace
}  // namespace akv::bench

int main() { return akv::bench::run(); }
