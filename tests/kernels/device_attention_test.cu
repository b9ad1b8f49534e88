// The device's decode_attention against the double oracle: on the shim here, on a GPU by the same
// source. Contexts are short, as the shim runs every lane of every warp.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <optional>

#include "tests/kernels/device_attention_case.h"

namespace akv::kernels {
namespace {

using cuda::build_decode_attention_plan;
using cuda::decode_attention_config;
using cuda::DecodeAttentionArgs;
using cuda::DecodeAttentionConfig;
using cuda::DecodeAttentionLimits;
using cuda::DecodeAttentionShape;
using testing::CaseOptions;
using testing::CompressedCase;
using testing::DenseCase;
using testing::DevicePack;
using testing::random_queries;
using testing::relative_l2;
using testing::SuffixCase;

// Keys in half precision, weights of value residuals in bf16. The CPU's own tests hold 1e-3.
constexpr double kTolerance = 2e-3;
constexpr size_t kGuard = 64;  // floats on either side of the output

RopeTable make_rope(int head_dim, RopePairs pairs = RopePairs::kInterleaved, int rope_dim = 0,
                    double base = 100000.0) {
  RopeParams params;
  params.head_dim = head_dim;
  params.rope_dim = rope_dim;
  params.base = base;
  params.pairs = pairs;
  return RopeTable(params, 1 << 17);
}

template <class T>
T* device_copy(const std::vector<T>& values) {
  T* p = nullptr;
  EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&p), values.size() * sizeof(T)), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(p, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
            cudaSuccess);
  return p;
}

// A batch: host rows for the oracle, the same on the device.
class Batch {
 public:
  Batch(int heads, int kv_heads, int head_dim, const RopeTable& rope, size_t pack_bytes = 8 << 20)
      : shape_{heads, kv_heads, head_dim}, rope_(rope), pack_(pack_bytes) {}
  ~Batch() {
    for (void* p : owned_) cudaFree(p);
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  // Views of rows must outlive the batch. `align` is that of anchors or dense rows.
  void add(const AttentionRow& row, std::vector<float> q, size_t align) {
    cuda::DecodeAttentionRow device;
    if (row.prompt != nullptr) {
      device.prompt = testing::put(pack_, *row.prompt, align);
      device.prompt_tokens = row.prompt->tokens;
      device.window = row.prompt->window;
      device.anchors = row.prompt->anchors;
      limits_.anchors = std::max(limits_.anchors, device.anchors);
    }
    if (row.dense_prompt != nullptr) {
      device.dense_prompt = testing::put(pack_, *row.dense_prompt, std::max<size_t>(align, 8));
      device.prompt_tokens = row.dense_prompt->tokens;
    }
    device.window_drop = row.window_drop;
    device.suffix_tokens = row.suffix.tokens;
    pages_.push_back(testing::put(pack_, row.suffix, shape_.kv_heads, shape_.head_dim));
    if (row.suffix.tokens > 0) suffix_offset_ = row.suffix.layer_offset;
    limits_.prompt_tokens = std::max<int64_t>(limits_.prompt_tokens, device.prompt_tokens);
    limits_.suffix_tokens = std::max<int64_t>(limits_.suffix_tokens, device.suffix_tokens);
    host_rows_.push_back(row);
    rows_.push_back(device);
    q_.push_back(std::move(q));
    limits_.rows = static_cast<int>(rows_.size());
  }

  DecodeAttentionLimits& limits() { return limits_; }

  std::vector<float> oracle(size_t row) {
    std::vector<float> want(q_[row].size());
    AttentionRow copy = host_rows_[row];
    copy.q = q_[row].data();
    copy.out = want.data();
    reference::decode_attention(copy, shape_.heads, rope_);
    return want;
  }

  // Runs rows `which` as one batch; outputs in that order.
  std::vector<std::vector<float>> run(const std::vector<size_t>& which) {
    return run_all({which}, false)[0];
  }

  // Runs batches one after the other with the same memory; as replays of one graph if told.
  // Everything but inputs starts as NaN.
  std::vector<std::vector<std::vector<float>>> run_all(
      const std::vector<std::vector<size_t>>& batches, bool graph) {
    prepare();
    const DecodeAttentionConfig config = decode_attention_config(shape_, limits_);
    const size_t row = static_cast<size_t>(shape_.heads * shape_.head_dim);
    const size_t rows = static_cast<size_t>(limits_.rows);
    const std::vector<float> blank(row * rows + 2 * kGuard, std::nanf(""));
    std::byte* plan = device_copy(
        std::vector<std::byte>(static_cast<size_t>(config.plan_bytes), std::byte{0xff}));
    std::byte* scratch = device_copy(
        std::vector<std::byte>(static_cast<size_t>(config.scratch_bytes) + 64, std::byte{0xff}));
    float* q = device_copy(std::vector<float>(row * rows, std::nanf("")));
    float* out = device_copy(blank);
    DecodeAttentionArgs args = arguments();
    args.plan = plan;
    args.q = q;
    args.out = out + kGuard;
    args.scratch = scratch;
    const std::unique_ptr<Step> step = std::make_unique<Step>(config, args, graph);
    std::vector<std::vector<std::vector<float>>> results;
    for (const std::vector<size_t>& which : batches) {
      send(config, which, plan, q);
      cudaMemcpy(out, blank.data(), blank.size() * sizeof(float), cudaMemcpyHostToDevice);
      step->launch();
      std::vector<float> got(blank.size());
      cudaMemcpy(got.data(), out, got.size() * sizeof(float), cudaMemcpyDeviceToHost);
      results.push_back(split(got, which.size(), row));
    }
    std::vector<std::byte> tail(64);
    cudaMemcpy(tail.data(), scratch + config.scratch_bytes, 64, cudaMemcpyDeviceToHost);
    for (const std::byte b : tail) EXPECT_EQ(b, std::byte{0xff}) << "beyond the scratch";
    for (void* p : {static_cast<void*>(plan), static_cast<void*>(scratch), static_cast<void*>(q),
                    static_cast<void*>(out)}) {
      cudaFree(p);
    }
    return results;
  }

  // Relative L2 of row 0 alone.
  double error() { return relative_l2(run({0})[0], oracle(0)); }

 private:
  // The launches of a layer, put into a stream each time or captured once.
  class Step {
   public:
    Step(const DecodeAttentionConfig& config, const DecodeAttentionArgs& args, bool graph)
        : config_(config), args_(args) {
      EXPECT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
      if (!graph) return;
      EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
      cuda::decode_attention(config_, args_, DeviceStream{stream_});
      EXPECT_EQ(cudaStreamEndCapture(stream_, &graph_), cudaSuccess);
      EXPECT_EQ(cudaGraphInstantiate(&captured_, graph_, 0), cudaSuccess);
    }
    ~Step() {
      if (captured_ != nullptr) cudaGraphExecDestroy(captured_);
      if (graph_ != nullptr) cudaGraphDestroy(graph_);
      cudaStreamDestroy(stream_);
    }
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;
    void launch() {
      if (captured_ != nullptr) {
        EXPECT_EQ(cudaGraphLaunch(captured_, stream_), cudaSuccess);
      } else {
        cuda::decode_attention(config_, args_, DeviceStream{stream_});
      }
      EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess)
          << cudaGetErrorString(cudaGetLastError());
    }

   private:
    DecodeAttentionConfig config_;
    DecodeAttentionArgs args_;
    cudaStream_t stream_ = nullptr;
    cudaGraph_t graph_ = nullptr;
    cudaGraphExec_t captured_ = nullptr;
  };

