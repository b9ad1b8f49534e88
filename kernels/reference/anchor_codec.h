// The AnchorKV codec in double, one plain function per equation: the oracle of the fast operators
// and of codec_check. Written for reading; slow, allocates.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/rope.h"
#include "kernels/types.h"
#include "kernels/window_attention.h"

namespace akv::kernels::reference {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

double dot(const Row& a, const Row& b);
Row to_row(const bf16* x, int dim);

// R_t x and R_t^T x, angles in double.
Row rope(const RopeParams& params, const Row& x, int64_t position, bool back = false);

// Attention of one query over keys that are post-RoPE already.
struct Attention {
  Row alpha;  // [visible]
  Row y;      // [D]
};
Attention attend(const Row& q, const Rows& k_rot, const Rows& v, int64_t visible);

// One KV head's observation (section 2): K, V in double, alpha and y of the m queries, the mean of
// alpha over them and the pooled score (Eq. 14).
struct Observed {
  Rows k, v, k_rot;  // [S][D]
  Rows q;            // [m][D]
  std::vector<Attention> queries;
  Row score;  // [P]
};
Observed observe(const ObservedHead& head, const RopeParams& params, int kernel);

// Positions of all k anchors, ascending, the window last (section 2).
std::vector<int32_t> select(const Row& score, int64_t tokens, int window, int k, int rho_percent,
                            uint64_t seed);

// Eq. 1 and 2 for one side. gamma is the stored value, exact_gamma the quotient before rounding.
struct Assigned {
  std::vector<int> slot;
  Row gamma, exact_gamma;
  Rows residual;
};
Assigned assign(const Rows& x, const std::vector<int32_t>& anchors, int64_t prefix, bool log8);
// |<x, a>| / |a|: what Eq. 1 maximises for a given x; -1 for a zero anchor.
double closeness(const Row& x, const Row& anchor);

// Eq. 6, or the pooled utility of section 9 with its mean over `pool` positions. -1 on anchors.
struct Utilities {
  Row key, value;  // [P]
};
Utilities utilities(const Observed& o, const RopeParams& params, const Assigned& key,
                    const Assigned& value, const std::vector<int32_t>& anchors, bool eq6, int pool);

// U x and U^T x (section 3).
Row rotate(const Row& x, uint64_t seed);
Row rotate_back(const Row& x, uint64_t seed);

// Codes and scale of a rotated residual, before the scale is rounded for storage.
struct Quantised {
  std::vector<int> codes;
  double scale = 0;
};
Quantised quantise(const Row& x, int bits, bool least_squares);
// The scale that minimises |x - scale * level(codes)|^2.
double least_squares_scale(const Row& x, const std::vector<int>& codes, int bits);
double level(int code, int bits);
// The threshold below code c (c >= 1).
double threshold(int c, int bits);

}  // namespace akv::kernels::reference
