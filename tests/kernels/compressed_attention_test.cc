// decode_attention against the double oracle, on every instruction set that this machine has.
#include "kernels/compressed_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>

#include "common/base/worker_pool.h"
#include "kernels/isa.h"
#include "tests/kernels/attention_case.h"

namespace akv::kernels {
namespace {

using testing::CaseOptions;
using testing::CompressedCase;
using testing::DenseCase;
using testing::random_queries;
using testing::relative_l2;
using testing::SuffixCase;

constexpr double kTolerance = 1e-3;

RopeTable make_rope(int head_dim, RopePairs pairs = RopePairs::kInterleaved, int rope_dim = 0) {
  RopeParams params;
  params.head_dim = head_dim;
  params.rope_dim = rope_dim;
  params.base = 100000.0;
  params.pairs = pairs;
  return RopeTable(params, 1 << 17);
}

class AttentionTest : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!isa_supported(GetParam())) GTEST_SKIP() << isa_name(GetParam()) << " is not supported";
    isa_.emplace(GetParam());
  }

  // Relative L2 of one row's output, over all heads together.
  double error(AttentionRow row, int heads, int head_dim, const RopeTable& rope) {
    std::vector<float> got(static_cast<size_t>(heads * head_dim)), want(got);
    row.out = want.data();
    reference::decode_attention(row, heads, rope);
    row.out = got.data();
    decode_attention({&row, 1}, heads, rope, scratch_, serial());
    return relative_l2(got, want);
  }

  double compressed_error(const CaseOptions& options, RopePairs pairs = RopePairs::kInterleaved,
                          int suffix_tokens = 5, int window_drop = 0) {
    const CompressedCase layer(options);
    const SuffixCase suffix(suffix_tokens, options.kv_heads, options.head_dim, options.seed + 7);
    const std::vector<float> q = random_queries(options.heads, options.head_dim, options.seed + 9);
    AttentionRow row;
    row.prompt = &layer.view();
    row.window_drop = window_drop;
    row.suffix = suffix.view(suffix_tokens);
    row.q = q.data();
    return error(row, options.heads, options.head_dim, make_rope(options.head_dim, pairs));
  }

  DecodeAttentionScratch scratch_;

 private:
  std::optional<ScopedIsa> isa_;
};

std::string isa_of(const ::testing::TestParamInfo<Isa>& test) { return isa_name(test.param); }

INSTANTIATE_TEST_SUITE_P(Isa, AttentionTest,
                         ::testing::Values(Isa::kPortable, Isa::kAvx2, Isa::kAvx512,
                                           Isa::kAvx512Bf16),
                         isa_of);

TEST_P(AttentionTest, EveryHeadDimAndGroup) {
  for (const int head_dim : {16, 64, 80, 96, 112, 128, 256}) {
    for (const int group : {1, 2, 3, 4, 5, 7, 8, 16}) {
      CaseOptions o;
      o.head_dim = head_dim;
      o.heads = 2 * group;
      o.kv_heads = 2;
      o.tokens = 400 + group;
      o.seed = static_cast<uint64_t>(head_dim * 100 + group);
      EXPECT_LT(compressed_error(o), kTolerance) << "D " << head_dim << " g " << group;
    }
  }
}

TEST_P(AttentionTest, WithoutATable) {
  scratch_ = DecodeAttentionScratch(0);
  for (const int head_dim : {32, 64, 80, 96, 128, 256}) {  // 80 has a table all the same
    for (const int group : {1, 3, 4, 6}) {
      for (const RopePairs pairs : {RopePairs::kHalf, RopePairs::kInterleaved}) {
        CaseOptions o;
        o.head_dim = head_dim;
        o.heads = group;
        o.tokens = 601;
        o.seed = static_cast<uint64_t>(head_dim + group);
        EXPECT_LT(compressed_error(o, pairs), kTolerance) << "D " << head_dim << " g " << group;
      }
    }
  }
  EXPECT_LT(scratch_.working_bytes(), 256 * 1024);
}

