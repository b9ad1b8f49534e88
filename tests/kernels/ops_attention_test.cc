// Causal prefill attention: one body for every backend.
#include <cmath>
#include <cstring>

#include "kernels/flash_prefill.h"
#include "kernels/reference/model_ops.h"
#include "tests/kernels/ops.h"
#include "tests/kernels/support.h"

namespace akv::kernels {
namespace {

// One random problem.
struct Problem {
  FlashShape shape;
  RopeTable table;
  Floats q;
  Bf16s k, v;

  Problem(const FlashShape& s, RopePairs pairs, uint32_t seed, int rope_dim = 0,
          float spread = 1.0f)
      : shape(s), table(params(s, pairs, rope_dim)) {
    const auto keys = static_cast<size_t>((s.pos0 + s.rows) * s.kv_heads * s.head_dim);
    q = random_floats(static_cast<size_t>(s.rows * s.kv_heads * s.group * s.head_dim), seed,
                      spread);
    k = random_bf16(keys, seed + 1);
    v = random_bf16(keys, seed + 2);
  }
  static RopeParams params(const FlashShape& s, RopePairs pairs, int rope_dim) {
    RopeParams p;
    p.head_dim = s.head_dim;
    p.rope_dim = rope_dim;
    p.pairs = pairs;
    return p;
  }
  std::vector<double> expected() const {
    FlashPrefillParams p;
    p.q = q.data();
    p.k = k.data();
    p.v = v.data();
    p.rope = &table;
    p.rows = shape.rows;
    p.pos0 = shape.pos0;
    p.kv_heads = shape.kv_heads;
    p.q_heads = shape.kv_heads * shape.group;
    p.head_dim = shape.head_dim;
    std::vector<double> want(q.size());
    reference::attention(p, want.data());
    return want;
  }
  // Rows [begin, begin + rows) of the problem, as a chunk of its own.
  Floats run(Ops& ops, int64_t begin, int64_t rows) const {
    FlashShape part = shape;
    part.pos0 += begin;
    part.rows = rows;
    const int64_t q_row = int64_t{1} * shape.kv_heads * shape.group * shape.head_dim;
    const int64_t kv = (part.pos0 + rows) * shape.kv_heads * shape.head_dim;
    return ops.flash_prefill(part, table,
                             Floats(q.begin() + begin * q_row, q.begin() + (begin + rows) * q_row),
                             Bf16s(k.begin(), k.begin() + kv), Bf16s(v.begin(), v.begin() + kv));
  }
};

class AttentionOpsTest : public OpsTest {
 protected:
  void expect_near(const Problem& problem, double tolerance) {
    const auto out = problem.run(ops(), 0, problem.shape.rows);
    const auto want = problem.expected();
    const FlashShape& s = problem.shape;
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_NEAR(out[i], want[i], tolerance)
          << "D " << s.head_dim << " H " << s.kv_heads << "x" << s.group << " pos0 " << s.pos0
          << " rows " << s.rows << " at " << i;
    }
  }
};
AKV_FOR_EACH_BACKEND(AttentionOpsTest);

// Values are of order 1, so that an absolute bound is one on a weighted mean's error.
TEST_P(AttentionOpsTest, MatchesTheReference) {
  for (const FlashShape& shape : {FlashShape{64, 2, 3, 0, 1},
                                  {64, 2, 3, 0, 70},
                                  {64, 1, 1, 190, 33},
                                  {64, 1, 16, 60, 9},
                                  {96, 1, 2, 64, 64},
                                  {96, 2, 5, 63, 3},
                                  {128, 2, 4, 37, 50},
                                  {128, 1, 8, 100, 17},
                                  {128, 1, 1, 0, 129},
                                  {256, 1, 2, 10, 40},
                                  {256, 1, 7, 31, 5}}) {
    expect_near(Problem(shape, RopePairs::kInterleaved, 45), 2e-2);
  }
}

TEST_P(AttentionOpsTest, TurnsHalvesAndPartOfAHead) {
  expect_near(Problem({64, 1, 2, 20, 30}, RopePairs::kHalf, 46), 2e-2);
  expect_near(Problem({128, 1, 2, 20, 30}, RopePairs::kHalf, 47, 64), 2e-2);
}

// Large logits: one key wins, and sums are rescaled often. bf16 rounds logits of some hundreds to a
// weight's few percent; what must not happen is a NaN or a lost rescaling.
TEST_P(AttentionOpsTest, SharpSoftmaxKeepsItsScale) {
  expect_near(Problem({64, 1, 2, 100, 80}, RopePairs::kHalf, 49, 0, 8.0f), 0.25);
}

TEST_P(AttentionOpsTest, ARowsBitsDoNotDependOnTheChunk) {
  for (const FlashShape& shape : {FlashShape{64, 2, 3, 0, 150}, {256, 1, 2, 0, 90}}) {
    const Problem problem(shape, RopePairs::kHalf, 53);
    const auto whole = problem.run(ops(), 0, shape.rows);
    const int64_t row_floats = int64_t{1} * shape.kv_heads * shape.group * shape.head_dim;
    int64_t done = 0;
    for (const int64_t rows : {int64_t{1}, int64_t{30}, shape.rows - 31}) {
      const auto part = problem.run(ops(), done, rows);
      ASSERT_EQ(std::memcmp(part.data(), whole.data() + done * row_floats, part.size() * 4), 0)
          << "D " << shape.head_dim << " rows from " << done;
      done += rows;
    }
  }
}

}  // namespace
}  // namespace akv::kernels
