#include "tests/kv/codec_compare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>

#include "common/kv/allocation.h"
#include "common/kv/layer_encoder.h"
#include "common/kv/record_view.h"
#include "common/kv/state.h"
#include "kernels/codec.h"
#include "kernels/compressed_attention.h"
#include "kernels/reference/anchor_codec.h"
#include "kernels/residual_codec.h"

namespace akv::kv::testing {
namespace {

namespace ref = kernels::reference;

constexpr double kCut = 1e-4;             // relative distance from a cut, of a value that may flip
constexpr double kScoreTolerance = 1e-4;  // relative, f32 softmax
constexpr double kRace = 2e-6;            // relative distance of two cosines that may flip
constexpr double kUtilityTolerance = 1e-3;
constexpr double kThreshold = 1e-4;  // distance of a coordinate from a threshold that may flip
constexpr double kScale = 1e-4;
constexpr double kHat = 1e-4;  // of a row's norm
// Of the fused kernel, whose angles and anchor products are 16-bit fixed point: the tolerance of
// 16-bit paths. The oracle's attention over the same record is held to that of float paths.
constexpr double kAttention = 1e-2;
constexpr double kFloatAttention = 1e-3;
constexpr double kFullAttention = 1e-2;  // keys rounded to bf16 after rotation

double relative(double a, double b) {
  return a == b ? 0.0 : std::fabs(a - b) / std::max(std::fabs(b), 1e-300);
}

// One encoded record of a plan and its view.
struct Encoded {
  StateBuffer buffer;
  std::span<std::byte> record;
  std::vector<kernels::CompressedHeadView> heads;
  std::vector<float> signs;
  kernels::CompressedLayerView view;
};

class ProfileCheck {
 public:
  ProfileCheck(const GoldenCase& c, const std::string& profile, const kernels::RopeTable& rope,
               const Parallel& parallel)
      : c_(c), g_(c.profiles.at(profile)), profile_(profile), rope_(rope), parallel_(parallel) {
    options_ = *profile_options(profile);
    options_.window = c.window;
    options_.seed = c.seed;
    plan_.shape = c.shape();
    plan_.tokens = c.tokens;
    plan_.codec = Codec::kAnchorKv;
    plan_.options = options_;
    plan_.layer = plan_layer(plan_.shape, c.tokens, c.theta, options_);
    const RecordLayout layout = record_layout(plan_.shape, c.tokens, plan_.layer, options_);
    // One record is all that is held: every layer's is given the same place.
    plan_.record_bytes.assign(plan_.shape.layers, (layout.end + 7) / 8 * 8);
    plan_.record_offset.assign(plan_.shape.layers, 0);
    plan_.total_bytes = plan_.record_bytes[0];
  }

  std::vector<Finding> run() {
    check_plan();
    if (plan_.layer.k != g_.plan.k) return std::move(findings_);
    Encoded free;
    if (!encode(nullptr, free)) return std::move(findings_);
    check_anchors();
    check_score();
    const ForcedChoices forced = file_choices();
    if (!encode(&forced, follow_)) return std::move(findings_);
    check_slots();
    check_gamma();
    check_utility();
    check_bits();
    check_codes();
    check_hat();
    check_attention(free, "attention.free", free_differs(free) ? 0.05 : kAttention, false);
    check_attention(follow_, "attention", kAttention, false);
    check_attention(follow_, "attention.f64", kFloatAttention, true);
    return std::move(findings_);
  }

 private:
  void add(const std::string& quantity, double deviation, bool ok, std::string note = {}) {
    findings_.push_back(
        {profile_, quantity, deviation, ok && std::isfinite(deviation), std::move(note)});
  }

