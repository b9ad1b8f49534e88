#include "tests/kernels/device_attention_case.h"

#include <gtest/gtest.h>

#include <cstring>

namespace akv::testing {

using kernels::CompressedHeadView;
using kernels::CompressedLayerView;
using kernels::CompressedSideView;
using kernels::DenseLayerView;

DevicePack::DevicePack(size_t capacity) : host_(capacity, 0xff) {
  EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&device_), capacity), cudaSuccess);
}
DevicePack::~DevicePack() { cudaFree(device_); }

void* DevicePack::place(const void* bytes, size_t size, size_t align) {
  used_ += 16;
  while (used_ % align != 0 || used_ % (2 * align) == 0) ++used_;
  if (used_ + size + 16 > host_.size()) {
    ADD_FAILURE() << "the pack is full";
    return nullptr;
  }
  if (size > 0) std::memcpy(host_.data() + used_, bytes, size);
  void* at = device_ + used_;
  used_ += size;
  return at;
}

void DevicePack::upload() {
  EXPECT_EQ(cudaMemcpy(device_, host_.data(), host_.size(), cudaMemcpyHostToDevice), cudaSuccess);
}

namespace {

CompressedSideView put_side(DevicePack& pack, const CompressedLayerView& layer,
                            const CompressedSideView& side, size_t anchor_align) {
  const auto tokens = static_cast<size_t>(layer.prefix), words = (tokens + 63) / 64;
  const auto dim = static_cast<size_t>(layer.head_dim);
  CompressedSideView out = side;
  out.slots8 = pack.put(side.slots8, tokens);
  out.slots16 = pack.put(side.slots16, tokens);
  out.gamma8 = pack.put(side.gamma8, tokens);
  out.gamma16 = pack.put(side.gamma16, tokens);
  out.mask = pack.put(side.mask, words);
  out.mask4 = pack.put(side.mask4, words);
  out.prefix2 = pack.put(side.prefix2, words);
  out.prefix4 = pack.put(side.prefix4, words);
  out.codes2 = pack.put(side.codes2, side.n2 * dim / 4, 2);
  out.codes4 = pack.put(side.codes4, side.n4 * dim / 2, 1);
  out.scale2_bf16 = pack.put(side.scale2_bf16, side.n2);
  out.scale4_bf16 = pack.put(side.scale4_bf16, side.n4);
  out.scale2_f32 = pack.put(side.scale2_f32, side.n2);
  out.scale4_f32 = pack.put(side.scale4_f32, side.n4);
  out.anchors = pack.put(side.anchors, static_cast<size_t>(layer.anchors) * dim, anchor_align);
  return out;
}

}  // namespace

const CompressedLayerView* put(DevicePack& pack, const CompressedLayerView& layer,
                               size_t anchor_align) {
  std::vector<CompressedHeadView> heads;
  for (int h = 0; h < layer.kv_heads; ++h) {
    heads.push_back({put_side(pack, layer, layer.heads[h].key, anchor_align),
                     put_side(pack, layer, layer.heads[h].value, anchor_align)});
  }
  std::vector<CompressedLayerView> layers(kDeviceLayers);
  layers[kDeviceLayer] = layer;
  layers[kDeviceLayer].signs = pack.put(layer.signs, static_cast<size_t>(layer.head_dim));
  layers[kDeviceLayer].heads = pack.put(heads.data(), heads.size());
  return pack.put(layers.data(), layers.size());
}

const DenseLayerView* put(DevicePack& pack, const DenseLayerView& layer, size_t align) {
  const size_t count = static_cast<size_t>(layer.tokens) * static_cast<size_t>(layer.kv_heads) *
                       static_cast<size_t>(layer.head_dim);
  std::vector<DenseLayerView> layers(kDeviceLayers);
  layers[kDeviceLayer] = layer;
  layers[kDeviceLayer].k = pack.put(layer.k, count, align);
  layers[kDeviceLayer].v = pack.put(layer.v, count, align);
  return pack.put(layers.data(), layers.size());
}

std::vector<const bf16*> put(DevicePack& pack, const kernels::SuffixView& suffix, int kv_heads,
                             int head_dim) {
  std::vector<const bf16*> pages;
  const auto part = static_cast<size_t>(2 * kernels::kSuffixPageTokens * kv_heads * head_dim);
  const auto size = static_cast<size_t>(suffix.layer_offset) + part;
  for (int t = 0; t < suffix.tokens; t += kernels::kSuffixPageTokens) {
    pages.push_back(pack.put(suffix.pages[t / kernels::kSuffixPageTokens], size, 16));
  }
  return pages;
}

}  // namespace akv::testing