  // Plan and queries of a batch, to the device.
  void send(const DecodeAttentionConfig& config, const std::vector<size_t>& which, std::byte* plan,
            float* q) {
    std::vector<cuda::DecodeAttentionRow> rows;
    size_t at = 0;
    for (const size_t r : which) {
      rows.push_back(rows_[r]);
      rows.back().pages = pages_[r].data();
      cudaMemcpy(q + at, q_[r].data(), q_[r].size() * sizeof(float), cudaMemcpyHostToDevice);
      at += q_[r].size();
    }
    std::vector<std::byte> host(static_cast<size_t>(config.plan_bytes), std::byte{0xff});
    const int64_t bytes = build_decode_attention_plan(config, rows, host.data());
    EXPECT_LE(bytes, config.plan_bytes);
    cudaMemcpy(plan, host.data(), static_cast<size_t>(bytes), cudaMemcpyHostToDevice);
  }

  void prepare() {
    if (prepared_) return;
    prepared_ = true;
    pack_.upload();
    const int64_t positions = std::max<int64_t>(128, limits_.prompt_tokens);
    std::vector<float> rows;
    for (int64_t p = 0; p < positions; ++p) {
      rows.insert(rows.end(), rope_.cos_row(p), rope_.cos_row(p) + 2 * rope_.half());
    }
    float* device = device_copy(rows);
    owned_.push_back(device);
    device_rope_ = {device, rope_.half(), rope_.head_dim(), rope_.pairs(), positions};
  }
  DecodeAttentionArgs arguments() const {
    DecodeAttentionArgs args;
    args.layer = testing::kDeviceLayer;
    args.suffix_offset = suffix_offset_;
    args.rope = device_rope_;
    return args;
  }
  static std::vector<std::vector<float>> split(const std::vector<float>& out, size_t rows,
                                               size_t row) {
    std::vector<std::vector<float>> result;
    for (size_t r = 0; r < rows; ++r) {
      const auto begin = out.begin() + static_cast<std::ptrdiff_t>(kGuard + r * row);
      result.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(row));
    }
    for (size_t i = 0; i < out.size(); ++i) {
      const bool inside = i >= kGuard && i < kGuard + rows * row;
      EXPECT_EQ(std::isnan(out[i]), !inside) << "float " << i << " of the output";
      if (std::isnan(out[i]) == inside) break;
    }
    return result;
  }

  DecodeAttentionShape shape_;
  const RopeTable& rope_;
  DevicePack pack_;
  DecodeAttentionLimits limits_;
  std::vector<AttentionRow> host_rows_;
  std::vector<cuda::DecodeAttentionRow> rows_;
  std::vector<std::vector<const bf16*>> pages_;
  std::vector<std::vector<float>> q_;
  std::vector<void*> owned_;
  int64_t suffix_offset_ = 0;
  DeviceRope device_rope_;
  bool prepared_ = false;
};