  bool encode(const ForcedChoices* forced, Encoded& out) {
    auto buffer = StateBuffer::create(plan_);
    if (!buffer.ok()) {
      add("encode", 0, false, buffer.error().message);
      return false;
    }
    out.buffer = std::move(buffer).value();
    out.record = out.buffer.bytes();
    LayerInput input;
    input.layer = c_.layer;
    input.k_pre = c_.k.data();
    input.v = c_.v.data();
    input.q_obs = c_.q.data();
    input.rope = &rope_;
    const Status status = forced == nullptr
                              ? compress_layer(input, plan_, 7, out.record, workspace_, parallel_)
                              : encoder().encode(input, plan_, 7, out.record, parallel_, forced);
    const Status valid = status.ok() ? verify_record(out.record, c_.layer, plan_, 7) : Status{};
    if (!status.ok() || !valid.ok()) {
      add("record", 0, false, (status.ok() ? valid : status).error().message);
      return false;
    }
    out.heads.resize(c_.kv_heads);
    out.signs.resize(c_.head_dim);
    kernels::rotation_signs(options_.seed, c_.head_dim, out.signs.data());
    out.view = view_record(out.record, plan_, out.heads.data(), out.signs.data());
    return true;
  }

  LayerEncoder& encoder() { return workspace_.encoder(); }

  ForcedChoices file_choices() const {
    ForcedChoices f;
    for (const GoldenHead& h : g_.heads) {
      f.anchors.emplace_back(h.anchors);
      for (int side : {0, 1}) {
        f.slot[side].emplace_back(h.side[side].slot);
        f.gamma[side].emplace_back(h.side[side].gamma);
        f.bits[side].emplace_back(h.side[side].bits);
      }
    }
    return f;
  }

  // A choice that flipped within its tolerance changes what follows it.
  bool free_differs(const Encoded& free) const {
    return !std::equal(free.record.begin(), free.record.end(), follow_.record.begin());
  }

  void check_plan() {
    const LayerPlan& p = plan_.layer;
    const GoldenPlan& g = g_.plan;
    uint64_t bytes = p.base;
    for (const GoldenHead& h : g_.heads) {
      for (int side : {0, 1}) {
        for (uint8_t bits : h.side[side].bits) {
          if (bits == 0) continue;
          bytes +=
              residual_cost(c_.head_dim, options_, side == 1) + (bits == 4 ? c_.head_dim / 4 : 0);
        }
      }
    }
    const auto diff = [](uint64_t a, uint64_t b) {
      return std::fabs(static_cast<double>(a) - static_cast<double>(b));
    };
    const double worst = std::max({diff(p.k, g.k), diff(p.base, g.base), diff(p.full, g.full),
                                   diff(p.spare, g.spare), diff(bytes, g.bytes)});
    const uint64_t held = plan_.record_bytes[0];
    add("plan", worst, worst == 0,
        "bytes; k " + std::to_string(p.k) + ", payload " + std::to_string(p.payload_bytes()) +
            ", record " + std::to_string(held));
  }

  // Can the file's anchors follow from our scores, where scores within kCut of the cut may go
  // either way? The draw of the uniform share is then repeated exactly.
  bool explains_anchors(int h) {
    const auto score = encoder().score(h);
    const auto& want = g_.heads[h].anchors;
    const int selected = plan_.layer.k - c_.window;
    const size_t top = static_cast<size_t>(options_.rho_percent * selected / 100);
    std::vector<float> sorted(score.begin(), score.end());
    std::sort(sorted.rbegin(), sorted.rend());
    if (top == 0 || top >= sorted.size()) return false;
    const double cut = sorted[top - 1];
    ref::Row base(score.size());
    std::vector<size_t> open;  // may go either way, and the file has them
    size_t sure = 0;
    for (size_t t = 0; t < score.size(); ++t) {
      const bool near = std::fabs(score[t] - cut) <= kCut * cut;
      const bool above = score[t] > cut && !near;
      base[t] = above ? 1.0 : 0.0;
      sure += above;
      const bool has = std::binary_search(want.begin(), want.end(), static_cast<int32_t>(t));
      if (near && has) open.push_back(t);
    }
    if (open.size() > 16 || open.size() + sure < top) return false;
    for (uint32_t pick = 0; pick < (1u << open.size()); ++pick) {
      if (static_cast<size_t>(std::popcount(pick)) + sure != top) continue;
      ref::Row trial = base;
      for (size_t i = 0; i < open.size(); ++i) {
        if ((pick >> i) & 1) trial[open[i]] = 1.0;
      }
      const uint64_t seed = options_.seed ^ (uint64_t(c_.layer) << 32) ^ uint64_t(h);
      if (ref::select(trial, c_.tokens, c_.window, plan_.layer.k, options_.rho_percent, seed) ==
          want) {
        return true;
      }
    }
    return false;
  }

