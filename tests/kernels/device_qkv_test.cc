// What exists on a device only: the fused finish of an attention layer's products, gathering, and
// bf16 outputs.
#include <cmath>
#include <optional>

#include "kernels/activation.h"
#include "kernels/compressed_view.h"
#include "kernels/finish_qkv.h"
#include "kernels/norm.h"
#include "kernels/reference/model_ops.h"
#include "tests/kernels/device_array.h"
#include "tests/kernels/device_rope.h"
#include "tests/kernels/support.h"

namespace akv::kernels {
namespace {

using Floats = std::vector<float>;

struct QkvShape {
  int dim, rope_dim, heads, kv_heads;
  int64_t rows;
  RopePairs pairs;
  bool bias, norm;
};

// One layer's products, and what they become, by the separate operators in double.
struct Layer {
  QkvShape s;
  RopeParams params;
  std::vector<int64_t> positions;
  Floats q, k, v, bq, bk, bv, q_norm, k_norm;

  explicit Layer(const QkvShape& shape) : s(shape) {
    params.head_dim = s.dim;
    params.rope_dim = s.rope_dim;
    params.pairs = s.pairs;
    for (int64_t r = 0; r < s.rows; ++r) positions.push_back(5 + 37 * r);
    q = random_floats(size(s.heads) * static_cast<size_t>(s.rows), 61);
    k = random_floats(size(s.kv_heads) * static_cast<size_t>(s.rows), 62);
    v = random_floats(size(s.kv_heads) * static_cast<size_t>(s.rows), 63);
    bq = random_floats(size(s.heads), 64);
    bk = random_floats(size(s.kv_heads), 65);
    bv = random_floats(size(s.kv_heads), 66);
    q_norm = random_floats(size(1), 67);
    k_norm = random_floats(size(1), 68);
  }
  size_t size(int heads) const { return static_cast<size_t>(heads) * static_cast<size_t>(s.dim); }

  // A product after bias and, where given, norm; then turned where `turn`.
  std::vector<double> expected(const Floats& x, const Floats& bias, const Floats* norm, int heads,
                               bool turn) const {
    Floats biased = x;
    for (size_t i = 0; s.bias && i < x.size(); ++i) biased[i] += bias[i % size(heads)];
    std::vector<double> out(biased.begin(), biased.end());
    const auto vectors = static_cast<int64_t>(x.size() / size(1));
    if (s.norm && norm != nullptr) {
      reference::rmsnorm(biased.data(), vectors, s.dim, norm->data(), 1e-5, out.data());
    }
    for (int64_t i = 0; turn && i < vectors; ++i) {
      const std::vector<double> in(out.begin() + i * s.dim, out.begin() + (i + 1) * s.dim);
      reference::rope(params, in.data(), positions[static_cast<size_t>(i / heads)],
                      out.data() + i * s.dim);
    }
    return out;
  }
};

void expect_rounded(const std::vector<bf16>& got, const std::vector<double>& want,
                    const char* what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(to_float(got[i]), want[i], 1e-5 + std::abs(want[i]) / 250) << what << " " << i;
  }
}

void expect_near(const Floats& got, const std::vector<double>& want, const char* what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], 1e-5 * (1 + std::abs(want[i]))) << what << " " << i;
  }
}

// The layer's inputs on the device.
struct DeviceLayer {
  DeviceArray<float> q, k, v, bq, bk, bv, q_norm, k_norm;
  DeviceRopeTable table;
  DeviceArray<int64_t> positions;

  DeviceLayer(const Layer& l, const RopeTable& rope)
      : q(l.q),
        k(l.k),
        v(l.v),
        bq(l.bq),
        bk(l.bk),
        bv(l.bv),
        q_norm(l.q_norm),
        k_norm(l.k_norm),
        table(rope, l.positions),
        positions(table.places()) {}

  cuda::FinishQkvParams params(const Layer& l) {
    cuda::FinishQkvParams p;
    p.q = q.data(), p.k = k.data(), p.v = v.data();
    if (l.s.bias) p.bq = bq.data(), p.bk = bk.data(), p.bv = bv.data();
    if (l.s.norm) p.q_norm = q_norm.data(), p.k_norm = k_norm.data();
    p.eps = 1e-5f;
    p.rope = table.view();
    p.positions = positions.data();
    p.rows = l.s.rows;
    p.heads = l.s.heads;
    p.kv_heads = l.s.kv_heads;
    return p;
  }
};

const QkvShape kShapes[] = {
    {64, 0, 9, 3, 5, RopePairs::kInterleaved, false, false},
    {128, 0, 4, 2, 3, RopePairs::kHalf, true, true},
    {96, 48, 3, 1, 2, RopePairs::kHalf, true, false},
    {80, 40, 2, 2, 3, RopePairs::kInterleaved, false, true},
    {256, 64, 2, 1, 2, RopePairs::kHalf, false, true},
};