double compressed_error(const CaseOptions& o, RopePairs pairs = RopePairs::kInterleaved,
                        int suffix_tokens = 5, int window_drop = 0, int rope_dim = 0,
                        size_t align = 4, double base = 100000.0) {
  const CompressedCase layer(o);
  const SuffixCase suffix(suffix_tokens, o.kv_heads, o.head_dim, o.seed + 7);
  const RopeTable rope = make_rope(o.head_dim, pairs, rope_dim, base);
  AttentionRow row;
  row.prompt = &layer.view();
  row.window_drop = window_drop;
  row.suffix = suffix.view(suffix_tokens);
  Batch batch(o.heads, o.kv_heads, o.head_dim, rope);
  batch.limits().blocks = 3;
  batch.add(row, random_queries(o.heads, o.head_dim, o.seed + 9), align);
  return batch.error();
}

TEST(DeviceAttentionTest, HeadDimensionsAndGroups) {
  for (const int head_dim : {64, 96, 128, 256}) {
    for (const int group : {1, 3, 4, 7, 8, 9, 16}) {
      CaseOptions o;
      o.head_dim = head_dim;
      o.kv_heads = group == 3 ? 2 : 1;
      o.heads = group * o.kv_heads;
      o.tokens = 300 + group;
      o.seed = static_cast<uint64_t>(head_dim * 100 + group);
      const RopePairs pairs = group % 2 != 0 ? RopePairs::kInterleaved : RopePairs::kHalf;
      EXPECT_LT(compressed_error(o, pairs), kTolerance) << "D " << head_dim << " g " << group;
    }
  }
}

TEST(DeviceAttentionTest, EveryFormOfARecord) {
  for (int bits = 0; bits < 64; ++bits) {
    CaseOptions o;
    o.post = (bits & 1) != 0;
    o.log8 = (bits & 2) != 0;
    o.slots16 = (bits & 4) != 0;
    o.scale_f32 = (bits & 8) != 0;
    o.density4 = (bits & 16) != 0 ? 0.1 : 0.0;
    const RopePairs pairs = (bits & 32) != 0 ? RopePairs::kHalf : RopePairs::kInterleaved;
    o.anchors = o.slots16 ? 300 : 60;
    o.tokens = 620;
    o.seed = static_cast<uint64_t>(bits);
    const size_t align = size_t{4} << (bits % 3);
    EXPECT_LT(compressed_error(o, pairs, 5, 0, 0, align), kTolerance) << "form " << bits;
  }
}

TEST(DeviceAttentionTest, DensitiesFromNoneToAll) {
  const double densities[][2] = {{0, 0}, {1, 0}, {0, 1}, {0.5, 0.5}, {0.002, 0.002}};
  for (const auto& d : densities) {
    for (const bool post : {true, false}) {
      CaseOptions o;
      o.post = post;
      o.density2 = d[0];
      o.density4 = d[1];
      o.tokens = 577;
      EXPECT_LT(compressed_error(o), kTolerance) << d[0] << " " << d[1] << " post " << post;
    }
  }
}

TEST(DeviceAttentionTest, PromptLengthsAroundTilesAndSplits) {
  for (const int tokens : {33, 48, 95, 97, 160, 512, 513, 544, 545, 1057, 2080, 17100}) {
    CaseOptions o;
    o.tokens = tokens;
    o.anchors = 40;
    o.heads = 1;
    o.seed = static_cast<uint64_t>(tokens);
    EXPECT_LT(compressed_error(o, RopePairs::kHalf), kTolerance) << tokens;
  }
}

