// Times the compression pass on a GPU against the prefill of the same prompt, Llama-3.1-8B's shape
// (D 128, 8 KV heads, groups of 4, 32 layers), theta 0.05, profile pooled. One layer of each is
// measured and counts 32 times: of prefill the attention of the whole prompt in chunks of 2,048
// rows and the seven products of a chunk; norms, RoPE and the expansion of weights are left out,
// which makes the share larger than it is. A smaller layer is compared with the CPU's record first.
//
// usage: cuda_codec_bench [max prompt tokens, default 131072]
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/kv/device_encoder.h"
#include "common/kv/state.h"
#include "kernels/cuda/launch.h"
#include "kernels/flash_prefill.h"
#include "kernels/gemm.h"
#include "tests/bench/cuda_bench.h"
#include "tests/kv/device_record.h"
#include "tests/kv/reference_case.h"

namespace akv::bench {
namespace {

constexpr kv::KvShape kShape{32, 32, 8, 128};
constexpr int kModel = 4096, kInner = 14336;
constexpr int64_t kChunkRows = 4096;  // the engine's default on a GPU

// Toy lengths are for the CPU shim: fewer calls, and products of a 64th of the model's widths.
struct Scale {
  explicit Scale(int64_t most)
      : layers(most >= 8192 ? 8 : 1), rounds(most >= 8192 ? 5 : 1), shrink(most >= 8192 ? 1 : 64) {}
  int layers, rounds, shrink;
};

void expect(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.error().message);
}

// Rows as prompts have them: noisy copies of 200 centres.
__global__ void clustered_kernel(bf16* out, const bf16* centres, const bf16* noise, int64_t n,
                                 int row) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const auto centre = static_cast<int64_t>(static_cast<uint64_t>(i / row) * 2654435761u % 200);
  const float x =
      __uint_as_float(static_cast<uint32_t>(centres[centre * row + i % row].bits) << 16);
  const float y = __uint_as_float(static_cast<uint32_t>(noise[i].bits) << 16);
  out[i].bits = static_cast<uint16_t>(__float_as_uint(x + 0.5f * y) >> 16);
}

bf16* clustered_rows(DeviceMemory& memory, int64_t rows, int row, uint64_t seed) {
  const int64_t n = rows * row;
  DeviceMemory scratch;
  bf16* centres = scratch.allocate<bf16>(size_t{200} * static_cast<size_t>(row));
  bf16* noise = scratch.allocate<bf16>(static_cast<size_t>(n));
  fill_random(centres, int64_t{200} * row, seed);
  fill_random(noise, n, seed + 1000);
  bf16* out = memory.allocate<bf16>(static_cast<size_t>(n));
  AKV_LAUNCH(clustered_kernel, static_cast<unsigned>((n + 255) / 256), 256, 0, DeviceStream{}, out,
             centres, noise, n, row);
  check(cudaGetLastError(), "random rows");
  check(cudaDeviceSynchronize(), "random rows");
  return out;
}

kernels::DeviceRope upload_rope(DeviceMemory& memory, int64_t tokens) {
  kernels::RopeParams params;
  params.head_dim = kShape.head_dim;
  params.base = 500000;
  const kernels::RopeTable table(params, tokens);
  const size_t row = 2 * static_cast<size_t>(table.half());
  std::vector<float> rows(row * static_cast<size_t>(tokens));
  for (int64_t t = 0; t < tokens; ++t) {
    std::copy_n(table.cos_row(t), row, rows.data() + static_cast<size_t>(t) * row);
  }
  return {memory.upload(rows.data(), rows.size()), table.half(), table.head_dim(), table.pairs(),
          tokens};
}

// The same record as the CPU's, but for the ties that float sums decide.
void check_against_cpu() {
  kv::testing::CaseSpec spec;
  spec.tokens = 1100;
  spec.kv_heads = 2;
  spec.head_dim = kShape.head_dim;
  spec.group = kShape.group();
  const kv::testing::GoldenCase c = kv::testing::make_inputs(spec);
  const kv::StatePlan plan = kv::testing::plan_of(c, kv::pooled_options(), 0.15);
  kv::testing::DeviceRecord device = kv::testing::encode_on_device(c, plan);
  expect(device.status);
  if (!device.error.empty()) throw std::runtime_error(device.error);
  const kv::testing::RecordTies ties = kv::testing::compare_records(c, plan, device);
  std::fprintf(stderr, "against the CPU: %s\n", ties.text().c_str());
  const int64_t limit = 4 + ties.residuals / 100;
  if (!ties.sections_equal || ties.width_distance > 1e-4 || ties.slot_distance > 1e-6 ||
      ties.codes > limit || ties.scales > limit) {
    throw std::runtime_error("the device's record differs from the CPU's by more than float ties");
  }
}

