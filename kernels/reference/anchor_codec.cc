#include "kernels/reference/anchor_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "kernels/codec.h"

namespace akv::kernels::reference {
namespace {

double norm2(const Row& x) { return dot(x, x); }

// The signs of U's diagonal times B^-1/2.
Row diagonal(size_t dim, uint64_t seed) {
  const int block = hadamard_block(static_cast<int>(dim));
  SplitMix64 rng(seed);
  Row d(dim);
  for (double& s : d) s = ((rng.next() >> 63) != 0 ? -1.0 : 1.0) / std::sqrt(block);
  return d;
}

// Blocks of Hadamard in natural order: entry (i, j) is -1 to the number of common bits.
Row hadamard(const Row& x) {
  const size_t block = static_cast<size_t>(hadamard_block(static_cast<int>(x.size())));
  Row out(x.size(), 0.0);
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t base = i / block * block;
    for (size_t j = 0; j < block; ++j) {
      const bool minus = std::popcount((i - base) & j) % 2 == 1;
      out[i] += minus ? -x[base + j] : x[base + j];
    }
  }
  return out;
}

double stored_gamma(double gamma, bool log8) {
  if (!log8) return to_float(to_bf16(static_cast<float>(gamma)));
  const double n = std::floor(16 * (std::log2(std::fabs(gamma)) + 5) + 0.5) + 1;
  if (!(n >= 1)) return 0;
  const double value = std::exp2((std::min(n, 127.0) - 1) / 16 - 5);
  return gamma < 0 ? -value : value;
}

int code_of(double u, int bits) {
  int code = 0;
  while (code + 1 < (1 << bits) && u >= threshold(code + 1, bits)) ++code;
  return code;
}

std::vector<int> codes_of(const Row& x, double scale, int bits) {
  std::vector<int> codes;
  for (double v : x) codes.push_back(code_of(v / scale, bits));
  return codes;
}

// Mean of alpha over `pool` positions around t, zero outside [0, prefix).
double mean_around(const Row& alpha, int64_t t, int64_t prefix, int pool) {
  double sum = 0;
  for (int64_t i = t - pool / 2; i <= t + pool / 2; ++i) {
    if (i >= 0 && i < prefix) sum += alpha[static_cast<size_t>(i)];
  }
  return sum / pool;
}

}  // namespace

double dot(const Row& a, const Row& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

Row to_row(const bf16* x, int dim) {
  Row row;
  for (int i = 0; i < dim; ++i) row.push_back(to_float(x[i]));
  return row;
}

Row rope(const RopeParams& p, const Row& x, int64_t position, bool back) {
  Row out = x;
  const int dim = p.rope_dim == 0 ? p.head_dim : p.rope_dim;
  for (int j = 0; j < dim / 2; ++j) {
    double angle = static_cast<double>(position) * p.freq_scale * std::pow(p.base, -2.0 * j / dim);
    if (!p.freq_factors.empty()) angle /= p.freq_factors[static_cast<size_t>(j)];
    const double c = std::cos(angle), s = back ? -std::sin(angle) : std::sin(angle);
    const size_t a = static_cast<size_t>(p.pairs == RopePairs::kHalf ? j : 2 * j);
    const size_t b = static_cast<size_t>(p.pairs == RopePairs::kHalf ? j + dim / 2 : 2 * j + 1);
    out[a] = x[a] * c - x[b] * s;
    out[b] = x[a] * s + x[b] * c;
  }
  return out;
}

Attention attend(const Row& q, const Rows& k_rot, const Rows& v, int64_t visible) {
  Attention r;
  double top = -HUGE_VAL, total = 0;
  for (int64_t t = 0; t < visible; ++t) {
    r.alpha.push_back(dot(q, k_rot[static_cast<size_t>(t)]) / std::sqrt(double(q.size())));
    top = std::max(top, r.alpha.back());
  }
  for (double& a : r.alpha) total += (a = std::exp(a - top));
  r.y.assign(v[0].size(), 0.0);
  for (size_t t = 0; t < r.alpha.size(); ++t) {
    r.alpha[t] /= total;
    for (size_t i = 0; i < r.y.size(); ++i) r.y[i] += r.alpha[t] * v[t][i];
  }
  return r;
}

Observed observe(const ObservedHead& h, const RopeParams& params, int kernel) {
  Observed o;
  for (int64_t t = 0; t < h.tokens; ++t) {
    o.k.push_back(to_row(h.k + t * h.stride, h.head_dim));
    o.v.push_back(to_row(h.v + t * h.stride, h.head_dim));
    o.k_rot.push_back(rope(params, o.k.back(), t));
  }
  for (int w = 0; w < h.window; ++w) {
    for (int j = 0; j < h.group; ++j) {
      o.q.push_back(
          to_row(h.q + w * h.q_stride + static_cast<int64_t>(j) * h.head_dim, h.head_dim));
      o.queries.push_back(attend(o.q.back(), o.k_rot, o.v, h.prefix() + w + 1));
    }
  }
  Row mean(static_cast<size_t>(h.prefix()), 0.0);
  for (const Attention& a : o.queries) {
    for (size_t t = 0; t < mean.size(); ++t) mean[t] += a.alpha[t] / double(o.queries.size());
  }
  for (int64_t t = 0; t < h.prefix(); ++t) {
    o.score.push_back(mean_around(mean, t, h.prefix(), kernel));
  }
  return o;
}

std::vector<int32_t> select(const Row& score, int64_t tokens, int window, int k, int rho_percent,
                            uint64_t seed) {
  const int64_t prefix = tokens - window;
  const int top = rho_percent * (k - window) / 100;
  std::vector<int32_t> order(static_cast<size_t>(prefix));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return score[static_cast<size_t>(a)] > score[static_cast<size_t>(b)];
  });
  std::vector<int32_t> chosen(order.begin(), order.begin() + top);
  std::vector<int32_t> rest(order.begin() + top, order.end());
  std::sort(rest.begin(), rest.end());
  SplitMix64 rng(seed);
  for (size_t j = 0; j < static_cast<size_t>(k - window - top); ++j) {
    std::swap(rest[j], rest[j + rng.next() % (rest.size() - j)]);
    chosen.push_back(rest[j]);
  }
  for (int64_t t = prefix; t < tokens; ++t) chosen.push_back(static_cast<int32_t>(t));
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

