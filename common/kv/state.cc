#include "common/kv/state.h"

#include <bit>
#include <cstdlib>
#include <new>
#include <string>

#include "common/base/check.h"
#include "common/base/checksum.h"
#include "common/kv/record_layout.h"
#include "common/kv/record_view.h"
#include "kernels/codec.h"
#include "proto/state.h"

namespace akv::kv {
namespace {

static_assert(std::endian::native == std::endian::little, "records are read in place");

constexpr size_t kAlignment = 64;

proto::StateHeader header_of(const StatePlan& plan, const StateIdentity& identity) {
  proto::StateHeader h;
  h.model_fingerprint = identity.model_fingerprint;
  h.tokenizer_hash = identity.tokenizer_hash;
  h.prompt_hash = identity.prompt_hash;
  h.codec = static_cast<uint8_t>(plan.codec);
  if (plan.codec == Codec::kAnchorKv) {
    const CodecOptions& o = plan.options;
    h.layout = static_cast<uint8_t>(o.layout);
    h.coefficient = static_cast<uint8_t>(o.coefficient);
    h.scale = static_cast<uint8_t>(o.scale);
    h.scale_type = static_cast<uint8_t>(o.scale_type);
    h.domain = static_cast<uint8_t>(o.domain);
    h.ranking = static_cast<uint8_t>(o.ranking);
    h.widths = static_cast<uint8_t>(o.widths);
    h.anchors = static_cast<uint8_t>(o.anchors);
    h.window = static_cast<uint32_t>(o.window);
    h.rho_percent = static_cast<uint32_t>(o.rho_percent);
    h.kernel = static_cast<uint32_t>(o.kernel);
    h.pool = static_cast<uint32_t>(o.pool);
    h.seed = o.seed;
  }
  h.layers = static_cast<uint32_t>(plan.shape.layers);
  h.heads = static_cast<uint32_t>(plan.shape.heads);
  h.kv_heads = static_cast<uint32_t>(plan.shape.kv_heads);
  h.head_dim = static_cast<uint32_t>(plan.shape.head_dim);
  h.tokens = static_cast<uint64_t>(plan.tokens);
  h.theta = plan.theta_requested;
  h.record_bytes = plan.record_bytes;
  return h;
}

Error state_error(proto::StateError error, const std::string& what) {
  const bool foreign = error == proto::StateError::kVersion || error == proto::StateError::kMagic;
  return make_error(foreign ? Code::kMismatch : Code::kDataLoss,
                    what + ": " + proto::state_error_text(error));
}

}  // namespace

uint64_t prompt_hash(std::span<const int32_t> token_ids) {
  return xxh3_64(std::as_bytes(token_ids));
}

void StateBuffer::Free::operator()(std::byte* p) const { std::free(p); }

Result<StateBuffer> StateBuffer::create(const StatePlan& plan) {
  StateBuffer buffer;
  const size_t rounded = (plan.total_bytes + kAlignment - 1) / kAlignment * kAlignment;
  auto* p = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
  if (p == nullptr) {
    return make_error(Code::kResourceExhausted,
                      "no memory for a state of " + std::to_string(plan.total_bytes) + " bytes");
  }
  buffer.bytes_.reset(p);
  buffer.size_ = plan.total_bytes;
  return buffer;
}

uint64_t write_header(const StatePlan& plan, const StateIdentity& identity,
                      std::span<std::byte> out) {
  AKV_CHECK(out.size() == plan.header_bytes);
  return proto::encode_state_header(header_of(plan, identity), out, xxh3_64);
}

Result<uint64_t> verify_header(std::span<const std::byte> header, const StatePlan& plan,
                               const StateIdentity& identity) {
  if (header.size() != plan.header_bytes) {
    return make_error(Code::kDataLoss, "state header: " + std::to_string(header.size()) +
                                           " bytes, planned " + std::to_string(plan.header_bytes));
  }
  proto::StateHeader got;
  uint64_t checksum = 0;
  const auto error = proto::decode_state_header(header, xxh3_64, got, &checksum);
  if (error != proto::StateError::kNone) return state_error(error, "state header");
  const proto::StateHeader want = header_of(plan, identity);
  const auto mismatch = [](const char* what) {
    return make_error(Code::kMismatch, std::string("state header: another ") + what, what);
  };
  if (got.model_fingerprint != want.model_fingerprint) return mismatch("model");
  if (got.tokenizer_hash != want.tokenizer_hash) return mismatch("tokenizer");
  if (got.prompt_hash != want.prompt_hash || got.tokens != want.tokens) return mismatch("prompt");
  if (got.record_bytes != want.record_bytes) return mismatch("plan");
  if (got != want) return mismatch("shape or codec option");
  return checksum;
}

Status verify_record(std::span<const std::byte> record, int layer, const StatePlan& plan,
                     uint64_t state_checksum) {
  AKV_CHECK(layer >= 0 && layer < plan.shape.layers);
  AKV_CHECK(reinterpret_cast<uintptr_t>(record.data()) % 8 == 0);
  const std::string name = "record of layer " + std::to_string(layer);
  if (record.size() != plan.record_bytes[layer]) {
    return make_error(Code::kDataLoss, name + ": " + std::to_string(record.size()) +
                                           " bytes, planned " +
                                           std::to_string(plan.record_bytes[layer]));
  }
  proto::RecordHeader header;
  const auto error = proto::open_record(record, xxh3_64, header);
  if (error != proto::StateError::kNone) return state_error(error, name);
  const bool dense = plan.codec == Codec::kNone;
  proto::RecordHeader want;
  want.kind = dense ? proto::RecordKind::kDense : proto::RecordKind::kAnchorKv;
  want.layer = static_cast<uint32_t>(layer);
  want.anchors = static_cast<uint32_t>(plan.layer.k);
  want.record_bytes = record.size();
  want.key_bytes = plan.layer.key_bytes;
  want.value_bytes = plan.layer.value_bytes;
  want.state_checksum = state_checksum;
  if (header != want) {
    return make_error(Code::kMismatch, name + ": it belongs to another state, layer or plan");
  }
  const char* problem = dense ? check_dense_payload(record, plan) : check_payload(record, plan);
  if (problem != nullptr) return make_error(Code::kDataLoss, name + ": " + problem);
  return {};
}

StateView StateView::create(std::span<const std::byte> state, const StatePlan& plan) {
  AKV_CHECK(state.size() == plan.total_bytes);
  StateView view;
  const KvShape& s = plan.shape;
  if (plan.codec == Codec::kNone) {
    for (int l = 0; l < s.layers; ++l) {
      view.dense_.push_back(
          view_dense_record(state.subspan(plan.record_offset[l], plan.record_bytes[l]), plan));
    }
    return view;
  }
  view.signs_.resize(s.head_dim);
  kernels::rotation_signs(plan.options.seed, s.head_dim, view.signs_.data());
  view.heads_.resize(static_cast<size_t>(s.layers) * s.kv_heads);
  for (int l = 0; l < s.layers; ++l) {
    view.compressed_.push_back(
        view_record(state.subspan(plan.record_offset[l], plan.record_bytes[l]), plan,
                    view.heads_.data() + static_cast<size_t>(l) * s.kv_heads, view.signs_.data()));
  }
  return view;
}

}  // namespace akv::kv
