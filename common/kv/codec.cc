#include "common/kv/codec.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "common/base/checksum.h"
#include "common/kv/layer_encoder.h"
#include "kernels/codec.h"
#include "kernels/residual_codec.h"
#include "proto/state.h"

namespace akv::kv {
namespace {

constexpr int64_t kRowsPerTask = 256;

bool all_finite(const bf16* x, int64_t n) {
  unsigned bad = 0;
  for (int64_t i = 0; i < n; ++i) bad |= (x[i].bits & 0x7f80u) == 0x7f80u;
  return bad == 0;
}

Status check_input(const LayerInput& input, const StatePlan& plan, std::span<std::byte> record,
                   const Parallel& parallel) {
  const KvShape& s = plan.shape;
  if (input.layer < 0 || input.layer >= s.layers ||
      record.size() != plan.record_bytes[input.layer] || input.k_pre == nullptr ||
      input.v == nullptr || input.rope == nullptr ||
      (plan.codec == Codec::kAnchorKv && input.q_obs == nullptr)) {
    return make_error(Code::kInvalidArgument, "a layer's input does not belong to the plan");
  }
  if (input.rope->head_dim() != s.head_dim || input.rope->max_positions() < plan.tokens) {
    return make_error(Code::kInvalidArgument, "the RoPE table does not cover the prompt");
  }
  const int64_t row = static_cast<int64_t>(s.kv_heads) * s.head_dim;
  std::atomic<bool> finite{true};
  parallel.run(static_cast<int>((plan.tokens + kRowsPerTask - 1) / kRowsPerTask), [&](int t, int) {
    const int64_t first = t * kRowsPerTask;
    const int64_t n = std::min(kRowsPerTask, plan.tokens - first) * row;
    if (!all_finite(input.k_pre + first * row, n) || !all_finite(input.v + first * row, n)) {
      finite.store(false, std::memory_order_relaxed);
    }
  });
  if (plan.codec == Codec::kAnchorKv &&
      !all_finite(input.q_obs, static_cast<int64_t>(plan.options.window) * s.heads * s.head_dim)) {
    finite = false;
  }
  if (!finite) return make_error(Code::kDataLoss, "keys, values or queries are not finite");
  return {};
}

void write_dense(const LayerInput& input, const StatePlan& plan, std::span<std::byte> record,
                 const Parallel& parallel) {
  const KvShape& s = plan.shape;
  const int64_t d = s.head_dim, row = static_cast<int64_t>(s.kv_heads) * d, n = plan.tokens;
  bf16* k_out = reinterpret_cast<bf16*>(record.data() + proto::kRecordHeaderBytes);
  bf16* v_out = k_out + n * row;
  parallel.run(static_cast<int>((n + kRowsPerTask - 1) / kRowsPerTask), [&](int task, int) {
    const int64_t first = task * kRowsPerTask;
    const int64_t rows = std::min(kRowsPerTask, n - first);
    std::vector<float> x(static_cast<size_t>(rows * row));
    for (int64_t i = 0; i < rows * row; ++i) x[i] = to_float(input.k_pre[first * row + i]);
    kernels::rope_apply(*input.rope, x.data(), rows, s.kv_heads, first, serial());
    for (int64_t r = 0; r < rows; ++r) {
      for (int h = 0; h < s.kv_heads; ++h) {
        const int64_t to = (h * n + first + r) * d;
        for (int64_t i = 0; i < d; ++i) k_out[to + i] = to_bf16(x[r * row + h * d + i]);
        std::memcpy(v_out + to, input.v + (first + r) * row + h * d, sizeof(bf16) * d);
      }
    }
  });
}

struct SideReader {
  const kernels::CompressedSideView& side;
  int group;