TEST(DeviceAttentionTest, WindowDropLeavesOutTheNewestEntry) {
  CaseOptions o;
  o.tokens = 600;
  EXPECT_LT(compressed_error(o, RopePairs::kInterleaved, 1, 1), kTolerance);
  o.window = 1;
  EXPECT_LT(compressed_error(o, RopePairs::kInterleaved, 3, 1), kTolerance);
}

TEST(DeviceAttentionTest, SuffixAcrossPagesAndSplits) {
  CaseOptions o;
  o.tokens = 200;
  for (const int tokens : {0, 1, 63, 64, 65, 512, 513, 700}) {
    EXPECT_LT(compressed_error(o, RopePairs::kInterleaved, tokens), kTolerance) << tokens;
  }
}

TEST(DeviceAttentionTest, PartialRotation) {
  CaseOptions o;
  o.head_dim = 96;
  o.tokens = 200;
  for (const RopePairs pairs : {RopePairs::kHalf, RopePairs::kInterleaved}) {
    for (const int rope_dim : {24, 26, 48, 64}) {
      for (const bool post : {true, false}) {
        o.post = post;
        EXPECT_LT(compressed_error(o, pairs, 3, 0, rope_dim), kTolerance) << rope_dim;
      }
    }
  }
}

// Pairs that turn too fast for the polynomials of a tile, just slowly enough for them, or slowly
// enough for those of a chunk.
TEST(DeviceAttentionTest, RopeOfAnySpeed) {
  for (const int head_dim : {64, 96, 128, 256}) {
    for (const double base : {20.0, 10000.0, 1e6, 1e9}) {
      for (const int group : {4, 8}) {
        CaseOptions o;
        o.head_dim = head_dim;
        o.heads = group;
        o.tokens = 1200;
        EXPECT_LT(compressed_error(o, RopePairs::kHalf, 2, 0, 0, 4, base), kTolerance)
            << "D " << head_dim << " base " << base << " g " << group;
      }
    }
  }
}

TEST(DeviceAttentionTest, DensePrompts) {
  for (const int head_dim : {64, 96, 128, 256}) {
    for (const int group : {1, 4, 7, 16}) {
      for (const int tokens : {1, 3, 64, 600}) {
        const DenseCase layer(tokens, 2, head_dim, static_cast<uint64_t>(tokens + group));
        const SuffixCase suffix(70, 2, head_dim, 5);
        const RopeTable rope = make_rope(head_dim);
        AttentionRow row;
        row.dense_prompt = &layer.view();
        row.window_drop = tokens % 2;
        row.suffix = suffix.view(70);
        Batch batch(2 * group, 2, head_dim, rope);
        batch.limits().blocks = 2;
        batch.add(row, random_queries(2 * group, head_dim, 11), tokens == 3 ? 8 : 16);
        EXPECT_LT(batch.error(), kTolerance) << head_dim << " " << group << " " << tokens;
      }
    }
  }
}

// Logits of order 1 whatever the keys: nothing may under- or overflow on the way.
TEST(DeviceAttentionTest, KeysOfAnySize) {
  for (const float size : {0.01f, 4.0f, 200.0f}) {
    CaseOptions o;
    o.key_size = size;
    o.density2 = o.density4 = 0.1;
    o.tokens = 700;
    const CompressedCase layer(o);
    const RopeTable rope = make_rope(o.head_dim);
    AttentionRow row;
    row.prompt = &layer.view();
    Batch batch(o.heads, o.kv_heads, o.head_dim, rope);
    batch.add(row, random_queries(o.heads, o.head_dim, 4, 1.0f / size), 4);
    EXPECT_LT(batch.error(), kTolerance) << size;
  }
}

// From one average over all values to one token alone.
TEST(DeviceAttentionTest, FlatAndPeakedWeights) {
  for (const float size : {0.0f, 0.3f, 8.0f}) {
    CaseOptions o;
    o.tokens = 1200;
    const CompressedCase layer(o);
    const RopeTable rope = make_rope(o.head_dim);
    AttentionRow row;
    row.prompt = &layer.view();
    Batch batch(o.heads, o.kv_heads, o.head_dim, rope);
    batch.add(row, random_queries(o.heads, o.head_dim, 4, size), 4);
    // A logit's error grows with the logits.
    EXPECT_LT(batch.error(), size > 1 ? 1e-2 : kTolerance) << size;
  }
}

