// Times the compression pass on a GPU, Llama-3.1-8B's shape (D 128, 8 KV heads, groups of 4, 32
// layers), theta 0.05, profile pooled. A JSON line per prompt length: milliseconds of all layers,
// with and without the record's copy to the host, the bytes and tensor-core multiply-adds that they
// are made of (kernels/cuda/README.md), and the scratch. Compares a smaller layer with the CPU's
// record first.
//
// usage: cuda_codec_bench [max prompt tokens, default 131072]
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "common/kv/device_encoder.h"
#include "common/kv/state.h"
#include "tests/kv/device_record.h"
#include "tests/kv/reference_case.h"

namespace akv::kv {
namespace {

constexpr KvShape kShape{32, 32, 8, 128};
constexpr int kTimedLayers = 16;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "cuda_codec_bench: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

void fail(const std::string& message) {
  std::fprintf(stderr, "cuda_codec_bench: %s\n", message.c_str());
  std::exit(1);
}

__device__ float noise(uint64_t i) {
  uint64_t z = i * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z ^= z >> 27;
  float sum = 0.0f;
  for (int part = 0; part < 4; ++part) sum += static_cast<float>((z >> (16 * part)) & 0xffff);
  return (sum / 65536.0f - 2.0f) * 1.7f;
}

// Rows [rows][row]: noisy copies of 200 centres.
__global__ void fill_kernel(bf16* out, int64_t n, int row, uint64_t seed) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const uint64_t centre = static_cast<uint64_t>(i / row) * 2654435761u % 200;
  const float x = noise(seed + centre * row + i % row) + 0.5f * noise(seed + 7000000 + i);
  out[i].bits = static_cast<uint16_t>(__float_as_uint(x) >> 16);
}

template <class T>
T* allocate(size_t count) {
  void* p = nullptr;
  check(cudaMalloc(&p, count * sizeof(T)), "cudaMalloc");
  return static_cast<T*>(p);
}

bf16* random_rows(int64_t rows, int row, uint64_t seed) {
  const int64_t n = rows * row;
  bf16* p = allocate<bf16>(static_cast<size_t>(n));
  fill_kernel<<<static_cast<unsigned>((n + 255) / 256), 256>>>(p, n, row, seed);
  return p;
}

kernels::DeviceRope upload_rope(int64_t tokens) {
  kernels::RopeParams params;
  params.head_dim = kShape.head_dim;
  params.base = 500000;
  const kernels::RopeTable table(params, tokens);
  const size_t row = 2 * static_cast<size_t>(table.half());
  std::vector<float> rows(row * static_cast<size_t>(tokens));
  for (int64_t t = 0; t < tokens; ++t) {
    std::copy_n(table.cos_row(t), row, rows.data() + static_cast<size_t>(t) * row);
  }
  float* device = allocate<float>(rows.size());
  check(cudaMemcpy(device, rows.data(), rows.size() * sizeof(float), cudaMemcpyHostToDevice),
        "copy of the angles");
  return {device, table.half(), table.head_dim(), table.pairs(), tokens};
}

// The same record as the CPU's, but for the ties that float sums decide.
void check_against_cpu() {
  testing::CaseSpec spec;
  spec.tokens = 1100;
  spec.kv_heads = 2;
  spec.head_dim = kShape.head_dim;
  spec.group = kShape.group();
  const testing::GoldenCase c = testing::make_inputs(spec);
  const StatePlan plan = testing::plan_of(c, pooled_options(), 0.15);
  testing::DeviceRecord device = testing::encode_on_device(c, plan);
  if (!device.status.ok()) fail(device.status.error().message);
  if (!device.error.empty()) fail(device.error);
  const testing::RecordTies ties = testing::compare_records(c, plan, device);
  std::fprintf(stderr, "against the CPU: %s\n", ties.text().c_str());
  const int64_t limit = 4 + ties.residuals / 100;
  if (!ties.sections_equal || ties.width_distance > 1e-4 || ties.slot_distance > 1e-6 ||
      ties.codes > limit || ties.scales > limit) {
    fail("the device's record differs from the CPU's by more than float ties");
  }
}

// Milliseconds of one layer, the best of several runs of kTimedLayers.
double time_layers(const DeviceEncoder& encoder, const DeviceLayerInput& input,
                   std::span<std::byte> host, cudaStream_t stream) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  double best = 1e30;
  for (int round = 0; round < 4; ++round) {
    check(cudaEventRecord(begin, stream), "event");
    for (int i = 0; i < kTimedLayers; ++i) {
      const Status status = encoder.encode(input, host, DeviceStream{stream});
      if (!status.ok()) fail(status.error().message);
    }
    check(cudaEventRecord(end, stream), "event");
    check(cudaEventSynchronize(end), "compression");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "event");
    // The first round is the warm-up.
    if (round > 0 && ms / kTimedLayers < best) best = static_cast<double>(ms) / kTimedLayers;
  }
  check(cudaEventDestroy(begin), "event");
  check(cudaEventDestroy(end), "event");
  return best;
}