  void check_anchors() {
    int64_t flips = 0;
    bool ok = true;
    for (int h = 0; h < c_.kv_heads; ++h) {
      const auto ours = encoder().anchors(h);
      const auto& want = g_.heads[h].anchors;
      if (std::equal(ours.begin(), ours.end(), want.begin(), want.end())) continue;
      for (int32_t a : ours) flips += !std::binary_search(want.begin(), want.end(), a);
      ok &= explains_anchors(h);
    }
    add("anchors", static_cast<double>(flips), ok, "positions that differ");
  }

  void check_score() {
    double worst = 0;
    for (int h = 0; h < c_.kv_heads; ++h) {
      const auto ours = encoder().score(h);
      const auto& want = g_.heads[h].score;
      const double floor = 1e-12 * *std::max_element(want.begin(), want.end());
      for (size_t t = 0; t < want.size(); ++t) {
        const double diff = std::fabs(double(ours[t]) - want[t]);
        worst = std::max(worst, diff / std::max<double>(std::fabs(want[t]), floor));
      }
    }
    add("score", worst, worst <= kScoreTolerance, "relative");
  }

  ref::Row row(int side, int h, int64_t t) const {
    const auto& x = side == 0 ? c_.k : c_.v;
    return ref::to_row(x.data() + (t * c_.kv_heads + h) * c_.head_dim, c_.head_dim);
  }
  ref::Row anchor_row(int side, int h, int slot) const {
    return row(side, h, g_.heads[h].anchors[static_cast<size_t>(slot)]);
  }

  template <class Fn>
  void for_each_token(Fn&& fn) {
    for (int side : {0, 1}) {
      for (int h = 0; h < c_.kv_heads; ++h) {
        for (int64_t t = 0; t < c_.prefix(); ++t) fn(side, h, static_cast<size_t>(t));
      }
    }
  }

  void check_slots() {
    double worst = 0;
    int64_t flips = 0;
    for_each_token([&](int side, int h, size_t t) {
      const int ours = encoder().slot(static_cast<Side>(side), h)[t];
      const int want = g_.heads[h].side[side].slot[t];
      if (ours == want) return;
      ++flips;
      const ref::Row x = row(side, h, static_cast<int64_t>(t));
      worst = std::max(worst, relative(ref::closeness(x, anchor_row(side, h, ours)),
                                       ref::closeness(x, anchor_row(side, h, want))));
      // An anchor's own slot and a zero vector's slot are no race.
      const auto& anchors = g_.heads[h].anchors;
      const bool is_anchor =
          std::binary_search(anchors.begin(), anchors.end(), static_cast<int32_t>(t));
      if (is_anchor || ref::dot(x, x) == 0) worst = HUGE_VAL;
    });
    add("slot", worst, worst <= kRace, "cosine, relative" + flipped(flips));
  }

  std::string flipped(int64_t flips) const {
    return flips == 0 ? "" : "; " + std::to_string(flips) + " flipped";
  }

  // How far from the border between ours and theirs the quotient lies, relative to their distance.
  static double border_distance(double ours, double want, double exact, bool log8) {
    if (log8) {
      if (!(ours * want > 0) || exact == 0) {
        // One of the two is zero: the border is half a step below the smallest code.
        return relative(std::fabs(exact), std::exp2(-5.0 - 1.0 / 32));
      }
      ours = std::log2(std::fabs(ours));
      want = std::log2(std::fabs(want));
      exact = std::log2(std::fabs(exact));
    }
    return std::fabs((exact - (ours + want) / 2) / (ours - want));
  }

  void check_gamma() {
    double worst = 0;
    int64_t flips = 0;
    const bool log8 = options_.coefficient == Coefficient::kLog8;
    for_each_token([&](int side, int h, size_t t) {
      const GoldenSide& s = g_.heads[h].side[side];
      const double ours = encoder().gamma(static_cast<Side>(side), h)[t];
      const double want = s.gamma[t];
      if (ours == want) return;
      ++flips;
      const ref::Row a = anchor_row(side, h, s.slot[t]);
      const double exact = ref::dot(row(side, h, static_cast<int64_t>(t)), a) / ref::dot(a, a);
      const double off = border_distance(ours, want, exact, log8);
      worst = std::max(worst, std::isnan(off) ? HUGE_VAL : off);
    });
    add("gamma", worst, worst <= kCut, "steps from the border" + flipped(flips));
  }

