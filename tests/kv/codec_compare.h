// Compares the codec that the engine uses with a golden case, quantity by quantity, under the
// tolerances of golden/README.md.
#pragma once

#include <string>
#include <vector>

#include "kernels/parallel.h"
#include "tests/kv/golden_case.h"

namespace akv::kv::testing {

struct Finding {
  std::string profile;
  std::string quantity;
  double deviation = 0;  // the largest, in the quantity's own measure; `note` says which
  bool ok = true;
  std::string note;
};

// Every quantity of every profile of the case, full attention last. Two encodes per profile: one
// free, which decides `anchors` and the record's checks, and one that follows the file's own
// anchors, slots, coefficients and widths, so that a tolerated flip of one choice does not hide the
// next quantity.
std::vector<Finding> compare_case(const GoldenCase& c, const Parallel& parallel);

}  // namespace akv::kv::testing
