#include "common/kv/record_view.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "common/kv/record_layout.h"
#include "proto/state.h"

namespace akv::kv {
namespace {

template <class T>
const T* at(std::span<const std::byte> record, uint64_t offset) {
  return reinterpret_cast<const T*>(record.data() + offset);
}

bool finite_rows(const bf16* x, uint64_t n) {
  unsigned bad = 0;
  for (uint64_t i = 0; i < n; ++i) bad |= (x[i].bits & 0x7f80u) == 0x7f80u;
  return bad == 0;
}

bool all_zero(std::span<const std::byte> record, uint64_t from, uint64_t to) {
  std::byte any{0};
  for (uint64_t i = from; i < to; ++i) any |= record[i];
  return any == std::byte{0};
}

// One payload and its plan; `n2`, `n4` count residuals of a side up to a head.
class Checker {
 public:
  Checker(std::span<const std::byte> record, const StatePlan& plan)
      : record_(record),
        plan_(plan),
        layout_(record_layout(plan.shape, plan.tokens, plan.layer, plan.options)) {}

  const char* run() {
    if (const char* problem = positions()) return problem;
    for (int side : {0, 1}) {
      uint64_t n[2] = {0, 0};
      if (const char* problem = masks(side, n)) return problem;
      if (const char* problem = region(side, n[0], n[1])) return problem;
      for (int h = 0; h < plan_.shape.kv_heads; ++h) {
        if (const char* problem = tokens(side, h)) return problem;
      }
    }
    const uint64_t rows = uint64_t{4} * plan_.shape.kv_heads * plan_.layer.k / 2;
    if (!finite_rows(at<bf16>(record_, layout_.anchors), rows * plan_.shape.head_dim)) {
      return "an anchor row is not finite";
    }
    const uint64_t gammas = layout_.gammas + 2 * static_cast<uint64_t>(plan_.shape.kv_heads) *
                                                 layout_.prefix * layout_.coefficient_bytes;
    if (!all_zero(record_, gammas, layout_.value_region) ||
        !all_zero(record_, layout_.end, record_.size())) {
      return "padding is not zero";
    }
    return nullptr;
  }

 private:
  int64_t anchor_position(int head, int a) const {
    const int64_t index = static_cast<int64_t>(head) * layout_.selected + a;
    return plan_.options.layout == Layout::kPaper
               ? at<int64_t>(record_, layout_.anchor_positions)[index]
               : at<uint32_t>(record_, layout_.anchor_positions)[index];
  }

  const char* positions() const {
    for (int h = 0; h < plan_.shape.kv_heads; ++h) {
      int64_t before = -1;
      for (int a = 0; a < layout_.selected; ++a) {
        const int64_t position = anchor_position(h, a);
        if (position <= before || position >= layout_.prefix) {
          return "anchor positions are not ascending within the prompt";
        }
        before = position;
      }
    }
    if (plan_.options.layout != Layout::kPaper) return nullptr;
    const int32_t* tokens = at<int32_t>(record_, layout_.token_positions);
    for (int64_t t = 0; t < layout_.prefix; ++t) {
      if (tokens[t] != t) return "token positions are not contiguous";
    }
    return nullptr;
  }

  const uint64_t* mask(int side, int head, int which) const {
    const int64_t pair = static_cast<int64_t>(side) * plan_.shape.kv_heads + head;
    return at<uint64_t>(record_, layout_.masks) +
           (pair * layout_.masks_per_head() + which) * layout_.words;
  }
  const uint32_t* prefix(int side, int head, int which) const {
    const int64_t pair = static_cast<int64_t>(side) * plan_.shape.kv_heads + head;
    return at<uint32_t>(record_, layout_.prefixes) +
           (pair * layout_.masks_per_head() + which) * layout_.words;
  }

  // Masks, prefix counts and head offsets of a side; n becomes its residuals of 2 and 4 bits.
  const char* masks(int side, uint64_t n[2]) const {
    const int heads = plan_.shape.kv_heads;
    const int32_t* offsets =
        at<int32_t>(record_, layout_.head_offsets) + static_cast<int64_t>(side) * (heads + 1);
    for (int h = 0; h < heads; ++h) {
      if (offsets[h] < 0 || static_cast<uint64_t>(offsets[h]) != n[0] + n[1]) {
        return "head offsets do not match the masks";
      }
      uint64_t head[2] = {0, 0};
      for (int64_t w = 0; w < layout_.words; ++w) {
        const uint64_t any = mask(side, h, 0)[w];
        const uint64_t four = layout_.two_masks ? mask(side, h, 1)[w] : 0;
        const int64_t valid = layout_.prefix - 64 * w;
        if (valid < 64 && (any >> valid) != 0) return "a residual lies outside the prompt";
        if ((four & ~any) != 0) return "a 4-bit residual is not in the mask";
        if (prefix(side, h, 0)[w] != head[0] ||
            (layout_.two_masks && prefix(side, h, 1)[w] != head[1])) {
          return "prefix counts do not match the masks";
        }
        head[0] += static_cast<uint64_t>(std::popcount(any & ~four));
        head[1] += static_cast<uint64_t>(std::popcount(four));
      }
      n[0] += head[0];
      n[1] += head[1];
    }
    if (static_cast<uint64_t>(offsets[heads]) != n[0] + n[1] || offsets[heads] < 0) {
      return "head offsets do not match the masks";
    }
    return nullptr;
  }