  void check_utility() {
    double worst = 0;
    for (int side : {0, 1}) {
      for (int h = 0; h < c_.kv_heads; ++h) {
        const auto ours = encoder().utility(static_cast<Side>(side), h);
        const auto& want = g_.heads[h].side[side].utility;
        // Far below the largest the file's own f32 subtractions are all that is left.
        const double floor = 1e-9 * *std::max_element(want.begin(), want.end());
        for (size_t t = 0; t < want.size(); ++t) {
          if ((want[t] < 0) != (ours[t] < 0)) {
            worst = HUGE_VAL;
          } else if (want[t] >= 0) {
            const double diff = std::fabs(ours[t] - want[t]);
            worst = std::max(worst, diff / std::max<double>({want[t], floor, 1e-37}));
          }
        }
      }
    }
    add("utility", worst, worst <= kUtilityTolerance, "relative");
  }

  // Widths: every increment that only one of the two stores must lie within kCut of the side's cut,
  // the lowest priority that is stored.
  void check_bits() {
    double worst = 0;
    int64_t flips = 0;
    for (int side : {0, 1}) {
      const SideBudget budget = side_budget(plan_, side == 1);
      double cut = HUGE_VAL;
      const auto utility = [&](int h, size_t t) {
        return encoder().utility(static_cast<Side>(side), h)[t];
      };
      for (int h = 0; h < c_.kv_heads; ++h) {
        const auto ours = encoder().bits(static_cast<Side>(side), h);
        for (size_t t = 0; t < ours.size(); ++t) {
          if (ours[t] >= 2) cut = std::min(cut, priority2(utility(h, t), budget));
          if (ours[t] == 4) cut = std::min(cut, priority4(utility(h, t), budget));
        }
      }
      for (int h = 0; h < c_.kv_heads; ++h) {
        const auto ours = encoder().bits(static_cast<Side>(side), h);
        const auto& want = g_.heads[h].side[side].bits;
        for (size_t t = 0; t < ours.size(); ++t) {
          if (ours[t] == want[t]) continue;
          ++flips;
          if ((ours[t] >= 2) != (want[t] >= 2)) {
            worst = std::max(worst, relative(priority2(utility(h, t), budget), cut));
          }
          if ((ours[t] == 4) != (want[t] == 4)) {
            worst = std::max(worst, relative(priority4(utility(h, t), budget), cut));
          }
        }
      }
    }
    add("bits", worst, worst <= kCut, "from the cut, relative" + flipped(flips));
  }

  // The rotated residual that the file's choices leave, in double.
  ref::Row rotated_residual(int side, int h, int64_t t) const {
    const GoldenSide& s = g_.heads[h].side[side];
    ref::Row r = row(side, h, t);
    const ref::Row a = anchor_row(side, h, s.slot[static_cast<size_t>(t)]);
    for (size_t i = 0; i < r.size(); ++i) r[i] -= double(s.gamma[static_cast<size_t>(t)]) * a[i];
    if (side == 0 && options_.domain == KeyDomain::kPost) r = ref::rope(c_.rope, r, t);
    return ref::rotate(r, options_.seed);
  }

  // Scale before rounding: of the file's codes, or of the largest coordinate.
  double exact_scale(const ref::Row& x, const std::vector<int>& codes, int bits) const {
    if (options_.scale == ScaleRule::kLsq) return ref::least_squares_scale(x, codes, bits);
    double top = 0;
    for (double v : x) top = std::max(top, std::fabs(v));
    return top / ref::level((1 << bits) - 1, bits);
  }

