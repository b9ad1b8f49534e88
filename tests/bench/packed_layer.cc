#include "tests/bench/packed_layer.h"

#include <cstring>

#include "kernels/cuda/decode_attention.h"

namespace akv::bench {

using kernels::CompressedHeadView;
using kernels::CompressedLayerView;
using kernels::CompressedSideView;

PackedLayer::PackedLayer(const testing::CaseOptions& options)
    : dim_(options.head_dim), case_(options) {
  const CompressedLayerView& layer = case_.view();
  for (int h = 0; h < layer.kv_heads; ++h) {
    heads_.push_back({side(layer, layer.heads[h].key), side(layer, layer.heads[h].value)});
  }
  for (CompressedHeadView& head : heads_) {  // offsets until now: bytes_ has stopped moving
    head.key = kernels::cuda::rebased(head.key, nullptr, bytes_.data() - kFirst);
    head.value = kernels::cuda::rebased(head.value, nullptr, bytes_.data() - kFirst);
  }
}

CompressedLayerView PackedLayer::upload(DeviceMemory& memory) const {
  const unsigned char* base = memory.upload(bytes_.data(), bytes_.size());
  std::vector<CompressedHeadView> heads;
  for (const CompressedHeadView& head : heads_) {
    heads.push_back({kernels::cuda::rebased(head.key, bytes_.data(), base),
                     kernels::cuda::rebased(head.value, bytes_.data(), base)});
  }
  CompressedLayerView view = case_.view();
  view.heads = memory.upload(heads.data(), heads.size());
  view.signs = memory.upload(case_.view().signs, static_cast<size_t>(dim_));
  return view;
}

template <class T>
const T* PackedLayer::put(const T* values, size_t count) {
  if (values == nullptr) return nullptr;
  const size_t at = (bytes_.size() + 15) / 16 * 16;
  bytes_.resize(at + count * sizeof(T));
  std::memcpy(bytes_.data() + at, values, count * sizeof(T));
  return reinterpret_cast<const T*>(at + kFirst);
}

CompressedSideView PackedLayer::side(const CompressedLayerView& layer,
                                     const CompressedSideView& from) {
  const auto tokens = static_cast<size_t>(layer.prefix), words = (tokens + 63) / 64;
  const auto dim = static_cast<size_t>(dim_);
  CompressedSideView to = from;
  to.slots8 = put(from.slots8, tokens);
  to.slots16 = put(from.slots16, tokens);
  to.gamma8 = put(from.gamma8, tokens);
  to.mask = put(from.mask, words);
  to.mask4 = put(from.mask4, words);
  to.prefix2 = put(from.prefix2, words);
  to.prefix4 = put(from.prefix4, words);
  to.codes2 = put(from.codes2, from.n2 * dim / 4);
  to.codes4 = put(from.codes4, from.n4 * dim / 2);
  to.scale2_bf16 = put(from.scale2_bf16, from.n2);
  to.scale4_bf16 = put(from.scale4_bf16, from.n4);
  to.anchors = put(from.anchors, static_cast<size_t>(layer.anchors) * dim);
  return to;
}

}  // namespace akv::bench