// Rows of one test batch: long and short compressed prompts, a dense one, suffixes of all lengths.
class MixedBatch {
 public:
  static constexpr int kHeads = 6, kKvHeads = 2, kDim = 64, kRows = 6;

  MixedBatch()
      : rope_(make_rope(kDim)),
        dense_(300, kKvHeads, kDim, 3),
        suffix_(100, kKvHeads, kDim, 4),
        batch_(kHeads, kKvHeads, kDim, rope_) {
    CaseOptions o;
    o.heads = kHeads;
    o.kv_heads = kKvHeads;
    o.tokens = 2300;
    long_.emplace(o);
    o.tokens = 700;
    o.anchors = 180;
    o.seed = 2;
    short_.emplace(o);
    for (int i = 0; i < kRows; ++i) {
      AttentionRow row;
      if (i % 3 == 0) row.prompt = &long_->view();
      if (i % 3 == 1) row.dense_prompt = &dense_.view();
      if (i % 3 == 2) row.prompt = &short_->view();
      row.suffix = suffix_.view(i * 15);
      batch_.add(row, random_queries(kHeads, kDim, static_cast<uint64_t>(i) + 50), 4);
    }
  }
  Batch& batch() { return batch_; }

 private:
  RopeTable rope_;
  DenseCase dense_;
  SuffixCase suffix_;
  std::optional<CompressedCase> long_, short_;
  Batch batch_;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Each row equals, bit for bit, what it gives alone, however many blocks there are and whatever
// shared memory holds: all anchors, some, or none and no histogram either.
TEST(DeviceAttentionTest, ResultsDependOnTheRowAlone) {
  MixedBatch mixed;
  Batch& batch = mixed.batch();
  std::vector<std::vector<float>> alone;
  for (size_t r = 0; r < MixedBatch::kRows; ++r) {
    batch.limits().blocks = 1;
    alone.push_back(batch.run({r})[0]);
    EXPECT_LT(relative_l2(alone[r], batch.oracle(r)), kTolerance) << r;
  }
  for (const int64_t shared_bytes : {int64_t{0}, int64_t{40} << 10, int64_t{1}}) {
    for (const int blocks : {2, 7, 100}) {
      batch.limits().blocks = blocks;
      batch.limits().shared_bytes_max = shared_bytes;
      batch.limits().shared_anchors = shared_bytes != 1;
      const auto together = batch.run({3, 1, 5, 0, 4, 2});
      const size_t order[] = {3, 1, 5, 0, 4, 2};
      for (size_t i = 0; i < MixedBatch::kRows; ++i) {
        EXPECT_TRUE(same_bits(together[i], alone[order[i]]))
            << "row " << order[i] << " blocks " << blocks << " shared " << shared_bytes;
      }
    }
  }
}

TEST(DeviceAttentionTest, OneGraphServesEveryBatch) {
  MixedBatch mixed;
  mixed.batch().limits().blocks = 5;
  const std::vector<std::vector<size_t>> batches = {{0, 1, 2, 3, 4, 5}, {4}, {2, 0}, {}, {5, 1, 3}};
  const auto captured = mixed.batch().run_all(batches, true);
  for (size_t b = 0; b < batches.size(); ++b) {
    for (size_t i = 0; i < batches[b].size(); ++i) {
      EXPECT_TRUE(same_bits(captured[b][i], mixed.batch().run({batches[b][i]})[0]))
          << "batch " << b << " row " << i;
    }
  }
}

TEST(DeviceAttentionTest, RowsOfOneSessionSharePages) {
  const CompressedCase layer{CaseOptions{}};
  const RopeTable rope = make_rope(64);
  const SuffixCase suffix(70, 1, 64, 4);
  Batch batch(3, 1, 64, rope);
  for (int i = 0; i < 4; ++i) {
    AttentionRow row;
    row.prompt = &layer.view();
    row.suffix = suffix.view(62 + i);
    batch.add(row, random_queries(3, 64, static_cast<uint64_t>(i)), 4);
  }
  const auto out = batch.run({0, 1, 2, 3});
  for (size_t i = 0; i < out.size(); ++i)
    EXPECT_LT(relative_l2(out[i], batch.oracle(i)), kTolerance);
}

TEST(DeviceAttentionTest, RefusesWhatItCannotRun) {
  EXPECT_EQ(cuda::decode_attention_unsupported({32, 8, 128}), nullptr);
  EXPECT_NE(cuda::decode_attention_unsupported({32, 8, 80}), nullptr);
  EXPECT_NE(cuda::decode_attention_unsupported({34, 2, 128}), nullptr);
  EXPECT_NE(cuda::decode_attention_unsupported({7, 2, 128}), nullptr);
}

}  // namespace
}  // namespace akv::kernels
