#include "kernels/flash_prefill.h"

#include "common/base/worker_pool.h"
#include "kernels/reference/model_ops.h"
#include "tests/kernels/support.h"

namespace akv::kernels {
namespace {

struct Shape {
  int head_dim, kv_heads, group;
  int64_t pos0, rows;
};

// One random problem; keys and values in both forms, equal in value.
struct Problem {
  Shape shape;
  RopeTable rope;
  std::vector<float> q, k_f32, v_f32, out;
  std::vector<bf16> k, v;

  Problem(const Shape& s, RopePairs pairs, uint32_t seed, float spread = 1.0f)
      : shape(s), rope(params(s, pairs)) {
    const size_t keys = static_cast<size_t>((s.pos0 + s.rows) * s.kv_heads * s.head_dim);
    q = random_floats(static_cast<size_t>(s.rows * s.kv_heads * s.group * s.head_dim), seed,
                      spread);
    k = random_bf16(keys, seed + 1);
    v = random_bf16(keys, seed + 2);
    k_f32.resize(keys);
    v_f32.resize(keys);
    convert_to_float(k.data(), static_cast<int64_t>(keys), k_f32.data());
    convert_to_float(v.data(), static_cast<int64_t>(keys), v_f32.data());
    out.assign(q.size(), NAN);
  }
  static RopeParams params(const Shape& s, RopePairs pairs) {
    RopeParams p;
    p.head_dim = s.head_dim;
    p.pairs = pairs;
    return p;
  }
  FlashPrefillParams call(bool f32) {
    FlashPrefillParams p;
    p.q = q.data();
    if (f32) {
      p.k_f32 = k_f32.data();
      p.v_f32 = v_f32.data();
    } else {
      p.k = k.data();
      p.v = v.data();
    }
    p.rope = &rope;
    p.out = out.data();
    p.rows = shape.rows;
    p.pos0 = shape.pos0;
    p.kv_heads = shape.kv_heads;
    p.q_heads = shape.kv_heads * shape.group;
    p.head_dim = shape.head_dim;
    return p;
  }
  std::vector<double> expected() {
    std::vector<double> want(out.size());
    reference::attention(call(true), want.data());
    return want;
  }
};

// Values are of order 1, so an absolute bound is one on a weighted mean's error.
void expect_near(const std::vector<float>& out, const std::vector<double>& want, double tolerance,
                 const Shape& s) {
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_NEAR(out[i], want[i], tolerance)
        << "D " << s.head_dim << " H " << s.kv_heads << "x" << s.group << " pos0 " << s.pos0
        << " rows " << s.rows << " at " << i;
  }
}

const Shape kShapes[] = {{64, 3, 3, 0, 1},    {64, 3, 3, 0, 70},   {64, 1, 1, 190, 33},
                         {80, 2, 1, 5, 61},   {96, 1, 2, 64, 64},  {112, 1, 3, 63, 40},
                         {128, 2, 4, 37, 50}, {256, 1, 2, 10, 20}, {24, 2, 2, 100, 30},
                         {8, 1, 5, 0, 129}};

class FlashPrefillTest : public IsaTest {};
AKV_FOR_EACH_ISA(FlashPrefillTest);

TEST_P(FlashPrefillTest, F32MatchesTheReference) {
  WorkerPool pool(2);
  FlashPrefillScratch scratch;
  for (const Shape& shape : kShapes) {
    for (RopePairs pairs : {RopePairs::kHalf, RopePairs::kInterleaved}) {
      Problem problem(shape, pairs, 41);
      const auto want = problem.expected();
      flash_prefill(problem.call(true), scratch, parallel_view(pool));
      expect_near(problem.out, want, 3e-6, shape);
      problem.out.assign(problem.out.size(), NAN);
      flash_prefill(problem.call(false), scratch, parallel_view(pool));
      expect_near(problem.out, want, 3e-6, shape);
    }
  }
}

TEST_P(FlashPrefillTest, Bf16MatchesTheReferenceToItsRounding) {
  FlashPrefillScratch scratch;
  for (const Shape& shape : kShapes) {
    Problem problem(shape, RopePairs::kInterleaved, 45);
    auto call = problem.call(false);
    call.compute = Compute::kBf16;
    flash_prefill(call, scratch, serial());
    expect_near(problem.out, problem.expected(), 2e-2, shape);
  }
}

// Large logits: one key wins, and sums are rescaled often.
TEST_P(FlashPrefillTest, SharpSoftmaxStaysExact) {
  FlashPrefillScratch scratch;
  Problem problem({64, 1, 2, 100, 80}, RopePairs::kHalf, 49, 40.0f);
  flash_prefill(problem.call(false), scratch, serial());
  // The logits reach some 1,000, so that their own f32 rounding is 1e-4 of a weight.
  expect_near(problem.out, problem.expected(), 1e-3, problem.shape);
}

TEST_P(FlashPrefillTest, ARowsBitsDoNotDependOnTheChunkOrTheWorkers) {
  WorkerPool pool(3);
  FlashPrefillScratch scratch;
  for (Compute compute : {Compute::kF32, Compute::kBf16}) {
    Problem whole({64, 2, 3, 0, 300}, RopePairs::kHalf, 53);
    auto call = whole.call(false);
    call.compute = compute;
    flash_prefill(call, scratch, serial());
    const std::vector<float> expected = whole.out;
    whole.out.assign(expected.size(), NAN);
    int64_t done = 0;
    const int64_t row_floats = 2 * 3 * 64;
    for (int64_t rows : {1, 63, 100, 136}) {
      auto part = call;
      part.pos0 = done;
      part.rows = rows;
      part.q += done * row_floats;
      part.out += done * row_floats;
      flash_prefill(part, scratch, parallel_view(pool));
      done += rows;
    }
    ASSERT_EQ(done, 300);
    EXPECT_EQ(std::memcmp(whole.out.data(), expected.data(), expected.size() * 4), 0)
        << compute_name(compute);
  }
}

TEST_P(FlashPrefillTest, ScratchDoesNotGrowWithThePrompt) {
  FlashPrefillScratch scratch;
  Problem small({64, 1, 1, 0, 64}, RopePairs::kHalf, 57),
      large({64, 1, 1, 1500, 64}, RopePairs::kHalf, 58);
  flash_prefill(small.call(false), scratch, serial());
  const size_t bytes = scratch.bytes();
  flash_prefill(large.call(false), scratch, serial());
  EXPECT_EQ(scratch.bytes(), bytes);
}

}  // namespace
}  // namespace akv::kernels