TEST_P(AttentionTest, EveryFormOfARecord) {
  for (int bits = 0; bits < 64; ++bits) {
    CaseOptions o;
    o.post = (bits & 1) != 0;
    o.log8 = (bits & 2) != 0;
    o.slots16 = (bits & 4) != 0;
    o.scale_f32 = (bits & 8) != 0;
    o.density4 = (bits & 16) != 0 ? 0.1 : 0.0;
    const RopePairs pairs = (bits & 32) != 0 ? RopePairs::kHalf : RopePairs::kInterleaved;
    o.anchors = o.slots16 ? 300 : 60;
    o.tokens = 1000;
    o.seed = static_cast<uint64_t>(bits);
    EXPECT_LT(compressed_error(o, pairs), kTolerance) << "form " << bits;
  }
}

TEST_P(AttentionTest, DensitiesFromNoneToAll) {
  const double densities[][2] = {{0, 0}, {1, 0}, {0, 1}, {0.5, 0.5}, {0.002, 0.002}};
  for (const auto& d : densities) {
    for (const bool post : {true, false}) {
      CaseOptions o;
      o.post = post;
      o.density2 = d[0];
      o.density4 = d[1];
      o.tokens = 777;
      EXPECT_LT(compressed_error(o), kTolerance) << d[0] << " " << d[1] << " post " << post;
    }
  }
}

TEST_P(AttentionTest, PromptLengthsAroundTilesAndSplits) {
  for (const int tokens : {33, 48, 95, 96, 97, 287, 288, 289, 300, 544, 2080, 4128, 5000, 9001}) {
    CaseOptions o;
    o.tokens = tokens;
    o.anchors = 40;
    o.seed = static_cast<uint64_t>(tokens);
    EXPECT_LT(compressed_error(o, RopePairs::kHalf), kTolerance) << tokens;
  }
}

TEST_P(AttentionTest, WindowDropLeavesOutTheNewestEntry) {
  CaseOptions o;
  o.tokens = 600;
  EXPECT_LT(compressed_error(o, RopePairs::kInterleaved, 1, 1), kTolerance);
  o.window = 1;  // nothing of the window is left
  EXPECT_LT(compressed_error(o, RopePairs::kInterleaved, 3, 1), kTolerance);
}

TEST_P(AttentionTest, SuffixAcrossPagesAndSplits) {
  CaseOptions o;
  for (const int tokens : {0, 1, 63, 64, 65, 512, 513, 700}) {
    EXPECT_LT(compressed_error(o, RopePairs::kInterleaved, tokens), kTolerance) << tokens;
  }
}

TEST_P(AttentionTest, PartialRotation) {
  CaseOptions o;
  o.head_dim = 96;
  const CompressedCase layer(o);
  const SuffixCase suffix(3, o.kv_heads, o.head_dim, 3);
  const std::vector<float> q = random_queries(o.heads, o.head_dim, 4);
  AttentionRow row;
  row.prompt = &layer.view();
  row.suffix = suffix.view(3);
  row.q = q.data();
  for (const RopePairs pairs : {RopePairs::kHalf, RopePairs::kInterleaved}) {
    for (const int rope_dim : {24, 32, 48, 64}) {
      for (const int64_t table_bytes : {int64_t{0}, DecodeAttentionScratch::kDefaultTableBytes}) {
        scratch_ = DecodeAttentionScratch(table_bytes);
        const double off = error(row, o.heads, o.head_dim, make_rope(o.head_dim, pairs, rope_dim));
        EXPECT_LT(off, kTolerance) << rope_dim << " table " << table_bytes;
      }
    }
  }
}

TEST_P(AttentionTest, DensePrompts) {
  for (const int head_dim : {64, 80, 128, 256}) {
    for (const int group : {1, 3, 4, 7}) {
      for (const int tokens : {1, 3, 64, 511, 1100}) {
        const DenseCase layer(tokens, 2, head_dim, static_cast<uint64_t>(tokens + group));
        const SuffixCase suffix(70, 2, head_dim, 5);
        const std::vector<float> q = random_queries(2 * group, head_dim, 11);
        AttentionRow row;
        row.dense_prompt = &layer.view();
        row.window_drop = tokens % 2;
        row.suffix = suffix.view(70);
        row.q = q.data();
        EXPECT_LT(error(row, 2 * group, head_dim, make_rope(head_dim)), 1e-5)
            << head_dim << " " << group << " " << tokens;
      }
    }
  }
}

