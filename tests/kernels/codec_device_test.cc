// The codec's device operators one by one, on inputs that are all ties and borders, against the
// CPU's: here the results are equal, not near.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "common/kv/allocation.h"
#include "kernels/anchor_assign.h"
#include "kernels/anchor_select.h"
#include "kernels/codec.h"
#include "kernels/cuda/codec.h"
#include "kernels/window_attention.h"
#include "tests/cuda_shim/device_array.h"

namespace akv::kernels {
namespace {

using cuda_shim_test::DeviceArray;

constexpr DeviceStream kStream{};

constexpr int kSelectHeads = 2;
constexpr int kSelectWindow = 32;

// Positions of head h as the CPU selects them from `score`.
std::vector<int32_t> selected(const cuda::SelectParams& p, const float* score, int64_t prefix,
                              int h) {
  const int chosen = p.k - kSelectWindow, top = p.rho_percent * chosen / 100;
  std::vector<int32_t> order, positions(p.k);
  select_anchors(score, prefix, top, chosen - top, anchor_seed(p.seed, p.layer_index, p.first + h),
                 order, positions.data());
  for (int w = 0; w < kSelectWindow; ++w) {
    positions[chosen + w] = static_cast<int32_t>(prefix + w);
  }
  return positions;
}

// Weights of `levels` different values.
void expect_select(int64_t prefix, int rho, int levels, std::mt19937& rng) {
  std::vector<float> mean(kSelectHeads * prefix);
  for (float& x : mean) x = static_cast<float>(rng() % levels) / static_cast<float>(levels);
  cuda::CodecLayer layer;
  layer.tokens = prefix + kSelectWindow;
  layer.window = kSelectWindow;
  cuda::SelectParams p;
  p.first = 3;
  p.heads = kSelectHeads;
  p.kernel = levels == 5 ? 1 : 7;
  p.k = static_cast<int>(prefix / 4) + kSelectWindow;
  p.rho_percent = rho;
  p.layer_index = 11;
  const DeviceArray<float> mean_d(mean), score(mean.size());
  const DeviceArray<int32_t> positions(kSelectHeads * p.k), scratch(kSelectHeads * 2 * p.k);
  p.mean_alpha = mean_d.data();
  p.score = score.data();
  p.positions = positions.data();
  p.scratch = scratch.data();
  cuda::select_anchors(layer, p, kStream);
  const std::vector<int32_t> got = positions.read();
  const std::vector<float> got_score = score.read();
  for (int h = 0; h < kSelectHeads; ++h) {
    std::vector<float> want(prefix);
    pool_scores(mean.data() + h * prefix, prefix, p.kernel, want.data());
    EXPECT_TRUE(std::equal(want.begin(), want.end(), got_score.begin() + h * prefix));
    const std::vector<int32_t> chosen = selected(p, want.data(), prefix, h);
    EXPECT_TRUE(std::equal(chosen.begin(), chosen.end(), got.begin() + h * p.k))
        << prefix << " " << rho << " " << levels << " head " << h;
  }
}

TEST(CodecDevice, SelectWithTiedScores) {
  std::mt19937 rng(5);
  for (const int64_t prefix : {int64_t{80}, int64_t{1000}, int64_t{3111}}) {
    for (const int rho : {0, 70, 100}) {
      for (const int levels : {1, 5, 1000000}) expect_select(prefix, rho, levels, rng);
    }
  }
}

// Utilities with many exact ties, zeros, anchors, and values at the ends of what a double holds.
std::vector<double> tied_utilities(size_t n, int levels, std::mt19937& rng) {
  std::vector<double> u(n);
  for (double& x : u) {
    const uint32_t kind = rng() % 64;
    x = static_cast<double>(1 + rng() % levels) * 1e-9;
    if (kind < 4) x = -1;
    if (kind == 4) x = 0;
    if (kind == 5) x = std::ldexp(1.0, static_cast<int>(rng() % 1900) - 1000);
    if (kind == 6) x = std::numeric_limits<double>::denorm_min();
  }
  return u;
}

constexpr int kHeads = 3;

// What allocate_residuals leaves, on the host.
struct Allocated {
  std::vector<uint64_t> masks;
  std::vector<uint32_t> prefixes, first, count;
  std::vector<int32_t> offsets;
};

Allocated allocate(cuda::AllocateParams p, const std::vector<double>& utility) {
  const size_t words = static_cast<size_t>(p.prefix + 63) / 64 * (p.two_widths ? 2 : 1);
  const DeviceArray<double> utility_d(utility);
  const DeviceArray<uint64_t> masks(2 * kHeads * words);
  const DeviceArray<uint32_t> prefixes(2 * kHeads * words), first(4 * kHeads), count(4 * kHeads);
  const DeviceArray<int32_t> offsets(2 * (kHeads + 1));
  const DeviceArray<uint64_t> scratch(cuda::allocate_scratch_bytes(kHeads, p.prefix) / 8 + 1);
  p.utility = utility_d.data();
  p.masks = masks.data();
  p.prefixes = prefixes.data();
  p.head_offsets = offsets.data();
  p.first = first.data();
  p.count = count.data();
  p.scratch = scratch.data();
  cuda::allocate_residuals(p, kStream);
  return {masks.read(), prefixes.read(), first.read(), count.read(), offsets.read()};
}

// Tokens or words of one head whose width or counts are not those of `bits` [P]; `seen` counts the
// head's residuals of 2 and of 4 bits.
int wrong_entries(const Allocated& got, const cuda::AllocateParams& p, int side, int head,
                  const uint8_t* bits, uint32_t (&seen)[2]) {
  const int64_t words = (p.prefix + 63) / 64;
  const int64_t at = (side * kHeads + head) * words * (p.two_widths ? 2 : 1);
  int wrong = 0;
  for (int64_t t = 0; t < words * 64; ++t) {
    const int64_t word = at + t / 64;
    const uint64_t bit = uint64_t{1} << (t % 64);
    if (t % 64 == 0) {
      wrong += got.prefixes[word] != seen[0];
      if (p.two_widths) wrong += got.prefixes[word + words] != seen[1];
    }
    const bool any = (got.masks[word] & bit) != 0;
    const bool four = p.two_widths && (got.masks[word + words] & bit) != 0;
    const int want = t < p.prefix ? bits[t] : 0;
    wrong += (four ? 4 : any ? 2 : 0) != want;
    if (want != 0) ++seen[want == 4];
  }
  return wrong;
}

void expect_side(const Allocated& got, const cuda::AllocateParams& p, int side,
                 const std::vector<uint8_t>& bits) {
  uint32_t total[2] = {0, 0};
  for (int h = 0; h < kHeads; ++h) {
    const int at = (side * kHeads + h) * 2;
    EXPECT_EQ(got.offsets[side * (kHeads + 1) + h], static_cast<int32_t>(total[0] + total[1]));
    uint32_t seen[2] = {0, 0};
    EXPECT_EQ(wrong_entries(got, p, side, h, bits.data() + h * p.prefix, seen), 0) << "head " << h;
    for (int wide : {0, 1}) {
      EXPECT_EQ(got.first[at + wide], total[wide]);
      EXPECT_EQ(got.count[at + wide], seen[wide]);
      total[wide] += seen[wide];
    }
  }
  EXPECT_EQ(got.offsets[side * (kHeads + 1) + kHeads], static_cast<int32_t>(total[0] + total[1]));
}

void expect_allocation(int64_t prefix, bool two, int levels, double share, std::mt19937& rng) {
  const size_t n = static_cast<size_t>(kHeads * prefix);
  const std::vector<double> utility = tied_utilities(2 * n, levels, rng);
  cuda::AllocateParams p;
  p.kv_heads = kHeads;
  p.prefix = prefix;
  p.two_widths = two;
  p.cost4 = 16;
  kv::SideBudget budget[2];
  for (int side : {0, 1}) {
    budget[side].widths = two ? kv::Widths::k2And4 : kv::Widths::k2;
    budget[side].cost2 = p.cost2[side] = side == 0 ? 18 : 21;
    budget[side].cost4 = p.cost4;
    budget[side].bytes = p.bytes[side] = static_cast<uint64_t>(share * static_cast<double>(n) * 34);
  }
  const Allocated got = allocate(p, utility);
  for (int side : {0, 1}) {
    std::vector<uint8_t> bits(n);
    kv::allocate_side({utility.data() + side * n, n}, budget[side], bits);
    SCOPED_TRACE(testing::Message() << "P " << prefix << ", two widths " << two << ", " << levels
                                    << " levels, share " << share << ", side " << side);
    expect_side(got, p, side, bits);
  }
}

TEST(CodecDevice, AllocateWithTiedUtilities) {
  std::mt19937 rng(6);
  for (const int64_t prefix : {int64_t{64}, int64_t{199}, int64_t{3000}}) {
    for (const bool two : {false, true}) {
      for (const int levels : {1, 7, 100000}) {
        for (const double share : {0.0, 0.1, 0.371, 0.9, 2.0}) {
          expect_allocation(prefix, two, levels, share, rng);
        }
      }
    }
  }
}

// Rows that tie exactly without being equal (negated, times powers of two), nearly tie, repeat, are
// zero; and coefficients from far below the smallest log8 value to above the largest.
std::vector<bf16> tied_rows(int64_t tokens, int dim, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> centres(5 * dim);
  for (float& x : centres) x = normal(rng);
  std::vector<bf16> rows(tokens * dim);
  for (int64_t t = 0; t < tokens; ++t) {
    const float* centre = centres.data() + rng() % 5 * dim;
    const float scale = std::ldexp(rng() % 2 != 0 ? 1.0f : -1.0f, static_cast<int>(rng() % 12) - 6);
    const float noise = t % 3 == 0 ? 0.0f : t % 3 == 1 ? 1e-3f : 0.7f;
    for (int i = 0; i < dim; ++i) {
      rows[t * dim + i] = to_bf16(scale * (centre[i] + noise * normal(rng)));
      if (t % 29 == 7) rows[t * dim + i] = bf16{};
    }
  }
  return rows;
}

// One KV head's keys and values and their anchors.
struct AssignCase {
  int dim, window;
  int64_t tokens;
  bool log8;
  std::vector<bf16> rows[2];
  std::vector<int32_t> positions;
  int64_t prefix() const { return tokens - window; }
  int count() const { return static_cast<int>(positions.size()); }
};

AssignCase make_assign_case(int dim, bool log8, std::mt19937& rng) {
  AssignCase c{dim, 8, 300, log8, {}, {}};
  for (auto& rows : c.rows) rows = tied_rows(c.tokens, dim, rng);
  for (int32_t t = 0; t < c.prefix(); t += 1 + static_cast<int32_t>(rng() % 7)) {
    c.positions.push_back(t);
  }
  for (int w = 0; w < c.window; ++w) c.positions.push_back(static_cast<int32_t>(c.prefix() + w));
  return c;
}

struct Assigned {
  std::vector<uint16_t> slot, slot_out;
  std::vector<float> gamma, residual2;
};

Assigned assign_on_device(const AssignCase& c) {
  const int padded = cuda::padded_anchors(c.count()), sides = 2 * static_cast<int>(c.prefix());
  const DeviceArray<bf16> k(c.rows[0]), v(c.rows[1]), rows(2 * padded * c.dim);
  const DeviceArray<int32_t> positions(c.positions);
  const DeviceArray<float> inv_norm(2 * padded), gamma(sides), residual2(sides);
  const DeviceArray<double> norm2(2 * padded);
  const DeviceArray<uint64_t> hash(2 * padded);
  const DeviceArray<uint16_t> slot(sides), slots(sides), gammas(sides);
  const DeviceArray<uint32_t> faults(std::vector<uint32_t>{0});
  cuda::CodecLayer layer;
  layer.tokens = c.tokens;
  layer.window = c.window;
  layer.kv_heads = layer.group = 1;
  layer.head_dim = c.dim;
  layer.k = k.data();
  layer.v = v.data();
  layer.faults = faults.data();
  const cuda::LayerAnchors anchors{0,
                                   1,
                                   c.count(),
                                   padded,
                                   positions.data(),
                                   rows.data(),
                                   inv_norm.data(),
                                   norm2.data(),
                                   hash.data()};
  cuda::load_anchors(layer, anchors, kStream);
  cuda::assign_anchors(
      layer, anchors,
      {slot.data(), gamma.data(), residual2.data(), slots.data(), gammas.data(), 2, c.log8},
      kStream);
  EXPECT_EQ(faults.read()[0], 0u);
  return {slot.read(), slots.read(), gamma.read(), residual2.read()};
}

Assigned assign_on_cpu(const AssignCase& c, int side) {
  AnchorRows rows;
  load_anchors(c.rows[side].data(), c.dim, c.positions.data(), c.count(), c.dim, rows);
  const size_t prefix = static_cast<size_t>(c.prefix());
  Assigned out{std::vector<uint16_t>(prefix), std::vector<uint16_t>(prefix),
               std::vector<float>(prefix), std::vector<float>(prefix)};
  const AssignParams p{c.rows[side].data(), c.dim, c.prefix(), &rows, c.positions.data(), c.log8};
  std::vector<float> scratch(assign_scratch_floats(c.dim, c.count()));
  for (int64_t chunk = 0; chunk < codec_chunks(c.prefix()); ++chunk) {
    assign_chunk(p, {out.slot.data(), out.slot_out.data(), out.gamma.data(), out.residual2.data()},
                 chunk, scratch.data());
  }
  return out;
}

TEST(CodecDevice, AssignWithTiedAnchors) {
  std::mt19937 rng(7);
  for (const int dim : {64, 112}) {
    for (const bool log8 : {true, false}) {
      const AssignCase c = make_assign_case(dim, log8, rng);
      const Assigned got = assign_on_device(c);
      for (int side : {0, 1}) {
        const Assigned want = assign_on_cpu(c, side);
        for (int64_t t = 0; t < c.prefix(); ++t) {
          const int64_t at = side * c.prefix() + t;
          ASSERT_EQ(got.slot[at], want.slot[t]) << dim << " side " << side << " token " << t;
          EXPECT_EQ(got.slot_out[at], want.slot[t]);
          EXPECT_EQ(got.gamma[at], want.gamma[t]) << t;
          EXPECT_NEAR(got.residual2[at], want.residual2[t], 1e-5 * want.residual2[t]) << t;
        }
      }
    }
  }
}

}  // namespace
}  // namespace akv::kernels
