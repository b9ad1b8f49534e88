#include "common/kv/allocation.h"

#include <algorithm>
#include <bit>

#include "kernels/codec.h"

namespace akv::kv {
namespace {

// Positive doubles order as their bits do: the exponent and five bits of mantissa make a bin.
constexpr int kBins = 1 << 16;
int bin_of(double priority) { return static_cast<int>(std::bit_cast<uint64_t>(priority) >> 47); }

// An increment in the bin where the budget ends.
struct Increment {
  double priority;
  bool second;
  uint32_t token;
};

bool ranks_before(const Increment& a, const Increment& b) {
  if (a.priority != b.priority) return a.priority > b.priority;
  if (a.second != b.second) return b.second;
  return a.token < b.token;
}

// Calls fn(priority, second, token, cost) for every increment on offer.
template <class Fn>
void for_each_increment(std::span<const double> utility, const SideBudget& budget, Fn&& fn) {
  const bool two = budget.widths == Widths::k2And4;
  for (size_t i = 0; i < utility.size(); ++i) {
    if (!(utility[i] > 0)) continue;
    fn(priority2(utility[i], budget), false, static_cast<uint32_t>(i), budget.cost2);
    if (two) fn(priority4(utility[i], budget), true, static_cast<uint32_t>(i), budget.cost4);
  }
}

}  // namespace

SideBudget side_budget(const StatePlan& plan, bool value_side) {
  SideBudget b;
  b.widths = plan.options.widths;
  b.bytes = value_side ? plan.layer.value_bytes : plan.layer.key_bytes;
  b.cost2 = residual_cost(plan.shape.head_dim, plan.options, value_side);
  b.cost4 = plan.shape.head_dim / 4;
  return b;
}

double priority2(double utility, const SideBudget& budget) {
  return utility * (1 - kernels::kEta2) / static_cast<double>(budget.cost2);
}
double priority4(double utility, const SideBudget& budget) {
  return utility * (kernels::kEta2 - kernels::kEta4) / static_cast<double>(budget.cost4);
}

void allocate_side(std::span<const double> utility, const SideBudget& budget,
                   std::span<uint8_t> bits) {
  std::fill(bits.begin(), bits.end(), uint8_t{0});
  std::vector<uint64_t> cost_of_bin(kBins, 0);
  for_each_increment(utility, budget, [&](double p, bool, uint32_t, uint64_t cost) {
    cost_of_bin[bin_of(p)] += cost;
  });
  uint64_t left = budget.bytes;
  int cut = kBins - 1;
  while (cut >= 0 && cost_of_bin[cut] <= left) left -= cost_of_bin[cut--];
  // A token's second increment never ranks above its first, so each just adds two bits.
  std::vector<Increment> border;
  for_each_increment(utility, budget, [&](double p, bool second, uint32_t token, uint64_t) {
    const int bin = bin_of(p);
    if (bin > cut) bits[token] = static_cast<uint8_t>(bits[token] + 2);
    if (bin == cut) border.push_back({p, second, token});
  });
  std::sort(border.begin(), border.end(), ranks_before);
  for (const Increment& inc : border) {
    const uint64_t cost = inc.second ? budget.cost4 : budget.cost2;
    if (cost > left) break;
    left -= cost;
    bits[inc.token] = static_cast<uint8_t>(bits[inc.token] + 2);
  }
}

}  // namespace akv::kv