  int slot(int64_t t) const { return side.slots8 ? side.slots8[t] : side.slots16[t]; }
  float gamma(int64_t t) const {
    return side.gamma8 ? kernels::log8_table()[side.gamma8[t]] : to_float(side.gamma16[t]);
  }
  bool has_residual(int64_t t) const { return (side.mask[t >> 6] >> (t & 63)) & 1; }
  // scale * level(code), still rotated.
  void residual(int64_t t, int d, float* out) const {
    const auto place = kernels::residual_place(side, t);
    uint8_t codes[kernels::kMaxHeadDim];
    kernels::unpack_row(place.four_bits ? side.codes4 : side.codes2,
                        place.four_bits ? side.n4 : side.n2, place.index, d,
                        place.four_bits ? 4 : 2, group, codes);
    const float* f32 = place.four_bits ? side.scale4_f32 : side.scale2_f32;
    const bf16* b16 = place.four_bits ? side.scale4_bf16 : side.scale2_bf16;
    const float scale = f32 != nullptr ? f32[place.index] : to_float(b16[place.index]);
    for (int i = 0; i < d; ++i) {
      out[i] =
          scale * (place.four_bits ? kernels::kLevels4[codes[i]] : kernels::kLevels2[codes[i]]);
    }
  }
};

// Row t of one side; `rope` is set where the residual was coded after rotation.
void reconstruct_row(const SideReader& r, const kernels::CompressedLayerView& view, int64_t t,
                     const kernels::RopeTable* rope, float* out) {
  const int d = view.head_dim;
  const bool window = t >= view.prefix;
  const int64_t slot = window ? view.anchors - view.window + (t - view.prefix) : r.slot(t);
  const float gamma = window ? 1.0f : r.gamma(t);
  const bf16* anchor = r.side.anchors + slot * d;
  for (int i = 0; i < d; ++i) out[i] = gamma * to_float(anchor[i]);
  if (window || !r.has_residual(t)) return;
  float residual[kernels::kMaxHeadDim];
  r.residual(t, d, residual);
  kernels::rotate_back(view.signs, d, residual);
  if (rope != nullptr) kernels::rope_rotate_back(*rope, residual, t, residual);
  for (int i = 0; i < d; ++i) out[i] += residual[i];
}

}  // namespace

Workspace::Workspace() : encoder_(std::make_unique<LayerEncoder>()) {}
Workspace::~Workspace() = default;
size_t Workspace::bytes() const { return encoder_->bytes(); }

size_t Workspace::required_bytes(const StatePlan& plan) {
  if (plan.codec == Codec::kNone) return 0;
  const KvShape& s = plan.shape;
  const size_t lanes = (static_cast<size_t>(plan.options.window) * s.group() + 15) / 16 * 16;
  const size_t tokens = plan.tokens;
  // Weights of one head; per token, side and head 2+2+4+4+8+1 bytes and a token list; the score.
  const size_t per_token_head = 2 * (21 + 4) + 4;
  const size_t anchors = size_t{2} * s.kv_heads * plan.layer.k * s.head_dim * 8;
  const size_t spans = 32 * lanes * s.head_dim * 4;
  return tokens * lanes * 4 + tokens * s.kv_heads * per_token_head + anchors + spans + (1 << 20);
}

Status compress_layer(const LayerInput& input, const StatePlan& plan, uint64_t state_checksum,
                      std::span<std::byte> record, Workspace& workspace, const Parallel& parallel) {
  AKV_RETURN_IF_ERROR(check_input(input, plan, record, parallel));
  if (plan.codec == Codec::kAnchorKv) {
    return workspace.encoder().encode(input, plan, state_checksum, record, parallel);
  }
  write_dense(input, plan, record, parallel);
  proto::RecordHeader header;
  header.kind = proto::RecordKind::kDense;
  header.layer = static_cast<uint32_t>(input.layer);
  header.record_bytes = record.size();
  header.state_checksum = state_checksum;
  proto::seal_record(header, record, xxh3_64);
  return {};
}

void reconstruct_layer(const kernels::CompressedLayerView& view, const kernels::RopeTable& rope,
                       float* k_hat, float* v_hat) {
  const int64_t d = view.head_dim;
  for (int64_t t = 0; t < view.tokens; ++t) {
    for (int h = 0; h < view.kv_heads; ++h) {
      const int64_t at = (t * view.kv_heads + h) * d;
      const SideReader key{view.heads[h].key, kernels::kKeyCodeGroup};
      const SideReader value{view.heads[h].value, kernels::kValueCodeGroup};
      reconstruct_row(key, view, t, view.key_domain_post ? &rope : nullptr, k_hat + at);
      reconstruct_row(value, view, t, nullptr, v_hat + at);
    }
  }
}

}  // namespace akv::kv