  const char* region(int side, uint64_t n2, uint64_t n4) const {
    const uint64_t start = side == 0 ? layout_.key_region : layout_.value_region;
    const uint64_t size = side == 0 ? plan_.layer.key_bytes : plan_.layer.value_bytes;
    const bool chunk = layout_.chunk_byte && side == 1;
    const RegionLayout r = region_layout(plan_.shape.head_dim, n2, n4, layout_.scale_bytes, chunk);
    if (r.end > size) return "residuals exceed their region";
    for (uint64_t i = 0; i < n2 + n4; ++i) {
      const float scale = layout_.scale_bytes == 4 ? at<float>(record_, start)[i]
                                                   : to_float(at<bf16>(record_, start)[i]);
      if (!std::isfinite(scale) || scale < 0) return "a scale is negative or not finite";
    }
    if (!all_zero(record_, start + r.end, start + size)) return "padding is not zero";
    return chunk ? chunks(start + r.chunks, n2) : nullptr;
  }

  // The paper's chunk-local positions of value residuals.
  const char* chunks(uint64_t offset, uint64_t n2) const {
    const uint8_t* chunk = at<uint8_t>(record_, offset);
    uint64_t at2 = 0, at4 = n2;
    for (int h = 0; h < plan_.shape.kv_heads; ++h) {
      for (int64_t w = 0; w < layout_.words; ++w) {
        const uint64_t four = layout_.two_masks ? mask(1, h, 1)[w] : 0;
        for (uint64_t left = mask(1, h, 0)[w]; left != 0; left &= left - 1) {
          const int bit = std::countr_zero(left);
          const uint64_t index = (four >> bit) & 1 ? at4++ : at2++;
          if (chunk[index] != bit) return "chunk positions do not match the mask";
        }
      }
    }
    return nullptr;
  }

  const char* tokens(int side, int head) const {
    const int64_t p = layout_.prefix;
    const int64_t pair = static_cast<int64_t>(side) * plan_.shape.kv_heads + head;
    const uint8_t* slots8 = at<uint8_t>(record_, layout_.slots) + pair * p;
    const uint16_t* slots16 = at<uint16_t>(record_, layout_.slots) + pair * p;
    const auto slot = [&](int64_t t) { return layout_.index_bytes == 1 ? slots8[t] : slots16[t]; };
    int top = 0;
    for (int64_t t = 0; t < p; ++t) top = std::max<int>(top, slot(t));
    if (top >= plan_.layer.k) return "a slot names no anchor";
    for (int a = 0; a < layout_.selected; ++a) {
      const int64_t t = anchor_position(head, a);
      if (slot(t) != a) return "an anchor is not in its own slot";
      if ((mask(side, head, 0)[t >> 6] >> (t & 63)) & 1) return "an anchor has a residual";
    }
    if (layout_.coefficient_bytes == 2 &&
        !finite_rows(at<bf16>(record_, layout_.gammas) + pair * p, static_cast<uint64_t>(p))) {
      return "a coefficient is not finite";
    }
    return nullptr;
  }

