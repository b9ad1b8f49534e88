// The ranking against a plain sort.
#include "common/kv/allocation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <tuple>

namespace akv::kv {
namespace {

std::vector<uint8_t> by_sorting(const std::vector<double>& utility, const SideBudget& b) {
  struct Increment {
    double priority;
    int second;
    size_t token;
  };
  std::vector<Increment> all;
  for (size_t i = 0; i < utility.size(); ++i) {
    if (!(utility[i] > 0)) continue;
    all.push_back({priority2(utility[i], b), 0, i});
    if (b.widths == Widths::k2And4) all.push_back({priority4(utility[i], b), 1, i});
  }
  std::sort(all.begin(), all.end(), [](const Increment& x, const Increment& y) {
    if (x.priority != y.priority) return x.priority > y.priority;
    return std::tie(x.second, x.token) < std::tie(y.second, y.token);
  });
  std::vector<uint8_t> bits(utility.size(), 0);
  uint64_t left = b.bytes;
  for (const Increment& i : all) {
    const uint64_t cost = i.second ? b.cost4 : b.cost2;
    if (cost > left) break;
    left -= cost;
    bits[i.token] = static_cast<uint8_t>(bits[i.token] + 2);
  }
  return bits;
}

TEST(Allocation, EqualsTheSortedPrefix) {
  std::mt19937 rng(5);
  std::lognormal_distribution<double> spread(0, 6);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> utility(300);
    for (double& u : utility) {
      const uint32_t kind = rng() % 10;
      u = kind == 0 ? -1.0 : kind == 1 ? 0.0 : kind < 5 ? double(1 + rng() % 3) : spread(rng);
    }
    SideBudget b;
    b.widths = round % 2 ? Widths::k2And4 : Widths::k2;
    b.cost2 = 18;
    b.cost4 = 16;
    b.bytes = rng() % 12000;
    std::vector<uint8_t> bits(utility.size());
    allocate_side(utility, b, bits);
    EXPECT_EQ(bits, by_sorting(utility, b)) << round;
  }
}

TEST(Allocation, NothingForNothing) {
  SideBudget b{Widths::k2And4, 1000, 18, 16};
  std::vector<uint8_t> bits(4, 9);
  allocate_side(std::vector<double>{-1, 0, -1, 0}, b, bits);
  EXPECT_EQ(bits, (std::vector<uint8_t>{0, 0, 0, 0}));
  b.bytes = 17;
  allocate_side(std::vector<double>{1, 2, 3, 1e300}, b, bits);
  EXPECT_EQ(bits, (std::vector<uint8_t>{0, 0, 0, 0}));
  b.bytes = 1000;
  allocate_side(std::vector<double>{1, 2, 1e-300, 1e300}, b, bits);
  EXPECT_EQ(bits, (std::vector<uint8_t>{4, 4, 4, 4}));
}

}  // namespace
}  // namespace akv::kv