TEST(FinishQkvTest, MatchesTheSeparateOperators) {
  for (const QkvShape& shape : kShapes) {
    const Layer layer(shape);
    const RopeTable rope(layer.params);
    DeviceLayer device(layer, rope);
    DeviceArray<float> q_f32(layer.q.size());
    DeviceArray<bf16> q16(layer.q.size()), k_pre(layer.k.size()), k_rot(layer.k.size()),
        v16(layer.v.size());
    auto p = device.params(layer);
    p.q_f32 = q_f32.data();
    p.q_bf16 = q16.data();
    p.k_pre = k_pre.data();
    p.k_rot = k_rot.data();
    p.v_bf16 = v16.data();
    cuda::finish_qkv(p, {});
    const auto q = layer.expected(layer.q, layer.bq, &layer.q_norm, shape.heads, true);
    expect_near(q_f32.read(), q, "q");
    expect_rounded(q16.read(), q, "q bf16");
    const auto key = [&](bool turn) {
      return layer.expected(layer.k, layer.bk, &layer.k_norm, shape.kv_heads, turn);
    };
    expect_rounded(k_pre.read(), key(false), "k before");
    expect_rounded(k_rot.read(), key(true), "k after");
    expect_rounded(v16.read(), layer.expected(layer.v, layer.bv, nullptr, shape.kv_heads, false),
                   "v");
  }
}

TEST(FinishQkvTest, QueriesInPlaceAtConsecutivePositions) {
  Layer layer({64, 0, 3, 1, 4, RopePairs::kHalf, true, false});
  for (size_t i = 0; i < layer.positions.size(); ++i) {
    layer.positions[i] = static_cast<int64_t>(i);
  }
  const RopeTable rope(layer.params);
  DeviceLayer device(layer, rope);
  auto p = device.params(layer);
  p.positions = nullptr;
  p.q_f32 = device.q.data();
  cuda::finish_qkv(p, {});
  expect_near(device.q.read(), layer.expected(layer.q, layer.bq, nullptr, 3, true), "q");
}

// Rows of two sessions, one of them padding: only the two live rows' places in their pages change.
TEST(FinishQkvTest, StoresIntoSuffixPages) {
  const Layer layer({64, 0, 4, 2, 3, RopePairs::kHalf, false, false});
  const RopeTable rope(layer.params);
  DeviceLayer device(layer, rope);
  const size_t kv_dim = layer.size(2), part = kSuffixPageTokens * kv_dim;
  const size_t layer_offset = 2 * part;  // the second layer of a page of two
  DeviceArray<bf16> first(4 * part), second(4 * part);
  DeviceArray<bf16*> pages(std::vector<bf16*>{first.data(), nullptr, second.data()});
  DeviceArray<int32_t> slots(std::vector<int32_t>{63, -1, 0});
  auto p = device.params(layer);
  p.pages = pages.data();
  p.slots = slots.data();
  p.layer_offset = static_cast<int64_t>(layer_offset);
  cuda::finish_qkv(p, {});
  const auto keys = layer.expected(layer.k, layer.bk, nullptr, 2, true);
  const auto values = layer.expected(layer.v, layer.bv, nullptr, 2, false);
  const auto check = [&](const std::vector<bf16>& page, size_t row, size_t slot) {
    for (size_t i = 0; i < page.size(); ++i) {
      const size_t key_at = layer_offset + slot * kv_dim, value_at = key_at + part;
      if (i >= key_at && i < key_at + kv_dim) {
        ASSERT_NEAR(to_float(page[i]), keys[row * kv_dim + i - key_at], 0.02) << i;
      } else if (i >= value_at && i < value_at + kv_dim) {
        ASSERT_NEAR(to_float(page[i]), values[row * kv_dim + i - value_at], 0.02) << i;
      } else {
        ASSERT_EQ(page[i].bits, 0xffff) << i;  // untouched
      }
    }
  };
  check(first.read(), 0, 63);
  check(second.read(), 2, 0);
}

TEST(DeviceOnlyTest, GathersRows) {
  const auto x = random_floats(7 * 33, 71);
  DeviceArray<float> in(x), out(3 * 33);
  DeviceArray<int32_t> rows(std::vector<int32_t>{6, 0, 3});
  cuda::gather_rows(in.data(), rows.data(), 3, 33, out.data(), {});
  const auto got = out.read();
  for (size_t i = 0; i < 33; ++i) {
    ASSERT_EQ(got[i], x[6 * 33 + i]);
    ASSERT_EQ(got[33 + i], x[i]);
    ASSERT_EQ(got[66 + i], x[3 * 33 + i]);
  }
}

// The bf16 forms are the f32 forms, rounded once.
TEST(DeviceOnlyTest, Bf16OutputsAreTheF32OnesRounded) {
  for (const int dim : {64, 67, 1024}) {
    const auto n = static_cast<size_t>(3 * dim);
    DeviceArray<float> x(random_floats(n, 72)), y(random_floats(n, 73)),
        weight(random_floats(static_cast<size_t>(dim), 74)), wide(n);
    DeviceArray<bf16> narrow(n);
    const auto expect_equal = [&](const char* what) {
      const auto f32 = wide.read();
      const auto b16 = narrow.read();
      for (size_t i = 0; i < n; ++i) ASSERT_EQ(b16[i].bits, to_bf16(f32[i]).bits) << what << i;
    };
    cuda::rmsnorm(x.data(), 3, dim, weight.data(), 1e-5f, wide.data(), {});
    cuda::rmsnorm(x.data(), 3, dim, weight.data(), 1e-5f, narrow.data(), {});
    expect_equal("rmsnorm");
    cuda::silu_mul(x.data(), y.data(), static_cast<int64_t>(n), wide.data(), {});
    cuda::silu_mul(x.data(), y.data(), static_cast<int64_t>(n), narrow.data(), {});
    expect_equal("silu_mul");
  }
}

}  // namespace
}  // namespace akv::kernels
