#include "common/kv/layer_encoder.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "common/base/check.h"
#include "common/base/checksum.h"
#include "common/kv/allocation.h"
#include "kernels/anchor_select.h"
#include "kernels/codec.h"
#include "kernels/residual_codec.h"
#include "kernels/utility.h"
#include "proto/state.h"

namespace akv::kv {
namespace {

constexpr int64_t kBlock = 64;  // residuals of one coding task

template <class T>
T* at(std::byte* record, uint64_t offset) {
  return reinterpret_cast<T*>(record + offset);
}

}  // namespace

const bf16* LayerEncoder::rows(const LayerInput& input, const StatePlan& plan, int head,
                               Side side) const {
  return (side == kKey ? input.k_pre : input.v) + static_cast<int64_t>(head) * plan.shape.head_dim;
}

kernels::ObservedHead LayerEncoder::observed(const LayerInput& input, const StatePlan& plan,
                                             int head) const {
  const KvShape& s = plan.shape;
  kernels::ObservedHead h;
  h.tokens = plan.tokens;
  h.window = plan.options.window;
  h.group = s.group();
  h.head_dim = s.head_dim;
  h.k = rows(input, plan, head, kKey);
  h.v = rows(input, plan, head, kValue);
  h.stride = static_cast<int64_t>(s.kv_heads) * s.head_dim;
  h.q = input.q_obs + static_cast<int64_t>(head) * s.group() * s.head_dim;
  h.q_stride = static_cast<int64_t>(s.heads) * s.head_dim;
  h.rope = input.rope;
  return h;
}

kernels::Assignment LayerEncoder::assignment(int head, Side side) {
  const size_t first = static_cast<size_t>(head) * prefix_;
  return {slot_[side].data() + first, code_[side].data() + first, gamma_[side].data() + first,
          residual2_[side].data() + first};
}

void LayerEncoder::prepare(const LayerInput&, const StatePlan& plan, const ForcedChoices* forced) {
  const KvShape& s = plan.shape;
  forced_ = forced;
  layout_ = record_layout(s, plan.tokens, plan.layer, plan.options);
  prefix_ = layout_.prefix;
  k_ = plan.layer.k;
  const size_t per_token = static_cast<size_t>(s.kv_heads) * prefix_;
  signs_.resize(s.head_dim);
  kernels::rotation_signs(plan.options.seed, s.head_dim, signs_.data());
  score_.resize(per_token);
  anchors_.resize(static_cast<size_t>(s.kv_heads) * k_);
  anchor_rows_.resize(2 * s.kv_heads);
  for (int side : {0, 1}) {
    slot_[side].resize(per_token);
    code_[side].resize(per_token);
    gamma_[side].resize(per_token);
    residual2_[side].resize(per_token);
    utility_[side].resize(per_token);
    bits_[side].resize(per_token);
    if (forced_ == nullptr) continue;
    found_slot_[side].resize(per_token);
    found_gamma_[side].resize(per_token);
    found_bits_[side].resize(per_token);
  }
}

void LayerEncoder::choose_anchors(const LayerInput& input, const StatePlan& plan, int head,
                                  const Parallel& parallel) {
  const CodecOptions& o = plan.options;
  kernels::observe_head(observed(input, plan, head), observation_, scratch_, parallel);
  float* score = score_.data() + static_cast<size_t>(head) * prefix_;
  int32_t* positions = anchors_.data() + static_cast<size_t>(head) * k_;
  kernels::pool_scores(observation_.mean_alpha.data(), prefix_, o.kernel, score);
  const int selected = k_ - o.window;
  const int top = o.rho_percent * selected / 100;
  kernels::select_anchors(score, prefix_, top, selected - top,
                          kernels::anchor_seed(o.seed, input.layer, head), order_, positions);
  for (int w = 0; w < o.window; ++w) {
    positions[selected + w] = static_cast<int32_t>(prefix_ + w);
  }
  if (forced_ != nullptr && !forced_->anchors.empty()) {
    std::copy_n(forced_->anchors[head].begin(), k_, positions);
  }
}

void LayerEncoder::force_assignment(const kernels::AssignParams& params,
                                    const kernels::Assignment& out, int head, Side side) {
  const size_t first = static_cast<size_t>(head) * prefix_;
  const bool log8 = params.log8;
  std::copy_n(out.slot, prefix_, found_slot_[side].data() + first);
  if (!forced_->slot[side].empty()) {
    std::copy_n(forced_->slot[side][head].begin(), prefix_, out.slot);
    kernels::project_on_slots(params, out);
  }
  std::copy_n(out.gamma, prefix_, found_gamma_[side].data() + first);
  if (!forced_->gamma[side].empty()) {
    for (int64_t t = 0; t < prefix_; ++t) {
      const float gamma = forced_->gamma[side][head][t];
      out.gamma[t] = gamma;
      out.code[t] = log8 ? kernels::log8_encode(gamma) : to_bf16(gamma).bits;
    }
    kernels::measure_residuals(params, out);
  }
}

kernels::AssignParams LayerEncoder::assign_params(const LayerInput& input, const StatePlan& plan,
                                                  int head, Side side) const {
  kernels::AssignParams p;
  p.x = rows(input, plan, head, side);
  p.stride = static_cast<int64_t>(plan.shape.kv_heads) * plan.shape.head_dim;
  p.prefix = prefix_;
  p.anchors = &anchor_rows_[side * plan.shape.kv_heads + head];
  p.positions = anchors_.data() + static_cast<size_t>(head) * k_;
  p.log8 = plan.options.coefficient == Coefficient::kLog8;
  return p;
}

// Slots, coefficients and utilities of one head, chunk by chunk: a chunk's rows are still in the
// cache when its utilities are computed.
void LayerEncoder::assign_and_rate(const LayerInput& input, const StatePlan& plan, int head,
                                   const Parallel& parallel) {
  const KvShape& s = plan.shape;
  const size_t first = static_cast<size_t>(head) * prefix_;
  const kernels::ObservedHead h = observed(input, plan, head);
  kernels::AssignParams params[2];
  kernels::Assignment out[2];
  for (Side side : {kKey, kValue}) {
    params[side] = assign_params(input, plan, head, side);
    out[side] = assignment(head, side);
    kernels::load_anchors(params[side].x, params[side].stride, params[side].positions, k_,
                          s.head_dim, anchor_rows_[side * s.kv_heads + head]);
  }
  kernels::UtilityParams u;
  u.head = &h;
  u.observation = &observation_;
  u.eq6 = plan.options.ranking == Ranking::kEq6;
  u.pool = plan.options.pool;
  u.key_anchors = params[kKey].anchors;
  u.positions = params[kKey].positions;
  u.anchors = k_;
  u.key = out[kKey];
  u.value = out[kValue];
  scratch_.prepare(parallel.workers,
                   std::max(kernels::assign_scratch_floats(s.head_dim, k_),
                            kernels::utility_scratch_floats(s.head_dim, observation_.lanes)));
  const int chunks = static_cast<int>(kernels::codec_chunks(prefix_));
  const auto assign = [&](int chunk, float* scratch) {
    kernels::assign_chunk(params[kKey], out[kKey], chunk, scratch);
    kernels::assign_chunk(params[kValue], out[kValue], chunk, scratch);
  };
  if (forced_ != nullptr) {
    parallel.run(chunks, [&](int chunk, int worker) { assign(chunk, scratch_.worker(worker)); });
    for (Side side : {kKey, kValue}) force_assignment(params[side], out[side], head, side);
  }
  parallel.run(chunks, [&](int chunk, int worker) {
    if (forced_ == nullptr) assign(chunk, scratch_.worker(worker));
    kernels::utility_chunk(u, chunk, utility_[kKey].data() + first, utility_[kValue].data() + first,
                           scratch_.worker(worker));
  });
}

void LayerEncoder::allocate(const StatePlan& plan, const Parallel& parallel) {
  parallel.run(2, [&](int side, int) {
    allocate_side(utility_[side], side_budget(plan, side == kValue), bits_[side]);
  });
  if (forced_ == nullptr) return;
  for (int side : {0, 1}) {
    found_bits_[side] = bits_[side];
    if (forced_->bits[side].empty()) continue;
    for (int h = 0; h < plan.shape.kv_heads; ++h) {
      std::copy_n(forced_->bits[side][h].begin(), prefix_,
                  bits_[side].begin() + static_cast<int64_t>(h) * prefix_);
    }
  }
}

void LayerEncoder::collect_streams(const StatePlan& plan) {
  const int heads = plan.shape.kv_heads;
  streams_.resize(4 * heads);
  for (int side : {0, 1}) {
    count_[side][0] = count_[side][1] = 0;
    for (int h = 0; h < heads; ++h) {
      const auto bits = of(bits_[side], h);
      for (int wide : {0, 1}) {
        Stream& s = streams_[(side * heads + h) * 2 + wide];
        s.side = static_cast<Side>(side);
        s.head = h;
        s.bits = wide ? 4 : 2;
        s.tokens.clear();
        for (int64_t t = 0; t < prefix_; ++t) {
          if (bits[t] == s.bits) s.tokens.push_back(static_cast<int32_t>(t));
        }
        s.first = count_[side][wide];
        count_[side][wide] += s.tokens.size();
      }
    }
  }
}

void LayerEncoder::write_positions(const StatePlan& plan, std::byte* record) {
  const int window = plan.options.window;
  const bool paper = plan.options.layout == Layout::kPaper;
  const int selected = k_ - window;
  for (int h = 0; h < plan.shape.kv_heads; ++h) {
    for (int a = 0; a < selected; ++a) {
      const int32_t position = anchors_[static_cast<size_t>(h) * k_ + a];
      const int64_t index = static_cast<int64_t>(h) * selected + a;
      if (paper) {
        at<int64_t>(record, layout_.anchor_positions)[index] = position;
      } else {
        at<uint32_t>(record, layout_.anchor_positions)[index] = static_cast<uint32_t>(position);
      }
    }
  }
  if (paper) {
    int32_t* positions = at<int32_t>(record, layout_.token_positions);
    for (int64_t t = 0; t < prefix_; ++t) positions[t] = static_cast<int32_t>(t);
  }
  int32_t* offsets = at<int32_t>(record, layout_.head_offsets);
  for (int side : {0, 1}) {
    int32_t total = 0;
    for (int h = 0; h < plan.shape.kv_heads; ++h) {
      *offsets++ = total;
      const Stream* s = &streams_[(side * plan.shape.kv_heads + h) * 2];
      total += static_cast<int32_t>(s[0].tokens.size() + s[1].tokens.size());
    }
    *offsets++ = total;
  }
}

void LayerEncoder::write_side(const LayerInput& input, const StatePlan& plan, int head, Side side,
                              std::byte* record) {
  const KvShape& s = plan.shape;
  const int64_t pair = static_cast<int64_t>(side) * s.kv_heads + head;
  const int masks = layout_.masks_per_head();
  uint64_t* mask = at<uint64_t>(record, layout_.masks) + pair * masks * layout_.words;
  uint32_t* prefix = at<uint32_t>(record, layout_.prefixes) + pair * masks * layout_.words;
  const auto bits = of(bits_[side], head);
  uint32_t n[2] = {0, 0};
  for (int64_t w = 0; w < layout_.words; ++w) {
    uint64_t any = 0, four = 0;
    const int64_t end = std::min<int64_t>(prefix_, 64 * w + 64);
    for (int64_t t = 64 * w; t < end; ++t) {
      any |= static_cast<uint64_t>(bits[t] != 0) << (t & 63);
      four |= static_cast<uint64_t>(bits[t] == 4) << (t & 63);
    }
    mask[w] = any;
    prefix[w] = n[0];
    if (masks == 2) {
      mask[layout_.words + w] = four;
      prefix[layout_.words + w] = n[1];
    }
    n[0] += static_cast<uint32_t>(std::popcount(any & ~four));
    n[1] += static_cast<uint32_t>(std::popcount(four));
  }
  const size_t first = static_cast<size_t>(head) * prefix_;
  const uint16_t* slot = slot_[side].data() + first;
  const uint16_t* code = code_[side].data() + first;
  const auto put = [&](uint64_t offset, int width, const uint16_t* from) {
    std::byte* to = record + offset + static_cast<uint64_t>(pair) * prefix_ * width;
    if (width == 2) {
      std::memcpy(to, from, 2 * prefix_);
    } else {
      for (int64_t t = 0; t < prefix_; ++t) to[t] = static_cast<std::byte>(from[t]);
    }
  };
  put(layout_.slots, layout_.index_bytes, slot);
  put(layout_.gammas, layout_.coefficient_bytes, code);
  bf16* rows_out = at<bf16>(record, layout_.anchors) + pair * k_ * s.head_dim;
  const bf16* x = rows(input, plan, head, side);
  const int64_t stride = static_cast<int64_t>(s.kv_heads) * s.head_dim;
  for (int a = 0; a < k_; ++a) {
    const int64_t position = anchors_[static_cast<size_t>(head) * k_ + a];
    std::memcpy(rows_out + static_cast<int64_t>(a) * s.head_dim, x + position * stride,
                sizeof(bf16) * s.head_dim);
  }
}

void LayerEncoder::write_sections(const LayerInput& input, const StatePlan& plan,
                                  std::span<std::byte> record, const Parallel& parallel) {
  write_positions(plan, record.data());
  const int heads = plan.shape.kv_heads;
  parallel.run(2 * heads, [&](int task, int) {
    write_side(input, plan, task % heads, static_cast<Side>(task / heads), record.data());
  });
}

Status LayerEncoder::write_residuals(const LayerInput& input, const StatePlan& plan,
                                     std::span<std::byte> record, const Parallel& parallel) {
  const KvShape& s = plan.shape;
  const CodecOptions& o = plan.options;
  RegionLayout region[2];
  const uint64_t start[2] = {layout_.key_region, layout_.value_region};
  const uint64_t size[2] = {plan.layer.key_bytes, plan.layer.value_bytes};
  for (int side : {0, 1}) {
    region[side] = region_layout(s.head_dim, count_[side][0], count_[side][1], layout_.scale_bytes,
                                 layout_.chunk_byte && side == kValue);
    if (region[side].end > size[side]) {
      return make_error(Code::kInvalidArgument, "the chosen residuals exceed the plan");
    }
  }
  // What follows a region's content is zero, as is the padding between and after the regions.
  const auto clear = [&](uint64_t from, uint64_t to) {
    std::memset(record.data() + from, 0, to - from);
  };
  const uint64_t gammas_end =
      layout_.gammas + 2 * static_cast<uint64_t>(s.kv_heads) * prefix_ * layout_.coefficient_bytes;
  clear(start[0] + region[0].end, start[0] + size[0]);
  clear(gammas_end, layout_.value_region);
  clear(start[1] + region[1].end, record.size());

  std::vector<Block> blocks;
  for (size_t i = 0; i < streams_.size(); ++i) {
    const int64_t n = static_cast<int64_t>(streams_[i].tokens.size());
    for (int64_t b = 0; b < n; b += kBlock) {
      blocks.push_back({static_cast<int>(i), b, std::min(n, b + kBlock)});
    }
  }
  std::atomic<bool> finite{true};
  parallel.run(static_cast<int>(blocks.size()), [&](int task, int) {
    const Block& block = blocks[task];
    const Stream& in = streams_[block.stream];
    const RegionLayout& r = region[in.side];
    const bool wide = in.bits == 4;
    std::byte* base = record.data() + start[in.side];
    kernels::ResidualCoding coding;
    coding.bits = in.bits;
    coding.least_squares = o.scale == ScaleRule::kLsq;
    coding.group = in.side == kKey ? kernels::kKeyCodeGroup : kernels::kValueCodeGroup;
    coding.signs = signs_.data();
    coding.rope = in.side == kKey && o.domain == KeyDomain::kPost ? input.rope : nullptr;
    kernels::ResidualStream stream;
    stream.x = rows(input, plan, in.head, in.side);
    stream.stride = static_cast<int64_t>(s.kv_heads) * s.head_dim;
    stream.anchors = &anchor_rows_[in.side * s.kv_heads + in.head];
    stream.slot = slot_[in.side].data() + static_cast<size_t>(in.head) * prefix_;
    stream.gamma = gamma_[in.side].data() + static_cast<size_t>(in.head) * prefix_;
    stream.tokens = in.tokens.data();
    stream.n = static_cast<int64_t>(in.tokens.size());
    stream.codes =
        at<uint8_t>(base, (wide ? r.codes4 : r.codes2) + in.first * s.head_dim * in.bits / 8);
    const uint64_t scales = (wide ? r.scales4 : r.scales2) + in.first * layout_.scale_bytes;
    bool ok = true;
    if (layout_.scale_bytes == 4) {
      stream.scale_f32 = at<float>(base, scales);
      kernels::encode_residuals(coding, stream, block.begin, block.end);
      for (int64_t i = block.begin; i < block.end; ++i) ok &= std::isfinite(stream.scale_f32[i]);
    } else {
      stream.scale_bf16 = at<bf16>(base, scales);
      kernels::encode_residuals(coding, stream, block.begin, block.end);
      for (int64_t i = block.begin; i < block.end; ++i) {
        ok &= std::isfinite(to_float(stream.scale_bf16[i]));
      }
    }
    if (layout_.chunk_byte && in.side == kValue) {
      uint8_t* chunk = at<uint8_t>(base, r.chunks + (wide ? count_[in.side][0] : 0) + in.first);
      for (int64_t i = block.begin; i < block.end; ++i) {
        chunk[i] = static_cast<uint8_t>(in.tokens[i] % 64);
      }
    }
    if (!ok) finite.store(false, std::memory_order_relaxed);
  });
  if (!finite) return make_error(Code::kDataLoss, "a residual's scale is not finite");
  return {};
}

Status LayerEncoder::encode(const LayerInput& input, const StatePlan& plan, uint64_t state_checksum,
                            std::span<std::byte> record, const Parallel& parallel,
                            const ForcedChoices* forced) {
  AKV_CHECK(plan.codec == Codec::kAnchorKv);
  prepare(input, plan, forced);
  for (int h = 0; h < plan.shape.kv_heads; ++h) {
    choose_anchors(input, plan, h, parallel);
    assign_and_rate(input, plan, h, parallel);
  }
  for (int side : {0, 1}) {
    for (float gamma : gamma_[side]) {
      if (!std::isfinite(gamma)) {
        return make_error(Code::kDataLoss, "a token's coefficient is not finite");
      }
    }
  }
  allocate(plan, parallel);
  collect_streams(plan);
  write_sections(input, plan, record, parallel);
  AKV_RETURN_IF_ERROR(write_residuals(input, plan, record, parallel));
  proto::RecordHeader header;
  header.kind = proto::RecordKind::kAnchorKv;
  header.layer = static_cast<uint32_t>(input.layer);
  header.anchors = static_cast<uint32_t>(k_);
  header.record_bytes = record.size();
  header.key_bytes = plan.layer.key_bytes;
  header.value_bytes = plan.layer.value_bytes;
  header.state_checksum = state_checksum;
  proto::seal_record(header, record, xxh3_64);
  return {};
}

size_t LayerEncoder::bytes() const {
  size_t total = scratch_.bytes() + observation_.bytes() + score_.capacity() * sizeof(float) +
                 (anchors_.capacity() + order_.capacity()) * sizeof(int32_t);
  for (const auto& a : anchor_rows_) total += a.bytes();
  for (int side : {0, 1}) {
    total += (slot_[side].capacity() + code_[side].capacity()) * sizeof(uint16_t) +
             (gamma_[side].capacity() + residual2_[side].capacity()) * sizeof(float) +
             utility_[side].capacity() * sizeof(double) + bits_[side].capacity();
  }
  for (const auto& s : streams_) total += s.tokens.capacity() * sizeof(int32_t);
  return total;
}

}  // namespace akv::kv