// HBM bytes and tensor-core multiply-adds of one layer: the table of kernels/cuda/README.md.
struct Work {
  double bytes, multiply_adds;
};
Work work_of(const StatePlan& plan) {
  const double d = kShape.head_dim, lanes = plan.options.window * kShape.group();
  const double tokens = static_cast<double>(plan.tokens) * kShape.kv_heads;
  const double anchors = (plan.layer.k + 63) / 64 * 64;
  const double bytes = tokens * (18 * lanes + 10 * d + 150) + 4 * d * tokens / kShape.kv_heads;
  return {bytes, tokens * d * (9 * lanes + 2 * anchors)};
}

void run(int64_t tokens) {
  PlanRequest request;
  const StatePlan plan = *plan_state(kShape, tokens, request);
  const int row = kShape.kv_heads * kShape.head_dim;
  DeviceLayerInput input;
  bf16* k = random_rows(tokens, row, 1);
  bf16* v = random_rows(tokens, row, 2);
  bf16* q = random_rows(plan.options.window, kShape.heads * kShape.head_dim, 3);
  input.layer = 5;
  input.k_pre = k;
  input.v = v;
  input.q_obs = q;
  input.rope = upload_rope(tokens);
  const uint64_t scratch = DeviceEncoder::memory_bytes(plan);
  std::byte* memory = allocate<std::byte>(scratch);
  void* pinned = nullptr;
  check(cudaMallocHost(&pinned, plan.record_bytes[5]), "cudaMallocHost");
  const std::span<std::byte> host(static_cast<std::byte*>(pinned), plan.record_bytes[5]);
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "stream");
  const DeviceEncoder encoder(plan, 7, memory);
  const double alone = time_layers(encoder, input, {}, stream);
  const double copied = time_layers(encoder, input, host, stream);
  const Status sealed = encoder.finish(5, host);
  if (!sealed.ok()) fail(sealed.error().message);
  const Status valid = verify_record(host, 5, plan, 7);
  if (!valid.ok()) fail(valid.error().message);
  const Work work = work_of(plan);
  std::printf(
      "{\"figure\": \"cuda_compression\", \"tokens\": %lld, \"layers\": %d, \"ms\": %.3f, "
      "\"ms_with_copy\": %.3f, \"gb_per_s\": %.0f, \"tflop_per_s\": %.1f, "
      "\"scratch_mib\": %.1f, \"record_bytes\": %llu}\n",
      static_cast<long long>(tokens), kShape.layers, alone * kShape.layers, copied * kShape.layers,
      work.bytes / alone / 1e6, 2 * work.multiply_adds / alone / 1e9,
      static_cast<double>(scratch) / (1 << 20),
      static_cast<unsigned long long>(plan.record_bytes[5]));
  for (void* p :
       {static_cast<void*>(k), static_cast<void*>(v), static_cast<void*>(q),
        static_cast<void*>(memory), const_cast<void*>(static_cast<const void*>(input.rope.rows))}) {
    check(cudaFree(p), "cudaFree");
  }
  check(cudaFreeHost(pinned), "cudaFreeHost");
  check(cudaStreamDestroy(stream), "stream");
}

}  // namespace
}  // namespace akv::kv

int main(int argc, char** argv) {
  const int64_t most = argc > 1 ? std::atoll(argv[1]) : 131072;
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess) {
    std::printf("{\"figure\": \"cuda_compression\", \"skipped\": \"%s\"}\n",
                cudaGetErrorString(error));
    return 0;
  }
  akv::kv::check_against_cpu();
  for (const int64_t tokens : {8192, 32768, 65536, 131072}) {
    if (tokens <= most) akv::kv::run(tokens);
  }
  return 0;
}