double closeness(const Row& x, const Row& anchor) {
  const double n2 = norm2(anchor);
  return n2 > 0 ? std::fabs(dot(x, anchor)) / std::sqrt(n2) : -1.0;
}

Assigned assign(const Rows& x, const std::vector<int32_t>& anchors, int64_t prefix, bool log8) {
  Assigned out;
  for (int64_t t = 0; t < prefix; ++t) {
    const Row& row = x[static_cast<size_t>(t)];
    const auto own = std::find(anchors.begin(), anchors.end(), t);
    int slot = 0;
    double best = -1;
    for (size_t a = 0; norm2(row) > 0 && a < anchors.size(); ++a) {
      const double c = closeness(row, x[static_cast<size_t>(anchors[a])]);
      if (c > best) {
        best = c;
        slot = static_cast<int>(a);
      }
    }
    if (own != anchors.end()) slot = static_cast<int>(own - anchors.begin());
    const Row& anchor = x[static_cast<size_t>(anchors[static_cast<size_t>(slot)])];
    const double n2 = norm2(anchor);
    double exact = n2 > 0 ? dot(row, anchor) / n2 : 0.0;
    if (own != anchors.end()) exact = 1.0;
    const double gamma = stored_gamma(exact, log8);
    Row r = row;
    for (size_t i = 0; i < r.size(); ++i) r[i] -= gamma * anchor[i];
    out.slot.push_back(slot);
    out.exact_gamma.push_back(exact);
    out.gamma.push_back(gamma);
    out.residual.push_back(r);
  }
  return out;
}

Utilities utilities(const Observed& o, const RopeParams& params, const Assigned& key,
                    const Assigned& value, const std::vector<int32_t>& anchors, bool eq6,
                    int pool) {
  Utilities u;
  const int64_t prefix = static_cast<int64_t>(o.score.size());
  const double d = static_cast<double>(o.v[0].size()), m = static_cast<double>(o.queries.size());
  for (int64_t t = 0; t < prefix; ++t) {
    const size_t i = static_cast<size_t>(t);
    double uk = 0, uv = 0;
    const Row r_rot = rope(params, key.residual[i], t);
    for (size_t w = 0; w < o.queries.size(); ++w) {
      const double a =
          eq6 ? o.queries[w].alpha[i] : mean_around(o.queries[w].alpha, t, prefix, pool);
      const double rk2 = norm2(key.residual[i]);
      const double error =
          eq6 ? dot(o.q[w], r_rot) * dot(o.q[w], r_rot) / d : norm2(o.q[w]) * rk2 / (d * d);
      double distance2 = 0;
      for (size_t j = 0; j < o.v[i].size(); ++j) {
        const double diff = o.v[i][j] - o.queries[w].y[j];
        distance2 += diff * diff;
      }
      uk += a * a * error * distance2 / m;
      uv += a * a * norm2(value.residual[i]) / m;
    }
    const bool anchor = std::binary_search(anchors.begin(), anchors.end(), static_cast<int32_t>(t));
    u.key.push_back(anchor ? -1.0 : uk);
    u.value.push_back(anchor ? -1.0 : uv);
  }
  return u;
}

Row rotate(const Row& x, uint64_t seed) {
  const Row d = diagonal(x.size(), seed);
  Row y = x;
  for (size_t i = 0; i < y.size(); ++i) y[i] *= d[i];
  return hadamard(y);
}

Row rotate_back(const Row& x, uint64_t seed) {
  const Row d = diagonal(x.size(), seed);
  Row y = hadamard(x);
  for (size_t i = 0; i < y.size(); ++i) y[i] *= d[i];
  return y;
}

double level(int code, int bits) {
  return bits == 2 ? double(kLevels2[code]) : double(kLevels4[code]);
}
double threshold(int c, int bits) {
  return bits == 2 ? double(kThresholds2[c - 1]) : double(kThresholds4[c - 1]);
}

double least_squares_scale(const Row& x, const std::vector<int>& codes, int bits) {
  double cross = 0, square = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double l = level(codes[i], bits);
    cross += x[i] * l;
    square += l * l;
  }
  return cross / square;
}

Quantised quantise(const Row& x, int bits, bool least_squares) {
  Quantised q;
  const double n2 = norm2(x);
  if (n2 == 0) {
    q.codes = codes_of(x, 1.0, bits);
    return q;
  }
  if (!least_squares) {
    double top = 0;
    for (double v : x) top = std::max(top, std::fabs(v));
    q.scale = top / level((1 << bits) - 1, bits);
    q.codes = codes_of(x, q.scale, bits);
    return q;
  }
  q.codes = codes_of(x, std::sqrt(n2 / static_cast<double>(x.size())), bits);
  for (int round = 0; round < 8; ++round) {
    const auto next = codes_of(x, least_squares_scale(x, q.codes, bits), bits);
    if (next == q.codes) break;
    q.codes = next;
  }
  q.scale = least_squares_scale(x, q.codes, bits);
  return q;
}

}  // namespace akv::kernels::reference