// Keys with one pair a hundred times larger than the rest, as attention biases give them: the
// fixed-point scale is set by that pair, and the others must survive it.
TEST_P(AttentionTest, LargeKeysStayWithinTheFixedPointBound) {
  for (const float size : {0.01f, 4.0f, 20.0f}) {
    CaseOptions o;
    o.key_size = size;
    o.density2 = o.density4 = 0;  // a residual is exact in f32; this is about W
    o.tokens = 3000;
    const CompressedCase layer(o);
    // Logits of order 1 whatever the keys: the query shrinks as they grow.
    const std::vector<float> q = random_queries(o.heads, o.head_dim, 4, 1.0f / size);
    AttentionRow row;
    row.prompt = &layer.view();
    row.q = q.data();
    EXPECT_LT(error(row, o.heads, o.head_dim, make_rope(o.head_dim)), 3e-4) << size;
  }
}

TEST_P(AttentionTest, ZeroQueryAveragesTheValues) {
  CaseOptions o;
  const CompressedCase layer(o);
  const std::vector<float> q(static_cast<size_t>(o.heads * o.head_dim), 0.0f);
  AttentionRow row;
  row.prompt = &layer.view();
  row.q = q.data();
  EXPECT_LT(error(row, o.heads, o.head_dim, make_rope(o.head_dim)), 1e-5);
}

// A batch of unlike rows: each equals, bit for bit, what it gives alone, on one worker and on
// three.
TEST_P(AttentionTest, ResultsDoNotDependOnTheBatch) {
  constexpr int kHeads = 6, kKvHeads = 2, kDim = 64;
  CaseOptions o;
  o.heads = kHeads;
  o.kv_heads = kKvHeads;
  o.tokens = 5000;
  const CompressedCase long_prompt(o);
  o.tokens = 700;
  o.anchors = 60;
  o.seed = 2;
  const CompressedCase short_prompt(o);
  const DenseCase dense(600, kKvHeads, kDim, 3);
  const SuffixCase suffix(100, kKvHeads, kDim, 4);
  const RopeTable rope = make_rope(kDim);
  std::vector<std::vector<float>> q, alone, together;
  std::vector<AttentionRow> rows(7);
  for (size_t i = 0; i < rows.size(); ++i) {
    q.push_back(random_queries(kHeads, kDim, i + 50));
    alone.emplace_back(static_cast<size_t>(kHeads * kDim));
    together.emplace_back(static_cast<size_t>(kHeads * kDim));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i % 3 == 0) rows[i].prompt = &long_prompt.view();
    if (i % 3 == 1) rows[i].dense_prompt = &dense.view();
    if (i % 3 == 2) rows[i].prompt = &short_prompt.view();
    rows[i].suffix = suffix.view(static_cast<int>(i) * 15);
    rows[i].q = q[i].data();
    rows[i].out = alone[i].data();
    decode_attention({&rows[i], 1}, kHeads, rope, scratch_, serial());
    rows[i].out = together[i].data();
  }
  WorkerPool pool(3);
  for (const Parallel& parallel : {serial(), parallel_view(pool)}) {
    for (auto& out : together) std::fill(out.begin(), out.end(), 0.0f);
    decode_attention(rows, kHeads, rope, scratch_, parallel);
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(std::memcmp(together[i].data(), alone[i].data(), alone[i].size() * sizeof(float)),
                0)
          << "row " << i;
    }
  }
}