  void check_codes() {
    code_deviation_ = scale_deviation_ = 0;
    code_flips_ = scale_flips_ = 0;
    row_differs_.assign(2 * static_cast<size_t>(c_.kv_heads) * c_.prefix(), false);
    for (int side : {0, 1}) {
      for (int h = 0; h < c_.kv_heads; ++h) {
        int64_t index[2] = {0, 0};
        const auto& bits = g_.heads[h].side[side].bits;
        for (int64_t t = 0; t < c_.prefix(); ++t) {
          const int b = bits[static_cast<size_t>(t)];
          if (b != 0) check_residual(side, h, t, b, index[b == 4]++);
        }
      }
    }
    add("codes", code_deviation_, code_deviation_ <= kThreshold,
        "from a threshold" + flipped(code_flips_));
    add("scales", scale_deviation_, scale_deviation_ <= kScale, "relative" + flipped(scale_flips_));
  }

  void check_residual(int side, int h, int64_t t, int bits, int64_t index) {
    const GoldenSide& s = g_.heads[h].side[side];
    const auto& view = side == 0 ? follow_.heads[h].key : follow_.heads[h].value;
    const int width = bits == 4;
    const int d = c_.head_dim;
    uint8_t ours[kernels::kMaxHeadDim];
    kernels::unpack_row(width ? view.codes4 : view.codes2, width ? view.n4 : view.n2, index, d,
                        bits, side == 0 ? kernels::kKeyCodeGroup : kernels::kValueCodeGroup, ours);
    std::vector<int> want(s.codes[width].begin() + index * d,
                          s.codes[width].begin() + (index + 1) * d);
    const ref::Row x = rotated_residual(side, h, t);
    const double exact = exact_scale(x, want, bits);
    bool same = true;
    for (int i = 0; i < d; ++i) {
      const int w = want[static_cast<size_t>(i)];
      if (ours[i] == w) continue;
      same = false;
      ++code_flips_;
      const double border = ref::threshold(std::max<int>(ours[i], w), bits);
      const bool neighbours = std::abs(ours[i] - w) == 1;
      const double off = std::fabs(x[static_cast<size_t>(i)] / exact - border);
      code_deviation_ = std::max(code_deviation_, neighbours ? off : HUGE_VAL);
    }
    check_scale(stored_scale(view, width, index), s.scale[width][static_cast<size_t>(index)], exact,
                same);
    if (!same) row_differs_[token_index(side, h, t)] = true;
  }

  size_t token_index(int side, int h, int64_t t) const {
    return static_cast<size_t>((side * c_.kv_heads + h) * c_.prefix() + t);
  }

  static double stored_scale(const kernels::CompressedSideView& view, int width, int64_t index) {
    const float* f = width ? view.scale4_f32 : view.scale2_f32;
    const bf16* b = width ? view.scale4_bf16 : view.scale2_bf16;
    return f != nullptr ? f[index] : to_float(b[index]);
  }

  void check_scale(double ours, double want, double exact, bool same_codes) {
    if (ours == want || !same_codes) return;
    double off = relative(ours, want);
    if (options_.scale_type == ScaleType::kBf16) {
      // Neighbours in bf16: how far the exact scale is from their midpoint.
      ++scale_flips_;
      const bool neighbours =
          std::abs(int{to_bf16(float(ours)).bits} - int{to_bf16(float(want)).bits}) == 1;
      off = neighbours ? relative((ours + want) / 2, exact) : HUGE_VAL;
    }
    scale_deviation_ = std::max(scale_deviation_, off);
  }

  void check_hat() {
    const int64_t d = c_.head_dim, heads = c_.kv_heads;
    std::vector<float> hat[2];
    for (auto& x : hat) x.resize(static_cast<size_t>(c_.tokens * heads * d));
    reconstruct_layer(follow_.view, rope_, hat[0].data(), hat[1].data());
    double worst = 0;
    for (int side : {0, 1}) {
      for (int h = 0; h < heads; ++h) {
        for (int64_t t = 0; t < c_.tokens; ++t) {
          if (t < c_.prefix() && row_differs_[token_index(side, h, t)]) continue;
          double error = 0, norm = 0;
          for (int64_t i = 0; i < d; ++i) {
            const double want = g_.heads[h].side[side].hat[static_cast<size_t>(t * d + i)];
            const double diff = hat[side][static_cast<size_t>((t * heads + h) * d + i)] - want;
            error += diff * diff;
            norm += want * want;
          }
          if (error > 0) worst = std::max(worst, std::sqrt(error / std::max(norm, 1e-30)));
        }
      }
    }
    // A scale that rounded the other way moves its row by up to half a bf16 step.
    const double tolerance = scale_flips_ > 0 ? 4e-3 : kHat;
    add("hat", worst, worst <= tolerance, "of a row's norm");
  }

