#include "common/kv/plan.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "common/base/check.h"
#include "common/kv/record_layout.h"
#include "kernels/codec.h"
#include "proto/state.h"

namespace akv::kv {
namespace {

// Slots are at most 16 bits wide and k grows as S/128.
constexpr int64_t kMaxTokens = int64_t{65535} * 128;
constexpr uint64_t kRecordAlign = 8;
// Query heads to a KV head that attention takes.
constexpr int kMaxGroup = 16;

uint64_t round_up(uint64_t x, uint64_t to) { return (x + to - 1) / to * to; }

int smallest_k(int start, const CodecOptions& o) {
  return std::min(start, o.window + (o.anchors == AnchorRule::kPaper ? 16 : 8));
}

int start_k(int64_t tokens, const CodecOptions& o) {
  const int64_t by_length = std::max<int64_t>((tokens + 127) / 128, o.window + 16);
  return static_cast<int>(std::min(by_length, (tokens - o.window) / 4 + o.window));
}

// N of section 5 from whole bytes: N <= spare / bres with bres the mean of both costs. An odd N
// costs half a byte more than N * bres, which the floor has already left room for.
uint64_t residual_count(uint64_t spare, int key_cost, int value_cost) {
  return 2 * spare / static_cast<uint64_t>(key_cost + value_cost);
}

void split_spare(LayerPlan& plan, const KvShape& shape, int64_t tokens, const CodecOptions& o) {
  const uint64_t candidates = static_cast<uint64_t>(shape.kv_heads) * (tokens - plan.k);
  const uint64_t key_cost = residual_cost(shape.head_dim, o, false);
  const uint64_t value_cost = residual_cost(shape.head_dim, o, true);
  if (o.widths == Widths::k2) {
    const uint64_t n = residual_count(plan.spare, key_cost, value_cost);
    plan.key_bytes = std::min(n / 2, candidates) * key_cost;
    plan.value_bytes = std::min(n - n / 2, candidates) * value_cost;
    return;
  }
  const uint64_t quarter = shape.head_dim / 4;
  const uint64_t keys = plan.spare / 2;
  plan.key_bytes = std::min(keys, candidates * (key_cost + quarter));
  plan.value_bytes = std::min(plan.spare - keys, candidates * (value_cost + quarter));
  // Every increment of a key is a multiple of its scale's size, so nothing is lost by keeping what
  // follows the region aligned.
  plan.key_bytes -= plan.key_bytes % (o.scale_type == ScaleType::kF32 ? 4 : 2);
}

uint64_t compressed_record_bytes(const KvShape& shape, int64_t tokens, const LayerPlan& layer,
                                 const CodecOptions& o) {
  return round_up(record_layout(shape, tokens, layer, o).end, kRecordAlign);
}

// Fills offsets and totals for records of one size.
void lay_out(StatePlan& plan, uint64_t record_bytes) {
  plan.header_bytes = proto::state_header_bytes(plan.shape.layers);
  uint64_t at = plan.header_bytes;
  plan.record_offset.clear();
  for (int l = 0; l < plan.shape.layers; ++l, at += record_bytes) plan.record_offset.push_back(at);
  plan.record_bytes.assign(plan.shape.layers, record_bytes);
  plan.total_bytes = at;
  plan.theta = static_cast<double>(at) / static_cast<double>(plan.dense_bytes);
}

void make_dense(StatePlan& plan) {
  plan.codec = Codec::kNone;
  plan.layer = LayerPlan{};
  lay_out(plan, proto::kRecordHeaderBytes + dense_layer_bytes(plan.shape, plan.tokens));
}

// What of floor(theta Mfull) is not for a layer's payload: its share of the state header, its own
// header, alignment.
uint64_t layer_overhead(const KvShape& shape, int64_t tokens, double theta, uint64_t header_bytes,
                        const CodecOptions& o) {
  const uint64_t budget = static_cast<uint64_t>(
      std::floor(theta * static_cast<double>(dense_layer_bytes(shape, tokens))));
  const uint64_t share = (header_bytes + shape.layers - 1) / shape.layers;
  const uint64_t padding = o.layout == Layout::kCompact && o.scale_type == ScaleType::kF32 ? 2 : 0;
  const uint64_t fixed = share + proto::kRecordHeaderBytes + padding;
  if (budget <= fixed) return fixed;
  // Records are multiples of 8 bytes: the rest of the division cannot be used either.
  const uint64_t record = (budget - share) / kRecordAlign * kRecordAlign;
  return budget - std::min(budget, record - proto::kRecordHeaderBytes - padding);
}

// The least theta at which a state without residuals fits: every layer's floor must hold its record
// and its share of the header.
double smallest_reachable(const KvShape& shape, int64_t tokens, uint64_t header_bytes,
                          const CodecOptions& o) {
  LayerPlan least;
  least.k = smallest_k(start_k(tokens, o), o);
  const uint64_t padding = o.layout == Layout::kCompact && o.scale_type == ScaleType::kF32 ? 2 : 0;
  const uint64_t share = (header_bytes + shape.layers - 1) / shape.layers;
  const uint64_t payload = base_bytes(shape, tokens, least.k, o) + padding;
  const uint64_t need = round_up(proto::kRecordHeaderBytes + payload, kRecordAlign) + share;
  const double full = static_cast<double>(dense_layer_bytes(shape, tokens));
  double theta = static_cast<double>(need) / full;
  while (std::floor(theta * full) < static_cast<double>(need)) theta = std::nextafter(theta, 2.0);
  return theta;
}

Status check_request(const KvShape& s, int64_t tokens, const PlanRequest& r) {
  const auto bad = [](std::string message, const char* param) {
    return make_error(Code::kInvalidArgument, std::move(message), param);
  };
  if (s.layers < 1 || s.layers > static_cast<int>(proto::kMaxStateLayers) || s.kv_heads < 1 ||
      s.heads < s.kv_heads || s.heads % s.kv_heads != 0 || s.head_dim < 1) {
    return bad("a state needs layers, kv_heads >= 1 and heads a multiple of kv_heads", "shape");
  }
  if (tokens < 1 || tokens > kMaxTokens) {
    return bad(
        "a state takes 1.." + std::to_string(kMaxTokens) + " tokens, got " + std::to_string(tokens),
        "tokens");
  }
  if (r.codec == Codec::kNone) return {};
  if (!(r.theta > 0 && r.theta <= 1)) {
    return bad("theta got " + std::to_string(r.theta) + ", takes more than 0 and at most 1",
               "theta");
  }
  if (!kernels::head_dim_supported(s.head_dim)) {
    return make_error(Code::kUnsupported,
                      "the codec takes head dimensions that are multiples of 16 up to " +
                          std::to_string(kernels::kMaxHeadDim) + ", got " +
                          std::to_string(s.head_dim),
                      "head_dim");
  }
  if (s.group() > kMaxGroup) {
    return make_error(Code::kUnsupported,
                      "the codec takes up to " + std::to_string(kMaxGroup) +
                          " query heads to a KV head, got " + std::to_string(s.group()),
                      "heads");
  }
  return validate(r.options);
}

}  // namespace

uint64_t dense_layer_bytes(const KvShape& shape, int64_t tokens) {
  return uint64_t{4} * tokens * shape.kv_heads * shape.head_dim;
}

uint64_t dense_bytes(const KvShape& shape, int64_t tokens) {
  return dense_layer_bytes(shape, tokens) * shape.layers;
}

int residual_cost(int head_dim, const CodecOptions& o, bool value_side) {
  const int chunk = o.layout == Layout::kPaper && value_side ? 1 : 0;
  return head_dim / 4 + (o.scale_type == ScaleType::kF32 ? 4 : 2) + chunk;
}

uint64_t base_bytes(const KvShape& shape, int64_t tokens, int k, const CodecOptions& o) {
  const bool paper = o.layout == Layout::kPaper;
  const uint64_t heads = shape.kv_heads;
  const uint64_t prefix = tokens - o.window;
  const uint64_t words = (prefix + 63) / 64;
  const uint64_t index = paper || k > 256 ? 2 : 1;
  const uint64_t coefficient = o.coefficient == Coefficient::kBf16 ? 2 : 1;
  const uint64_t per_head =
      uint64_t{4} * k * shape.head_dim + (paper ? 8 : 4) * static_cast<uint64_t>(k - o.window) +
      2 * prefix * (index + coefficient) + (o.widths == Widths::k2And4 ? 48 : 24) * words;
  return heads * per_head + 8 * (heads + 1) + (paper ? 4 * prefix : 0);
}

LayerPlan plan_layer(const KvShape& shape, int64_t tokens, double theta, const CodecOptions& o,
                     uint64_t overhead_bytes) {
  AKV_CHECK(tokens > o.window);
  LayerPlan plan;
  plan.full = dense_layer_bytes(shape, tokens);
  const double exact = theta * static_cast<double>(plan.full);
  const uint64_t floor_bytes = static_cast<uint64_t>(std::floor(exact));
  const uint64_t budget = floor_bytes - std::min(floor_bytes, overhead_bytes);
  const int start = start_k(tokens, o);
  const int least = smallest_k(start, o);
  const double limit = o.anchors == AnchorRule::kPaper ? static_cast<double>(budget) : 0.6 * exact;
  plan.k = start;
  plan.base = base_bytes(shape, tokens, plan.k, o);
  while (plan.k > least && static_cast<double>(plan.base) > limit) {
    plan.base = base_bytes(shape, tokens, --plan.k, o);
  }
  plan.fits = plan.base <= budget;
  plan.spare = plan.fits ? budget - plan.base : 0;
  split_spare(plan, shape, tokens, o);
  return plan;
}

Result<OnUnreachable> parse_on_unreachable(std::string_view text) {
  if (text == "best") return OnUnreachable::kBest;
  if (text == "dense") return OnUnreachable::kDense;
  if (text == "error") return OnUnreachable::kError;
  return make_error(
      Code::kInvalidArgument,
      "on-unreachable-theta got \"" + std::string(text) + "\", takes best|dense|error",
      "on-unreachable-theta");
}

double auto_theta(int64_t tokens) {
  return std::min(1.0, std::max(0.05, 200.0 / static_cast<double>(std::max<int64_t>(tokens, 1))));
}

Result<StatePlan> plan_state(const KvShape& shape, int64_t tokens, const PlanRequest& request) {
  AKV_RETURN_IF_ERROR(check_request(shape, tokens, request));
  StatePlan plan;
  plan.shape = shape;
  plan.tokens = tokens;
  plan.dense_bytes = dense_bytes(shape, tokens);
  const CodecOptions& o = request.options;
  const int64_t least_tokens = std::max<int64_t>(request.min_compress_tokens, o.window + 80);
  if (request.codec == Codec::kNone || tokens < least_tokens) {
    plan.theta_requested = request.codec == Codec::kNone ? 1.0 : request.theta;
    make_dense(plan);
    return plan;
  }
  plan.codec = Codec::kAnchorKv;
  plan.options = o;
  plan.theta_requested = request.theta;
  const uint64_t header = proto::state_header_bytes(shape.layers);
  plan.smallest_theta = smallest_reachable(shape, tokens, header, o);
  const uint64_t overhead = layer_overhead(shape, tokens, request.theta, header, o);
  plan.layer = plan_layer(shape, tokens, request.theta, o, overhead);
  plan.reachable = plan.layer.fits;
  if (!plan.reachable && request.on_unreachable == OnUnreachable::kError) {
    char text[160];
    std::snprintf(text, sizeof(text),
                  "theta %.6g cannot be reached for %lld tokens; the smallest reachable theta is "
                  "%.6f",
                  request.theta, static_cast<long long>(tokens), plan.smallest_theta + 5e-7);
    return make_error(Code::kInvalidArgument, text, "theta");
  }
  lay_out(plan, compressed_record_bytes(shape, tokens, plan.layer, o));
  const bool larger_than_dense = plan.total_bytes >= plan.dense_bytes;
  if (!plan.reachable && (larger_than_dense || request.on_unreachable == OnUnreachable::kDense)) {
    make_dense(plan);
  }
  return plan;
}

int64_t first_reachable_tokens(const KvShape& shape, const PlanRequest& request, int64_t limit) {
  PlanRequest ask = request;
  ask.codec = Codec::kAnchorKv;
  ask.on_unreachable = OnUnreachable::kBest;
  for (int64_t tokens = 1; tokens <= limit; ++tokens) {
    const auto plan = plan_state(shape, tokens, ask);
    if (!plan.ok()) return 0;
    if (plan->codec == Codec::kAnchorKv && plan->reachable) return tokens;
  }
  return 0;
}

}  // namespace akv::kv
