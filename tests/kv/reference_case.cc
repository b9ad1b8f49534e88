#include "tests/kv/reference_case.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "common/kv/options.h"
#include "kernels/codec.h"
#include "kernels/reference/anchor_codec.h"

namespace akv::kv::testing {
namespace {

namespace ref = kernels::reference;

// Section 9's greedy choice (or the top N), by sorting everything.
void reference_bits(GoldenProfile& g, const GoldenCase& c, const CodecOptions& o, int side,
                    uint64_t bytes, const std::vector<ref::Row>& utility) {
  struct Increment {
    double priority;
    int second, head;
    int64_t token;
    uint64_t cost;
  };
  const uint64_t cost2 = residual_cost(c.head_dim, o, side == 1), cost4 = c.head_dim / 4;
  std::vector<Increment> all;
  for (int h = 0; h < c.kv_heads; ++h) {
    for (int64_t t = 0; t < c.prefix(); ++t) {
      const double u = utility[h][t];
      if (!(u > 0)) continue;
      all.push_back({u * (1 - kernels::kEta2) / double(cost2), 0, h, t, cost2});
      if (o.widths == Widths::k2) continue;
      all.push_back({u * (kernels::kEta2 - kernels::kEta4) / double(cost4), 1, h, t, cost4});
    }
  }
  std::sort(all.begin(), all.end(), [](const Increment& a, const Increment& b) {
    if (a.priority != b.priority) return a.priority > b.priority;
    return std::tie(a.second, a.head, a.token) < std::tie(b.second, b.head, b.token);
  });
  for (const Increment& i : all) {
    if (i.cost > bytes) break;
    bytes -= i.cost;
    g.heads[i.head].side[side].bits[i.token] += 2;
    g.plan.bytes += i.cost;
  }
}

struct HeadWork {
  ref::Observed observed;
  ref::Assigned assigned[2];
  ref::Utilities utility;
};

void reference_residuals(GoldenHead& head, const HeadWork& w, const GoldenCase& c,
                         const CodecOptions& o) {
  for (int side : {0, 1}) {
    GoldenSide& s = head.side[side];
    const ref::Rows& x = side == 0 ? w.observed.k : w.observed.v;
    const bool post = side == 0 && o.domain == KeyDomain::kPost;
    for (int64_t t = 0; t < c.tokens; ++t) {
      ref::Row hat = x[t];
      if (t < c.prefix()) {
        const ref::Row& anchor = x[head.anchors[s.slot[t]]];
        for (size_t i = 0; i < hat.size(); ++i) hat[i] = double(s.gamma[t]) * anchor[i];
      }
      if (t < c.prefix() && s.bits[t] != 0) {
        ref::Row r = w.assigned[side].residual[t];
        if (post) r = ref::rope(c.rope, r, t);
        const auto q = ref::quantise(ref::rotate(r, c.seed), s.bits[t], o.scale == ScaleRule::kLsq);
        const float scale = o.scale_type == ScaleType::kBf16 ? to_float(to_bf16(float(q.scale)))
                                                             : static_cast<float>(q.scale);
        s.codes[s.bits[t] == 4].insert(s.codes[s.bits[t] == 4].end(), q.codes.begin(),
                                       q.codes.end());
        s.scale[s.bits[t] == 4].push_back(scale);
        ref::Row levels;
        for (int code : q.codes) levels.push_back(scale * ref::level(code, s.bits[t]));
        ref::Row back = ref::rotate_back(levels, c.seed);
        if (post) back = ref::rope(c.rope, back, t, true);
        for (size_t i = 0; i < hat.size(); ++i) hat[i] += back[i];
      }
      s.hat.insert(s.hat.end(), hat.begin(), hat.end());
    }
  }
}

void reference_attention(GoldenProfile& g, const GoldenCase& c) {
  for (int q = 0; q < c.heads(); ++q) {
    const GoldenHead& head = g.heads[q / c.group];
    ref::Rows k, v;
    for (int64_t t = 0; t < c.tokens; ++t) {
      const auto row = [&](int side) {
        const float* x = head.side[side].hat.data() + t * c.head_dim;
        return ref::Row(x, x + c.head_dim);
      };
      k.push_back(ref::rope(c.rope, row(0), t));
      v.push_back(row(1));
    }
    const float* x = c.q_new.data() + int64_t{q} * c.head_dim;
    const auto a = ref::attend(ref::Row(x, x + c.head_dim), k, v, c.tokens);
    g.attention.insert(g.attention.end(), a.y.begin(), a.y.end());
  }
}

kernels::ObservedHead observed_head(const GoldenCase& c, int h) {
  kernels::ObservedHead o;
  o.tokens = c.tokens;
  o.window = c.window;
  o.group = c.group;
  o.head_dim = c.head_dim;
  o.stride = int64_t{c.kv_heads} * c.head_dim;
  o.k = c.k.data() + int64_t{h} * c.head_dim;
  o.v = c.v.data() + int64_t{h} * c.head_dim;
  o.q = c.q.data() + int64_t{h} * c.group * c.head_dim;
  o.q_stride = int64_t{c.heads()} * c.head_dim;
  return o;
}

GoldenProfile reference_profile(const GoldenCase& c, CodecOptions o) {
  o.window = c.window;
  GoldenProfile g;
  const LayerPlan plan = plan_layer(c.shape(), c.tokens, c.theta, o);
  g.plan = {plan.k, plan.base, plan.full, plan.spare, plan.base};
  g.heads.resize(c.kv_heads);
  std::vector<HeadWork> work(c.kv_heads);
  std::vector<ref::Row> utility[2];
  const bool log8 = o.coefficient == Coefficient::kLog8, eq6 = o.ranking == Ranking::kEq6;
  for (int h = 0; h < c.kv_heads; ++h) {
    GoldenHead& head = g.heads[h];
    HeadWork& w = work[h];
    w.observed = ref::observe(observed_head(c, h), c.rope, o.kernel);
    head.score.assign(w.observed.score.begin(), w.observed.score.end());
    const uint64_t seed = c.seed ^ (uint64_t(c.layer) << 32) ^ uint64_t(h);
    head.anchors = ref::select(w.observed.score, c.tokens, c.window, plan.k, o.rho_percent, seed);
    w.assigned[0] = ref::assign(w.observed.k, head.anchors, c.prefix(), log8);
    w.assigned[1] = ref::assign(w.observed.v, head.anchors, c.prefix(), log8);
    w.utility =
        ref::utilities(w.observed, c.rope, w.assigned[0], w.assigned[1], head.anchors, eq6, o.pool);
    utility[0].push_back(w.utility.key);
    utility[1].push_back(w.utility.value);
    for (int side : {0, 1}) {
      GoldenSide& s = head.side[side];
      s.slot.assign(w.assigned[side].slot.begin(), w.assigned[side].slot.end());
      s.gamma.assign(w.assigned[side].gamma.begin(), w.assigned[side].gamma.end());
      s.utility.assign(utility[side][h].begin(), utility[side][h].end());
      s.bits.assign(c.prefix(), 0);
    }
  }
  reference_bits(g, c, o, 0, plan.key_bytes, utility[0]);
  reference_bits(g, c, o, 1, plan.value_bytes, utility[1]);
  for (int h = 0; h < c.kv_heads; ++h) reference_residuals(g.heads[h], work[h], c, o);
  reference_attention(g, c);
  return g;
}

}  // namespace

GoldenCase make_inputs(const CaseSpec& spec) {
  GoldenCase c;
  c.name = "reference";
  c.tokens = spec.tokens;
  c.kv_heads = spec.kv_heads;
  c.head_dim = spec.head_dim;
  c.group = spec.group;
  c.window = spec.window;
  c.layer = spec.layer;
  c.theta = spec.theta;
  c.rope.head_dim = spec.head_dim;
  c.rope.rope_dim = spec.rope_dim;
  c.rope.base = 20000;
  c.rope.pairs = spec.pairs;
  std::mt19937 rng(spec.seed);
  std::normal_distribution<float> normal;
  const int row = spec.kv_heads * spec.head_dim;
  std::vector<float> centres(2 * static_cast<size_t>(spec.clusters) * row);
  for (float& x : centres) x = normal(rng);
  for (int side : {0, 1}) {
    auto& out = side == 0 ? c.k : c.v;
    for (int64_t t = 0; t < spec.tokens; ++t) {
      const size_t cluster = (rng() % spec.clusters + side * spec.clusters) * row;
      const bool zero = spec.zero_every > 0 && t % spec.zero_every == 1;
      const bool repeat = spec.repeat_every > 0 && t >= spec.repeat_every;
      for (int i = 0; i < row; ++i) {
        const float x = centres[cluster + i] + float(spec.noise) * normal(rng);
        bf16 value = zero ? bf16{} : to_bf16(x);
        if (repeat) value = out[(t - spec.repeat_every) * row + i];
        out.push_back(value);
      }
    }
  }
  c.q.resize(static_cast<size_t>(spec.window) * c.heads() * spec.head_dim);
  for (bf16& x : c.q) x = to_bf16(normal(rng));
  for (int i = 0; i < c.heads() * spec.head_dim; ++i) c.q_new.push_back(normal(rng));
  return c;
}

GoldenCase make_reference_case(const CaseSpec& spec) {
  GoldenCase c = make_inputs(spec);
  c.profiles["paper"] = reference_profile(c, paper_options());
  c.profiles["pooled"] = reference_profile(c, pooled_options());
  for (int q = 0; q < c.heads(); ++q) {
    const auto o = ref::observe(observed_head(c, q / c.group), c.rope, 7);
    const float* x = c.q_new.data() + int64_t{q} * c.head_dim;
    const auto a = ref::attend(ref::Row(x, x + c.head_dim), o.k_rot, o.v, c.tokens);
    c.full_attention.insert(c.full_attention.end(), a.y.begin(), a.y.end());
  }
  return c;
}

}  // namespace akv::kv::testing