  void check_attention(const Encoded& state, const char* quantity, double tolerance, bool oracle) {
    std::vector<float> out(c_.q_new.size());
    kernels::AttentionRow attention;
    attention.prompt = &state.view;
    attention.q = c_.q_new.data();
    attention.out = out.data();
    if (oracle) {
      kernels::reference::decode_attention(attention, c_.heads(), rope_);
    } else {
      kernels::DecodeAttentionScratch scratch;
      kernels::decode_attention({&attention, 1}, c_.heads(), rope_, scratch, parallel_);
    }
    const double worst = head_error(out, g_.attention);
    add(quantity, worst, worst <= tolerance, "relative L2 of a head");
  }

 public:
  double head_error(const std::vector<float>& ours, const std::vector<float>& want) const {
    double worst = 0;
    const size_t d = static_cast<size_t>(c_.head_dim);
    for (size_t h = 0; h < want.size() / d; ++h) {
      double error = 0, norm = 0;
      for (size_t i = h * d; i < (h + 1) * d; ++i) {
        error += (double(ours[i]) - want[i]) * (double(ours[i]) - want[i]);
        norm += double(want[i]) * want[i];
      }
      if (error > 0) worst = std::max(worst, std::sqrt(error / std::max(norm, 1e-30)));
    }
    return worst;
  }

 private:
  const GoldenCase& c_;
  const GoldenProfile& g_;
  std::string profile_;
  const kernels::RopeTable& rope_;
  const Parallel& parallel_;
  CodecOptions options_;
  StatePlan plan_;
  Workspace workspace_;
  Encoded follow_;  // follows the file's choices
  std::vector<Finding> findings_;
  std::vector<bool> row_differs_;
  double code_deviation_ = 0, scale_deviation_ = 0;
  int64_t code_flips_ = 0, scale_flips_ = 0;
};

// Full attention through a dense record.
Finding full_attention(const GoldenCase& c, const kernels::RopeTable& rope,
                       const Parallel& parallel) {
  Finding f{"full", "attention", 0, false, "relative L2 of a head"};
  PlanRequest request;
  request.codec = Codec::kNone;
  const auto plan = plan_state(c.shape(), c.tokens, request);
  if (!plan.ok()) {
    f.note = plan.error().message;
    return f;
  }
  std::vector<uint64_t> memory(plan->record_bytes[0] / 8 + 1);
  const std::span<std::byte> record(reinterpret_cast<std::byte*>(memory.data()),
                                    plan->record_bytes[0]);
  Workspace workspace;
  const LayerInput input{c.layer, c.k.data(), c.v.data(), nullptr, &rope};
  Status status = compress_layer(input, *plan, 7, record, workspace, parallel);
  if (status.ok()) status = verify_record(record, c.layer, *plan, 7);
  if (!status.ok()) {
    f.note = status.error().message;
    return f;
  }
  const kernels::DenseLayerView view = view_dense_record(record, *plan);
  std::vector<float> out(c.q_new.size());
  kernels::AttentionRow row;
  row.dense_prompt = &view;
  row.q = c.q_new.data();
  row.out = out.data();
  kernels::DecodeAttentionScratch scratch;
  kernels::decode_attention({&row, 1}, c.heads(), rope, scratch, parallel);
  const ProfileCheck measure(c, c.profiles.begin()->first, rope, parallel);
  f.deviation = measure.head_error(out, c.full_attention);
  f.ok = f.deviation <= kFullAttention;
  return f;
}

}  // namespace

std::vector<Finding> compare_case(const GoldenCase& c, const Parallel& parallel) {
  const kernels::RopeTable rope(c.rope, std::max<int64_t>(c.tokens + 1, 256));
  std::vector<Finding> all;
  for (const auto& [profile, golden] : c.profiles) {
    for (Finding& f : ProfileCheck(c, profile, rope, parallel).run()) all.push_back(std::move(f));
  }
  all.push_back(full_attention(c, rope, parallel));
  return all;
}

}  // namespace akv::kv::testing