  std::span<const std::byte> record_;
  const StatePlan& plan_;
  RecordLayout layout_;
};

// Residuals of one width in all heads before `head` come from the last words of the masks.
struct Counts {
  uint64_t n2 = 0, n4 = 0;
};

Counts head_counts(const kernels::CompressedSideView& side, int64_t words) {
  if (words == 0) return {};
  const uint64_t four = side.mask4 == nullptr ? 0 : side.mask4[words - 1];
  const uint64_t two = side.mask[words - 1] & ~four;
  return {side.prefix2[words - 1] + static_cast<uint64_t>(std::popcount(two)),
          side.mask4 == nullptr
              ? 0
              : side.prefix4[words - 1] + static_cast<uint64_t>(std::popcount(four))};
}

// Everything of a side but its residual streams.
kernels::CompressedSideView side_arrays(std::span<const std::byte> record, const StatePlan& plan,
                                        const RecordLayout& l, int side, int head) {
  kernels::CompressedSideView v;
  const int64_t pair = static_cast<int64_t>(side) * plan.shape.kv_heads + head;
  const int64_t masks = l.masks_per_head();
  v.mask = at<uint64_t>(record, l.masks) + pair * masks * l.words;
  v.prefix2 = at<uint32_t>(record, l.prefixes) + pair * masks * l.words;
  if (l.two_masks) {
    v.mask4 = v.mask + l.words;
    v.prefix4 = v.prefix2 + l.words;
  }
  if (l.index_bytes == 1) {
    v.slots8 = at<uint8_t>(record, l.slots) + pair * l.prefix;
  } else {
    v.slots16 = at<uint16_t>(record, l.slots) + pair * l.prefix;
  }
  if (l.coefficient_bytes == 1) {
    v.gamma8 = at<uint8_t>(record, l.gammas) + pair * l.prefix;
  } else {
    v.gamma16 = at<bf16>(record, l.gammas) + pair * l.prefix;
  }
  v.anchors = at<bf16>(record, l.anchors) + pair * plan.layer.k * plan.shape.head_dim;
  const Counts n = head_counts(v, l.words);
  v.n2 = static_cast<uint32_t>(n.n2);
  v.n4 = static_cast<uint32_t>(n.n4);
  return v;
}

void set_streams(std::span<const std::byte> record, uint64_t region, const RegionLayout& r,
                 int scale_bytes, int head_dim, Counts before, kernels::CompressedSideView& v) {
  v.codes2 = at<uint8_t>(record, region + r.codes2 + before.n2 * head_dim / 4);
  v.codes4 = at<uint8_t>(record, region + r.codes4 + before.n4 * head_dim / 2);
  const uint64_t scale2 = region + r.scales2 + before.n2 * scale_bytes;
  const uint64_t scale4 = region + r.scales4 + before.n4 * scale_bytes;
  if (scale_bytes == 4) {
    v.scale2_f32 = at<float>(record, scale2);
    v.scale4_f32 = at<float>(record, scale4);
  } else {
    v.scale2_bf16 = at<bf16>(record, scale2);
    v.scale4_bf16 = at<bf16>(record, scale4);
  }
}

}  // namespace

const char* check_payload(std::span<const std::byte> record, const StatePlan& plan) {
  return Checker(record, plan).run();
}

const char* check_dense_payload(std::span<const std::byte> record, const StatePlan& plan) {
  const bf16* rows = at<bf16>(record, proto::kRecordHeaderBytes);
  const uint64_t n = dense_layer_bytes(plan.shape, plan.tokens) / sizeof(bf16);
  return finite_rows(rows, n) ? nullptr : "keys or values are not finite";
}

kernels::CompressedLayerView view_record(std::span<const std::byte> record, const StatePlan& plan,
                                         kernels::CompressedHeadView* heads, const float* signs) {
  const KvShape& s = plan.shape;
  const RecordLayout l = record_layout(s, plan.tokens, plan.layer, plan.options);
  for (int side : {0, 1}) {
    Counts total;
    const auto view_of = [&](int h) -> kernels::CompressedSideView& {
      return side == 0 ? heads[h].key : heads[h].value;
    };
    for (int h = 0; h < s.kv_heads; ++h) {
      view_of(h) = side_arrays(record, plan, l, side, h);
      total.n2 += view_of(h).n2;
      total.n4 += view_of(h).n4;
    }
    const RegionLayout r =
        region_layout(s.head_dim, total.n2, total.n4, l.scale_bytes, l.chunk_byte && side == 1);
    Counts before;
    for (int h = 0; h < s.kv_heads; ++h) {
      auto& v = view_of(h);
      set_streams(record, side == 0 ? l.key_region : l.value_region, r, l.scale_bytes, s.head_dim,
                  before, v);
      before.n2 += v.n2;
      before.n4 += v.n4;
    }
  }
  kernels::CompressedLayerView view;
  view.tokens = static_cast<int32_t>(plan.tokens);
  view.window = plan.options.window;
  view.prefix = view.tokens - view.window;
  view.anchors = plan.layer.k;
  view.head_dim = s.head_dim;
  view.kv_heads = s.kv_heads;
  view.key_domain_post = plan.options.domain == KeyDomain::kPost;
  view.signs = signs;
  view.heads = heads;
  return view;
}

kernels::DenseLayerView view_dense_record(std::span<const std::byte> record,
                                          const StatePlan& plan) {
  kernels::DenseLayerView view;
  view.tokens = static_cast<int32_t>(plan.tokens);
  view.head_dim = plan.shape.head_dim;
  view.kv_heads = plan.shape.kv_heads;
  view.k = at<bf16>(record, proto::kRecordHeaderBytes);
  view.v = view.k + dense_layer_bytes(plan.shape, plan.tokens) / 4;
  return view;
}

}  // namespace akv::kv
