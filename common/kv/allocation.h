// Which residuals are stored, and how wide: the ranking of one side of a layer over all its KV
// heads (anchorkv.md sections 4 and 9).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/kv/plan.h"

namespace akv::kv {

struct SideBudget {
  Widths widths = Widths::k2;
  uint64_t bytes = 0;  // LayerPlan::key_bytes or value_bytes
  uint64_t cost2 = 0;  // of none -> 2 bits: residual_cost()
  uint64_t cost4 = 0;  // of 2 -> 4 bits: D/4
};
SideBudget side_budget(const StatePlan& plan, bool value_side);

// utility: [H * P], heads one after the other; values that are not above 0 (anchors are -1) get
// nothing. bits: [H * P], set to 0, 2 or 4. With Widths::k2 the top bytes / cost2 utilities are
// taken, with k2And4 the longest prefix of all increments by falling priority whose cost fits
// (ties: first increments, lower head, lower position). Linear in H * P but for one histogram bin.
void allocate_side(std::span<const double> utility, const SideBudget& budget,
                   std::span<uint8_t> bits);

// The priorities of a token's two increments.
double priority2(double utility, const SideBudget& budget);
double priority4(double utility, const SideBudget& budget);

}  // namespace akv::kv
