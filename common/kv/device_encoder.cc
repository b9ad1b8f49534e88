#include "common/kv/device_encoder.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/base/checksum.h"
#include "common/kv/allocation.h"
#include "kernels/cuda/codec.h"
#include "proto/state.h"

namespace akv::kv {
namespace {

namespace dev = kernels::cuda;

constexpr uint64_t kAlignment = 256;
constexpr uint32_t kNotCopied = ~uint32_t{0};
uint64_t align_up(uint64_t x) { return (x + kAlignment - 1) / kAlignment * kAlignment; }

dev::CodecLayer layer_of(const StatePlan& plan) {
  dev::CodecLayer layer;
  layer.tokens = plan.tokens;
  layer.window = plan.codec == Codec::kAnchorKv ? plan.options.window : 0;
  layer.kv_heads = plan.shape.kv_heads;
  layer.group = plan.shape.group();
  layer.head_dim = plan.shape.head_dim;
  return layer;
}

int heads_at_once(const dev::CodecLayer& layer, uint64_t observation_bytes) {
  const uint64_t of_head = static_cast<uint64_t>(layer.tokens) * layer.lanes() * sizeof(float);
  return static_cast<int>(
      std::clamp<uint64_t>(observation_bytes / of_head, 1, static_cast<uint64_t>(layer.kv_heads)));
}

// How the caller's memory is divided; from a null base the places are offsets.
struct Division {
  std::byte* record = nullptr;
  dev::LayerObservation observation;
  dev::LayerAnchors anchors;
  dev::LayerAssignment assignment;
  float* score = nullptr;
  int32_t* positions = nullptr;  // [H][k]
  int32_t* select_scratch = nullptr;
  double* utility = nullptr;
  uint32_t* first = nullptr;
  uint32_t* count = nullptr;
  std::byte* allocate_scratch = nullptr;
  uint64_t bytes = 0;
};

Division divide(const StatePlan& plan, std::byte* memory, uint64_t observation_bytes) {
  const dev::CodecLayer layer = layer_of(plan);
  Division d;
  const auto take = [&](auto*& place, uint64_t count) {
    using T = std::remove_reference_t<decltype(*place)>;
    place = reinterpret_cast<T*>(memory + d.bytes);
    d.bytes = align_up(d.bytes + count * sizeof(T));
  };
  take(d.record, *std::max_element(plan.record_bytes.begin(), plan.record_bytes.end()));
  if (plan.codec == Codec::kNone) return d;
  const uint64_t tokens = plan.tokens, prefix = layer.prefix(), heads = layer.kv_heads;
  const uint64_t lanes = layer.lanes(), depth = layer.head_dim, k = plan.layer.k;
  const uint64_t group = heads_at_once(layer, observation_bytes),
                 chunks = dev::observe_chunks(layer.tokens);
  dev::LayerObservation& o = d.observation;
  take(o.alpha, group * tokens * lanes);
  take(o.factor, group * chunks * lanes);
  take(o.chunk_sum, group * chunks * lanes);
  take(o.y_parts, group * dev::observe_spans(layer.tokens) * lanes * depth);
  take(o.y_planes, group * 3 * lanes * depth);
  take(o.y2, group * lanes);
  take(o.q2, group * lanes);
  take(o.mean_alpha, group * prefix);
  take(d.score, group * prefix);
  take(d.positions, heads * k);
  take(d.select_scratch, group * 2 * k);
  dev::LayerAnchors& a = d.anchors;
  a.k = plan.layer.k;
  a.padded = dev::padded_anchors(a.k);
  const uint64_t padded = 2 * group * a.padded;
  take(a.rows, padded * depth);
  take(a.inv_norm, padded);
  take(a.norm2, padded);
  take(a.hash, padded);
  take(d.assignment.slot, 2 * heads * prefix);
  take(d.assignment.gamma, 2 * heads * prefix);
  take(d.assignment.residual2, 2 * heads * prefix);
  take(d.utility, 2 * heads * prefix);
  take(d.first, 4 * heads);
  take(d.count, 4 * heads);
  take(d.allocate_scratch, dev::allocate_scratch_bytes(layer.kv_heads, layer.prefix()));
  return d;
}

template <class T>
T* at(std::byte* record, uint64_t offset) {
  return reinterpret_cast<T*>(record + offset);
}

// Anchors, slots, coefficients and utilities of the heads [first, first + heads).
void rate_heads(const dev::CodecLayer& layer, const StatePlan& plan, int layer_index, int first,
                int heads, Division& d, DeviceStream stream) {
  const CodecOptions& o = plan.options;
  d.observation.first = d.anchors.first = first;
  d.observation.heads = d.anchors.heads = heads;
  dev::observe_layer(layer, d.observation, stream);
  dev::SelectParams select;
  select.first = first;
  select.heads = heads;
  select.kernel = o.kernel;
  select.k = plan.layer.k;
  select.rho_percent = o.rho_percent;
  select.seed = o.seed;
  select.layer_index = layer_index;
  select.mean_alpha = d.observation.mean_alpha;
  select.score = d.score;
  select.positions = d.positions + static_cast<int64_t>(first) * plan.layer.k;
  select.scratch = d.select_scratch;
  dev::select_anchors(layer, select, stream);
  d.anchors.positions = select.positions;
  dev::load_anchors(layer, d.anchors, stream);
  dev::assign_anchors(layer, d.anchors, d.assignment, stream);
  const dev::UtilityOptions utility{o.ranking == Ranking::kEq6, o.pool};
  dev::rate_residuals(layer, d.observation, d.anchors, d.assignment, utility, d.utility, stream);
}

dev::AllocateParams allocate_params(const StatePlan& plan, const RecordLayout& layout,
                                    const Division& d) {
  dev::AllocateParams p;
  p.kv_heads = plan.shape.kv_heads;
  p.prefix = layout.prefix;
  p.utility = d.utility;
  p.two_widths = layout.two_masks;
  for (const bool value : {false, true}) {
    const SideBudget budget = side_budget(plan, value);
    p.bytes[value] = budget.bytes;
    p.cost2[value] = static_cast<uint32_t>(budget.cost2);
    p.cost4 = static_cast<uint32_t>(budget.cost4);
  }
  p.masks = at<uint64_t>(d.record, layout.masks);
  p.prefixes = at<uint32_t>(d.record, layout.prefixes);
  p.head_offsets = at<int32_t>(d.record, layout.head_offsets);
  p.first = d.first;
  p.count = d.count;
  p.scratch = d.allocate_scratch;
  return p;
}

dev::EncodeParams encode_params(const StatePlan& plan, const RecordLayout& layout,
                                const Division& d) {
  const CodecOptions& o = plan.options;
  dev::EncodeParams p;
  p.positions = d.positions;
  p.k = plan.layer.k;
  p.assignment = d.assignment;
  p.masks = at<uint64_t>(d.record, layout.masks);
  p.prefixes = at<uint32_t>(d.record, layout.prefixes);
  p.first = d.first;
  p.count = d.count;
  p.two_widths = layout.two_masks;
  p.least_squares = o.scale == ScaleRule::kLsq;
  p.scale_f32 = o.scale_type == ScaleType::kF32;
  p.chunk_byte = layout.chunk_byte;
  p.post_rope = o.domain == KeyDomain::kPost;
  p.seed = o.seed;
  p.region[0] = d.record + layout.key_region;
  p.region[1] = d.record + layout.value_region;
  return p;
}

dev::RecordRows record_rows(const StatePlan& plan, const RecordLayout& layout, const Division& d) {
  const bool paper = plan.options.layout == Layout::kPaper;
  dev::RecordRows rows;
  rows.k = plan.layer.k;
  rows.positions = d.positions;
  rows.anchors = at<bf16>(d.record, layout.anchors);
  if (paper) {
    rows.positions64 = at<int64_t>(d.record, layout.anchor_positions);
    rows.token_positions = at<int32_t>(d.record, layout.token_positions);
  } else {
    rows.positions32 = at<uint32_t>(d.record, layout.anchor_positions);
  }
  return rows;
}

}  // namespace

uint64_t DeviceEncoder::memory_bytes(const StatePlan& plan, uint64_t observation_bytes) {
  return divide(plan, nullptr, observation_bytes).bytes;
}

DeviceEncoder::DeviceEncoder(const StatePlan& plan, uint64_t state_checksum, std::byte* memory,
                             uint64_t observation_bytes)
    : plan_(plan),
      state_checksum_(state_checksum),
      memory_(memory),
      observation_bytes_(observation_bytes) {
  AKV_CHECK(reinterpret_cast<uintptr_t>(memory) % kAlignment == 0);
  if (plan.codec == Codec::kAnchorKv) {
    layout_ = record_layout(plan.shape, plan.tokens, plan.layer, plan.options);
  }
}

Status DeviceEncoder::encode(const DeviceLayerInput& input, std::span<std::byte> host,
                             DeviceStream stream, std::byte* record) const {
  const KvShape& s = plan_.shape;
  const bool compressed = plan_.codec == Codec::kAnchorKv;
  if (input.layer < 0 || input.layer >= s.layers || input.k_pre == nullptr || input.v == nullptr ||
      (compressed && input.q_obs == nullptr) ||
      (!host.empty() && host.size() != plan_.record_bytes[input.layer])) {
    return make_error(Code::kInvalidArgument, "a layer's input does not belong to the plan");
  }
  if (input.rope.rows == nullptr || input.rope.head_dim != s.head_dim ||
      input.rope.positions < plan_.tokens) {
    return make_error(Code::kInvalidArgument, "the RoPE table does not cover the prompt");
  }
  if (record == nullptr) record = memory_;
  AKV_CHECK(reinterpret_cast<uintptr_t>(record) % 8 == 0);
  const uint64_t bytes = plan_.record_bytes[input.layer];
  // What no operator writes is zero: padding, and what the greedy choice leaves of a region.
  dev::clear_bytes(record, bytes, stream);
  dev::CodecLayer layer = layer_of(plan_);
  layer.k = input.k_pre;
  layer.v = input.v;
  layer.q = input.q_obs;
  layer.rope = input.rope;
  // The header's bytes carry the faults to the host, which overwrites them. Until the copy comes
  // they say so: after a launch that failed there is none.
  if (!host.empty()) std::memcpy(host.data(), &kNotCopied, sizeof(kNotCopied));
  layer.faults = at<uint32_t>(record, 0);
  if (compressed) {
    encode_compressed(layer, input.layer, record, stream);
  } else {
    bf16* k_out = at<bf16>(record, proto::kRecordHeaderBytes);
    const int64_t elements = plan_.tokens * s.kv_heads * s.head_dim;
    dev::write_dense_record(layer, k_out, k_out + elements, stream);
  }
  if (!host.empty()) dev::copy_to_host(host.data(), record, bytes, stream);
  return {};
}

void DeviceEncoder::encode_compressed(const kernels::cuda::CodecLayer& layer, int layer_index,
                                      std::byte* record, DeviceStream stream) const {
  Division d = divide(plan_, memory_, observation_bytes_);
  d.record = record;
  d.assignment.slots_out = d.record + layout_.slots;
  d.assignment.gammas_out = d.record + layout_.gammas;
  d.assignment.index_bytes = layout_.index_bytes;
  d.assignment.log8 = plan_.options.coefficient == Coefficient::kLog8;
  const int group = heads_at_once(layer, observation_bytes_);
  for (int first = 0; first < layer.kv_heads; first += group) {
    rate_heads(layer, plan_, layer_index, first, std::min(group, layer.kv_heads - first), d,
               stream);
  }
  dev::allocate_residuals(allocate_params(plan_, layout_, d), stream);
  dev::encode_residuals(layer, encode_params(plan_, layout_, d), stream);
  dev::write_record_rows(layer, record_rows(plan_, layout_, d), stream);
}

void DeviceEncoder::seal_on_device(std::span<const std::byte> host, std::byte* record,
                                   DeviceStream stream) const {
  dev::copy_to_device(record, host.data(), proto::kRecordHeaderBytes, stream);
}

Status DeviceEncoder::finish(int layer, std::span<std::byte> host) const {
  AKV_CHECK(layer >= 0 && layer < plan_.shape.layers && host.size() == plan_.record_bytes[layer]);
  uint32_t faults = 0;
  std::memcpy(&faults, host.data(), sizeof(faults));
  if (faults == kNotCopied) {
    return make_error(Code::kInternal, "the device has not written the layer's record");
  }
  if ((faults & dev::kInputNotFinite) != 0) {
    return make_error(Code::kDataLoss, "keys, values or queries are not finite");
  }
  if ((faults & dev::kGammaNotFinite) != 0) {
    return make_error(Code::kDataLoss, "a token's coefficient is not finite");
  }
  if (faults != 0) return make_error(Code::kDataLoss, "a residual's scale is not finite");
  const bool compressed = plan_.codec == Codec::kAnchorKv;
  proto::RecordHeader header;
  header.kind = compressed ? proto::RecordKind::kAnchorKv : proto::RecordKind::kDense;
  header.layer = static_cast<uint32_t>(layer);
  if (compressed) {
    header.anchors = static_cast<uint32_t>(plan_.layer.k);
    header.key_bytes = plan_.layer.key_bytes;
    header.value_bytes = plan_.layer.value_bytes;
  }
  header.record_bytes = host.size();
  header.state_checksum = state_checksum_;
  proto::seal_record(header, host, xxh3_64);
  return {};
}

}  // namespace akv::kv