// HBM bytes and tensor-core multiply-adds of a layer's compression: the table of
// kernels/cuda/README.md.
struct Work {
  double bytes, multiply_adds;
  double roof_seconds(const Roofs& roofs) const {
    return std::max(bytes / roofs.hbm_bytes_per_s, 2 * multiply_adds / roofs.bf16_flop_per_s);
  }
};
Work work_of(const kv::StatePlan& plan) {
  const double d = kShape.head_dim, lanes = plan.options.window * kShape.group();
  const double tokens = static_cast<double>(plan.tokens) * kShape.kv_heads;
  const double anchors = (plan.layer.k + 63) / 64 * 64;
  const double bytes = tokens * (18 * lanes + 10 * d + 150) + 4 * d * tokens / kShape.kv_heads;
  return {bytes, tokens * d * (9 * lanes + 2 * anchors)};
}

// Pinned host memory of a record.
class Pinned {
 public:
  explicit Pinned(size_t bytes) : bytes_(bytes) {
    check(cudaMallocHost(&data_, bytes), "pinned memory");
  }
  ~Pinned() { (void)cudaFreeHost(data_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  std::span<std::byte> span() const { return {static_cast<std::byte*>(data_), bytes_}; }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

// A layer of a prompt of a length: its compression and its prefill.
class Layer {
 public:
  Layer(int64_t tokens, const Scale& scale, cudaStream_t stream)
      : scale_(scale),
        tokens_(tokens),
        stream_(stream),
        plan_(*kv::plan_state(kShape, tokens, {})),
        k_(clustered_rows(memory_, tokens, kKvRow, 1)),
        v_(clustered_rows(memory_, tokens, kKvRow, 2)),
        chunk_rows_(std::min(kChunkRows, tokens)),
        q_(clustered_rows(memory_, chunk_rows_, kShape.heads * kShape.head_dim, 3)) {}

  const kv::StatePlan& plan() const { return plan_; }

  // Seconds; with the record's copy to the host where `copied`.
  double compress(bool copied) {
    DeviceMemory memory;
    kv::DeviceLayerInput input;
    input.layer = 5;
    input.k_pre = k_;
    input.v = v_;
    input.q_obs = q_;
    input.rope = upload_rope(memory, tokens_);
    std::byte* scratch =
        memory.allocate<std::byte>(static_cast<size_t>(kv::DeviceEncoder::memory_bytes(plan_)));
    const Pinned host(plan_.record_bytes[5]);
    const kv::DeviceEncoder encoder(plan_, 7, scratch);
    const double seconds = seconds_per_call(stream_, scale_.layers, scale_.rounds, [&](int) {
      expect(encoder.encode(input, copied ? host.span() : std::span<std::byte>{},
                            DeviceStream{stream_}));
    });
    if (copied) {
      expect(encoder.finish(5, host.span()));
      expect(kv::verify_record(host.span(), 5, plan_, 7));
    }
    return seconds;
  }

  double attend() {
    DeviceMemory memory;
    kernels::cuda::FlashPrefillParams params;
    params.q = q_;
    params.k = k_;
    params.v = v_;
    params.out_bf16 =
        memory.allocate<bf16>(static_cast<size_t>(chunk_rows_ * kShape.heads * kShape.head_dim));
    params.q_heads = kShape.heads;
    params.kv_heads = kShape.kv_heads;
    params.head_dim = kShape.head_dim;
    params.rows = chunk_rows_;
    const auto chunks = static_cast<int>(tokens_ / chunk_rows_);
    const double per_chunk = seconds_per_call(stream_, chunks, 3, [&](int chunk) {
      params.pos0 = chunk * chunk_rows_;
      kernels::cuda::flash_prefill(params, DeviceStream{stream_});
    });
    return per_chunk * chunks;
  }

 private:
  static constexpr int kKvRow = kShape.kv_heads * kShape.head_dim;
  DeviceMemory memory_;
  Scale scale_;
  int64_t tokens_;
  cudaStream_t stream_;
  kv::StatePlan plan_;
  bf16 *k_, *v_;
  int64_t chunk_rows_;
  bf16* q_;
};

// Seconds of a layer's seven products for a chunk of rows.
double products_of_chunk(const Scale& scale, cudaStream_t stream, std::string& description) {
  struct Product {
    int64_t n, k;
  };
  constexpr Product kProducts[] = {{kModel, kModel}, {1024, kModel},   {1024, kModel},
                                   {kModel, kModel}, {kInner, kModel}, {kInner, kModel},
                                   {kModel, kInner}};
  const int64_t rows = kChunkRows / scale.shrink;
  DeviceMemory memory;
  bf16* x = memory.allocate<bf16>(static_cast<size_t>(rows * kInner));
  bf16* w = memory.allocate<bf16>(static_cast<size_t>(kInner) * kModel / scale.shrink);
  fill_random(x, rows * kInner, 4);
  fill_random(w, int64_t{kInner} * kModel / scale.shrink, 5);
  float* y = memory.allocate<float>(static_cast<size_t>(rows * kInner));
  constexpr size_t kWorkspace = kernels::cuda::Gemm::kWorkspaceBytes;
  kernels::cuda::Gemm gemm(memory.allocate<std::byte>(kWorkspace), kWorkspace);
  description = gemm.description();
  return seconds_per_call(stream, 1, scale.rounds, [&](int) {
    for (const Product& p : kProducts) {
      gemm.run(x, rows, w, p.n / scale.shrink, p.k / scale.shrink, y, false, DeviceStream{stream});
    }
  });
}

void run_case(int64_t tokens, double chunk_seconds, const Scale& scale, const Roofs& roofs,
              cudaStream_t stream, Report& report) {
  const std::string config = in_k(tokens);
  Layer layer(tokens, scale, stream);
  const Work work = work_of(layer.plan());
  const auto milliseconds = [&](const char* metric, double seconds, double roof) {
    report.figure({.config = config,
                   .metric = metric,
                   .value = seconds * 1e3 * kShape.layers,
                   .unit = "ms",
                   .roof_share = roof / seconds,
                   .note = "one layer times 32"});
  };
  const double alone = layer.compress(false);
  milliseconds("compression", alone, work.roof_seconds(roofs));
  report.attempt(config, "compression with the record's copy", [&] {
    milliseconds("compression with the record's copy", layer.compress(true),
                 work.roof_seconds(roofs));
  });
  const double attention = layer.attend();
  const auto s = static_cast<double>(tokens);
  const double attention_flop = 2 * s * s * kShape.heads * kShape.head_dim;
  milliseconds("prefill attention", attention, attention_flop / roofs.bf16_flop_per_s);
  const double products = chunk_seconds * s / kChunkRows;
  const double product_flop =
      2 * s * (2.0 * kModel * kModel + 2.0 * 1024 * kModel + 3.0 * kInner * kModel);
  milliseconds("prefill products", products, product_flop / roofs.bf16_flop_per_s);
  report.figure({.config = config,
                 .metric = "compression over prefill of the same prompt",
                 .value = alone / (attention + products),
                 .unit = "share",
                 .roof_share = work.roof_seconds(roofs) / alone,
                 .reach = 0.05,
                 .aim = 0.02,
                 .lower_is_better = true,
                 .note = "prefill: attention and products alone"});
}

int run(int64_t most) {
  Report report("cuda_codec");
  if (const std::string why = no_device(); !why.empty()) {
    report.skipped(why);
    return 0;
  }
  report.attempt("1,100 tokens", "record against the CPU's", check_against_cpu);
  report.attempt("all", "set-up", [&] {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreate(&stream), "a stream");
    const Roofs roofs = device_roofs();
    const Scale scale(most);
    std::string products;
    const double chunk = products_of_chunk(scale, stream, products);
    std::fprintf(stderr, "products by %s\n", products.c_str());
    for (const int64_t tokens : lengths({8192, 32768, 65536, 131072}, most)) {
      report.attempt(in_k(tokens), "compression over prefill of the same prompt",
                     [&] { run_case(tokens, chunk, scale, roofs, stream, report); });
    }
  });
  return report.status();
}

}  // namespace
}  // namespace akv::bench

int main(int argc, char** argv) { return akv::bench::run(argc > 1 ? std::atoll(argv[1]) : 131072); }