// Scratch follows k g D, not S D, and a second call of the same shape takes no more.
TEST_P(AttentionTest, ScratchDoesNotGrowWithThePrompt) {
  CaseOptions o;
  const RopeTable rope = make_rope(o.head_dim);
  const std::vector<float> q = random_queries(o.heads, o.head_dim, 4);
  std::vector<float> out(q.size());
  int64_t bytes[2] = {};
  int i = 0;
  for (const int tokens : {20000, 40000}) {
    o.tokens = tokens;
    const CompressedCase layer(o);
    AttentionRow row;
    row.prompt = &layer.view();
    row.q = q.data();
    row.out = out.data();
    decode_attention({&row, 1}, o.heads, rope, scratch_, serial());
    const int64_t phases = scratch_.phase_bytes();
    bytes[i] = scratch_.working_bytes();
    decode_attention({&row, 1}, o.heads, rope, scratch_, serial());
    EXPECT_EQ(scratch_.working_bytes(), bytes[i]);
    EXPECT_EQ(scratch_.phase_bytes(), phases);
    ++i;
  }
  EXPECT_EQ(bytes[0], bytes[1]);
  EXPECT_LT(bytes[1], 64 * 1024);  // a tenth of one KV head's dense keys at 20,000 tokens is 256 KB
}

// Section 7: |y - yhat| <= sum_t alphahat_t |V_t - Vhat_t| + 2 Vmax tanh(mu), here with K, V = what
// the anchors alone give and Khat, Vhat = with residuals, so that both sides come from the kernel's
// own inputs: dropping the residuals is a perturbation whose size is known exactly.
TEST_P(AttentionTest, OutputErrorBound) {
  CaseOptions o;
  o.density2 = 0.3;
  o.density4 = 0.1;
  o.heads = 1;
  o.scale_f32 = true;
  for (const float size : {0.02f, 0.1f, 0.5f}) {
    o.key_size = size;
    const CompressedCase layer(o);
    CompressedLayerView bare = layer.view();
    CompressedHeadView head = bare.heads[0];
    head.key.n2 = head.key.n4 = head.value.n2 = head.value.n4 = 0;
    bare.heads = &head;
    const std::vector<float> q = random_queries(1, o.head_dim, 77);
    std::vector<float> with(q.size()), without(q.size());
    const RopeTable rope = make_rope(o.head_dim);
    AttentionRow row;
    row.q = q.data();
    row.prompt = &layer.view();
    row.out = with.data();
    decode_attention({&row, 1}, 1, rope, scratch_, serial());
    row.prompt = &bare;
    row.out = without.data();
    decode_attention({&row, 1}, 1, rope, scratch_, serial());
    // |r_t| = scale |level(code)|: at most scale * 2.7326 * sqrt(D); alphahat sums to 1.
    double key_step = 0, value_step = 0, value_max = 0, q2 = 0, moved = 0;
    const auto largest = [&](const CompressedSideView& side) {
      double scale = 0;
      for (uint32_t i = 0; i < side.n2; ++i) {
        scale = std::max(scale, 1.5104 * static_cast<double>(side.scale2_f32[i]));
      }
      for (uint32_t i = 0; i < side.n4; ++i) {
        scale = std::max(scale, 2.7326 * static_cast<double>(side.scale4_f32[i]));
      }
      return scale * std::sqrt(static_cast<double>(o.head_dim));
    };
    key_step = largest(layer.view().heads[0].key);
    value_step = largest(layer.view().heads[0].value);
    for (int a = 0; a < o.anchors; ++a) {
      double norm2 = 0;
      for (int d = 0; d < o.head_dim; ++d) {
        const float x = to_float(layer.view().heads[0].value.anchors[a * o.head_dim + d]);
        norm2 += static_cast<double>(x) * static_cast<double>(x);
      }
      value_max = std::max(value_max, 1.4 * std::sqrt(norm2));
    }
    for (size_t d = 0; d < q.size(); ++d) {
      q2 += static_cast<double>(q[d]) * static_cast<double>(q[d]);
      const double step = static_cast<double>(with[d]) - static_cast<double>(without[d]);
      moved += step * step;
    }
    const double mu = std::sqrt(q2) * key_step / std::sqrt(static_cast<double>(o.head_dim));
    EXPECT_LE(std::sqrt(moved), value_step + 2 * value_max * std::tanh(mu)) << size;
    EXPECT_GT(moved, 0.0);
  }
}

}  // namespace
}  // namespace akv::kernels
