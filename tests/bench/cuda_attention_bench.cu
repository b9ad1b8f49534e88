// Times decode attention on a GPU: fused over compressed prompts against our own dense bf16 kernel,
// Llama-3.1-8B's shape (D 128, 8 KV heads, groups of 4), theta 0.05. A JSON line per case:
// microseconds per layer and step, bytes of state read, share of a device copy measured in the same
// run. Checks against the double oracle first. Layers are copies of one state, enough of them that
// none is in L2 when its turn comes again; a step is one CUDA graph, as in the engine.
//
// usage: cuda_attention_bench [max prompt tokens, default 131072]
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/decode_attention.h"
#include "tests/kernels/attention_case.h"

namespace akv {
namespace {

using kernels::CompressedHeadView;
using kernels::CompressedLayerView;
using kernels::DenseLayerView;
using kernels::cuda::DecodeAttentionArgs;
using kernels::cuda::DecodeAttentionConfig;
using kernels::cuda::DecodeAttentionLimits;
using kernels::cuda::DecodeAttentionRow;

constexpr int kHeads = 32, kKvHeads = 8, kDim = 128;
constexpr int kGraphLayers = 16;
constexpr int64_t kBeyondL2 = int64_t{256} << 20;  // bytes

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "cuda_attention_bench: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

template <class T>
T* device_copy(const T* values, size_t count) {
  T* p = nullptr;
  check(cudaMalloc(reinterpret_cast<void**>(&p), count * sizeof(T) + 64), "cudaMalloc");
  check(cudaMemcpy(p, values, count * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  return p;
}

// One layer's bytes as a record lays them out, and views into them that can be rebased.
class PackedLayer {
 public:
  explicit PackedLayer(const testing::CaseOptions& options) : case_(options) {
    const CompressedLayerView& layer = case_.view();
    for (int h = 0; h < layer.kv_heads; ++h) {
      heads_.push_back({side(layer, layer.heads[h].key), side(layer, layer.heads[h].value)});
    }
    for (CompressedHeadView& head : heads_) {  // offsets until now: bytes_ has stopped moving
      head.key = kernels::cuda::rebased(head.key, nullptr, bytes_.data() - kFirst);
      head.value = kernels::cuda::rebased(head.value, nullptr, bytes_.data() - kFirst);
    }
  }

  int64_t bytes() const { return static_cast<int64_t>(bytes_.size()); }
  const CompressedLayerView& host() const { return case_.view(); }

  // A copy on the device; never freed.
  CompressedLayerView upload() const {
    const unsigned char* base = device_copy(bytes_.data(), bytes_.size());
    std::vector<CompressedHeadView> heads;
    for (const CompressedHeadView& head : heads_) {
      heads.push_back({kernels::cuda::rebased(head.key, bytes_.data(), base),
                       kernels::cuda::rebased(head.value, bytes_.data(), base)});
    }
    CompressedLayerView view = case_.view();
    view.heads = device_copy(heads.data(), heads.size());
    view.signs = device_copy(case_.view().signs, kDim);
    return view;
  }

 private:
  static constexpr uintptr_t kFirst = 64;  // offsets count from here: none is null

  template <class T>
  const T* put(const T* values, size_t count) {
    if (values == nullptr) return nullptr;
    const size_t at = (bytes_.size() + 15) / 16 * 16;
    bytes_.resize(at + count * sizeof(T));
    std::memcpy(bytes_.data() + at, values, count * sizeof(T));
    return reinterpret_cast<const T*>(at + kFirst);
  }
  kernels::CompressedSideView side(const CompressedLayerView& layer,
                                   const kernels::CompressedSideView& from) {
    const auto tokens = static_cast<size_t>(layer.prefix), words = (tokens + 63) / 64;
    kernels::CompressedSideView to = from;
    to.slots8 = put(from.slots8, tokens);
    to.slots16 = put(from.slots16, tokens);
    to.gamma8 = put(from.gamma8, tokens);
    to.mask = put(from.mask, words);
    to.mask4 = put(from.mask4, words);
    to.prefix2 = put(from.prefix2, words);
    to.prefix4 = put(from.prefix4, words);
    to.codes2 = put(from.codes2, from.n2 * kDim / 4);
    to.codes4 = put(from.codes4, from.n4 * kDim / 2);
    to.scale2_bf16 = put(from.scale2_bf16, from.n2);
    to.scale4_bf16 = put(from.scale4_bf16, from.n4);
    to.anchors = put(from.anchors, static_cast<size_t>(layer.anchors) * kDim);
    return to;
  }

  testing::CompressedCase case_;
  std::vector<unsigned char> bytes_;
  std::vector<CompressedHeadView> heads_;
};

// The codec's shape at theta 0.05: k = S/128, residuals for what the budget leaves.
testing::CaseOptions options_of(int tokens) {
  testing::CaseOptions o;
  o.tokens = tokens;
  o.anchors = tokens / 128 > 48 ? tokens / 128 : 48;
  o.heads = kHeads;
  o.kv_heads = kKvHeads;
  o.head_dim = kDim;
  o.slots16 = o.anchors > 256;
  o.density2 = 0.16;
  o.density4 = 0.04;
  return o;
}

struct Device {
  cudaStream_t stream = nullptr;
  kernels::DeviceRope rope;
  kernels::RopeTable table;

  explicit Device(int64_t positions) : table(params(), positions + 256) {
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    std::vector<float> rows;
    for (int64_t p = 0; p < positions; ++p) {
      rows.insert(rows.end(), table.cos_row(p), table.cos_row(p) + 2 * table.half());
    }
    rope = {device_copy(rows.data(), rows.size()), table.half(), kDim, table.pairs(), positions};
  }
  static kernels::RopeParams params() {
    kernels::RopeParams p;
    p.head_dim = kDim;
    p.base = 500000.0;
    p.pairs = kernels::RopePairs::kInterleaved;
    return p;
  }
};

// A batch of equal rows, each with its own layers.
struct Workload {
  DecodeAttentionLimits limits;
  std::vector<DecodeAttentionRow> rows;
  int layers = 1;
  int64_t bytes = 0;  // of state that one layer of a step reads
};

// Seconds per layer: the median of several graphs.
double seconds_per_layer(const Device& device, const Workload& work, std::vector<float>* result) {
  const DecodeAttentionConfig config =
      kernels::cuda::decode_attention_config({kHeads, kKvHeads, kDim}, work.limits);
  std::vector<std::byte> plan(static_cast<size_t>(config.plan_bytes));
  kernels::cuda::build_decode_attention_plan(config, work.rows, plan.data());
  const size_t floats = work.rows.size() * kHeads * kDim;
  const std::vector<float> q =
      testing::random_queries(kHeads * static_cast<int>(work.rows.size()), kDim, 5);
  const std::vector<float> zero(floats);
  DecodeAttentionArgs args;
  args.plan = device_copy(plan.data(), plan.size());
  args.q = device_copy(q.data(), floats);
  args.out = device_copy(zero.data(), floats);
  args.rope = device.rope;
  check(cudaMalloc(reinterpret_cast<void**>(&args.scratch),
                   static_cast<size_t>(config.scratch_bytes)),
        "cudaMalloc");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t step = nullptr;
  check(cudaStreamBeginCapture(device.stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < kGraphLayers; ++i) {
    args.layer = i % work.layers;
    kernels::cuda::decode_attention(config, args, DeviceStream{device.stream});
  }
  check(cudaStreamEndCapture(device.stream, &graph), "capture");
  check(cudaGraphInstantiate(&step, graph, 0), "cudaGraphInstantiate");
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<float> times;
  for (int i = 0; i < 14; ++i) {
    cudaEventRecord(begin, device.stream);
    cudaGraphLaunch(step, device.stream);
    cudaEventRecord(end, device.stream);
    check(cudaEventSynchronize(end), "a step");
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, begin, end);
    if (i >= 3) times.push_back(milliseconds);
  }
  if (result != nullptr) {
    result->resize(floats);
    cudaMemcpy(result->data(), args.out, floats * sizeof(float), cudaMemcpyDeviceToHost);
  }
  cudaGraphExecDestroy(step);
  cudaGraphDestroy(graph);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaFree(args.scratch);
  cudaFree(args.out);
  std::nth_element(times.begin(), times.begin() + 5, times.end());
  return static_cast<double>(times[5]) * 1e-3 / kGraphLayers;
}

Workload compressed_work(const PackedLayer& layer, int batch) {
  Workload work;
  work.bytes = layer.bytes() * batch;
  work.layers = static_cast<int>(std::min<int64_t>(kGraphLayers, 1 + kBeyondL2 / work.bytes));
  work.limits.rows = batch;
  work.limits.prompt_tokens = layer.host().tokens;
  work.limits.anchors = layer.host().anchors;
  for (int r = 0; r < batch; ++r) {
    std::vector<CompressedLayerView> views;
    for (int i = 0; i < work.layers; ++i) views.push_back(layer.upload());
    DecodeAttentionRow row;
    row.prompt = device_copy(views.data(), views.size());
    row.prompt_tokens = layer.host().tokens;
    row.window = layer.host().window;
    row.anchors = layer.host().anchors;
    work.rows.push_back(row);
  }
  return work;
}

Workload dense_work(int tokens, int batch) {
  Workload work;
  const int64_t elements = int64_t{2} * tokens * kKvHeads * kDim;
  work.bytes = elements * 2 * batch;
  work.layers = static_cast<int>(std::min<int64_t>(4, 1 + kBeyondL2 / work.bytes));
  work.limits.rows = batch;
  work.limits.prompt_tokens = tokens;
  const testing::DenseCase block(256, kKvHeads, kDim, 3);
  const size_t block_bytes = size_t{256} * kKvHeads * kDim * sizeof(bf16);
  for (int r = 0; r < batch; ++r) {
    std::vector<DenseLayerView> views;
    for (int i = 0; i < work.layers; ++i) {
      char* rows = nullptr;
      check(cudaMalloc(reinterpret_cast<void**>(&rows), static_cast<size_t>(elements) * 2),
            "cudaMalloc");
      for (size_t at = 0; at < static_cast<size_t>(elements) * 2; at += block_bytes) {
        cudaMemcpy(rows + at, block.view().k, block_bytes, cudaMemcpyHostToDevice);
      }
      const auto* k = reinterpret_cast<const bf16*>(rows);
      views.push_back({tokens, kDim, kKvHeads, k, k + elements / 2});
    }
    DecodeAttentionRow row;
    row.dense_prompt = device_copy(views.data(), views.size());
    row.prompt_tokens = tokens;
    work.rows.push_back(row);
  }
  return work;
}

void verify(const Device& device) {
  const PackedLayer layer(options_of(4096));
  const Workload work = compressed_work(layer, 1);
  std::vector<float> got;
  seconds_per_layer(device, work, &got);
  std::vector<float> want(got.size());
  const std::vector<float> q = testing::random_queries(kHeads, kDim, 5);
  kernels::AttentionRow row;
  row.prompt = &layer.host();
  row.q = q.data();
  row.out = want.data();
  kernels::reference::decode_attention(row, kHeads, device.table);
  const double error = testing::relative_l2(got, want);
  std::printf("{\"check\": \"fused against the oracle\", \"relative_l2\": %.2e}\n", error);
  if (error > 2e-3) std::exit(1);
}

// Bytes a second of a device copy, both ways counted.
double copy_rate(const Device& device) {
  constexpr size_t kBytes = size_t{1} << 30;
  char *from = nullptr, *to = nullptr;
  check(cudaMalloc(reinterpret_cast<void**>(&from), kBytes), "cudaMalloc");
  check(cudaMalloc(reinterpret_cast<void**>(&to), kBytes), "cudaMalloc");
  cudaEvent_t begin = nullptr, end = nullptr;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  float best = 1e9f;
  for (int i = 0; i < 6; ++i) {
    cudaEventRecord(begin, device.stream);
    cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice, device.stream);
    cudaEventRecord(end, device.stream);
    check(cudaEventSynchronize(end), "a copy");
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, begin, end);
    best = std::min(best, milliseconds);
  }
  cudaFree(from);
  cudaFree(to);
  return 2.0 * kBytes / (static_cast<double>(best) * 1e-3);
}

void run_case(const Device& device, int tokens, int batch, double copy) {
  const PackedLayer layer(options_of(tokens));
  const Workload fused = compressed_work(layer, batch);
  const Workload dense = dense_work(tokens, batch);
  const double fused_s = seconds_per_layer(device, fused, nullptr);
  const double dense_s = seconds_per_layer(device, dense, nullptr);
  std::printf(
      "{\"figure\": \"decode_attention\", \"tokens\": %d, \"batch\": %d, \"fused_us\": %.2f, "
      "\"dense_us\": %.2f, \"ratio\": %.2f, \"fused_bytes\": %lld, \"fused_gb_s\": %.0f, "
      "\"dense_gb_s\": %.0f, \"copy_gb_s\": %.0f, \"fused_share\": %.3f, \"dense_share\": %.3f}\n",
      tokens, batch, fused_s * 1e6, dense_s * 1e6, dense_s / fused_s,
      static_cast<long long>(fused.bytes), static_cast<double>(fused.bytes) / fused_s * 1e-9,
      static_cast<double>(dense.bytes) / dense_s * 1e-9, copy * 1e-9,
      static_cast<double>(fused.bytes) / fused_s / copy,
      static_cast<double>(dense.bytes) / dense_s / copy);
  std::fflush(stdout);
}

int run(int max_tokens) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("cuda_attention_bench: no device: %s\n", cudaGetErrorString(cudaGetLastError()));
    return 0;
  }
  const Device device(max_tokens);
  verify(device);
  const double copy = copy_rate(device);
  for (const int tokens : {32768, 65536, 131072}) {
    for (const int batch : {1, 8}) {
      if (tokens <= max_tokens) run_case(device, tokens, batch, copy);
    }
  }
  return 0;
}

}  // namespace
}  // namespace akv

int main(int argc, char** argv) { return akv::run(argc > 1 ? std::atoi(argv[1]) : 131072); }
