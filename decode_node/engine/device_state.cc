#include "decode_node/engine/device_state.h"

#include <cstring>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "kernels/cuda/decode_attention.h"

namespace akv::decode {
namespace {

constexpr uint64_t kAlignment = 256;

uint64_t rounded(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Layout of the views behind the state's bytes.
struct ViewBlock {
  uint64_t layers = 0;  // views, one a layer
  uint64_t heads = 0;   // [layers][H]
  uint64_t signs = 0;   // [D]
  uint64_t end = 0;

  explicit ViewBlock(const kv::StatePlan& plan) {
    const auto l = static_cast<uint64_t>(plan.shape.layers);
    const auto h = static_cast<uint64_t>(plan.shape.kv_heads);
    if (plan.codec == kv::Codec::kNone) {
      end = rounded(l * sizeof(kernels::DenseLayerView));
      return;
    }
    heads = rounded(l * sizeof(kernels::CompressedLayerView));
    signs = heads + rounded(l * h * sizeof(kernels::CompressedHeadView));
    end = signs + rounded(static_cast<uint64_t>(plan.shape.head_dim) * sizeof(float));
  }
};

// `pointer` into a copy of the bytes at `from`, which lies at `to`.
template <class T>
const T* moved(const T* pointer, const std::byte* from, const std::byte* to) {
  return reinterpret_cast<const T*>(to + (reinterpret_cast<const std::byte*>(pointer) - from));
}

}  // namespace

Result<std::unique_ptr<DeviceState>> DeviceState::create(DevicePool& pool,
                                                         const LandedState& landed,
                                                         const Stream& stream) {
  std::unique_ptr<DeviceState> state(new DeviceState(*landed.plan));
  AKV_RETURN_IF_ERROR(state->load(landed.bytes, pool, stream));
  return state;
}

Result<std::unique_ptr<DeviceState>> DeviceState::reserve(DevicePool& pool,
                                                          const kv::StatePlan& plan,
                                                          const Stream& stream) {
  std::unique_ptr<DeviceState> state(new DeviceState(plan));
  AKV_RETURN_IF_ERROR(state->allocate(pool, stream));
  return state;
}

Status DeviceState::allocate(DevicePool& pool, const Stream& stream) {
  views_at_ = rounded(plan_.total_bytes);
  const uint64_t bytes = views_at_ + ViewBlock(plan_).end;
  AKV_ASSIGN_OR_RETURN(memory_, pool.allocate(bytes, stream));
  return {};
}

Status DeviceState::load(std::span<const std::byte> host, DevicePool& pool, const Stream& stream) {
  AKV_RETURN_IF_ERROR(allocate(pool, stream));
  const auto fill = [&]() -> Status {
    AKV_RETURN_IF_ERROR(stream.copy_to_device(memory_.data(), host));
    return describe(host, stream);
  };
  Status status = fill();
  if (!status.ok()) memory_ = DeviceBuffer();
  return status;
}

// The host's views with every pointer moved to the device's copy, and that copied too.
Status DeviceState::describe(std::span<const std::byte> bytes, const Stream& stream) {
  AKV_CHECK(bytes.size() == plan_.total_bytes);
  const kv::StateView view = kv::StateView::create(bytes, plan_);
  const std::byte* host = bytes.data();
  const ViewBlock block(plan_);
  const std::byte* device = memory_.data();
  std::byte* target = memory_.data() + views_at_;
  std::vector<std::byte> staging(block.end);
  const int layers = plan_.shape.layers;
  const int kv_heads = plan_.shape.kv_heads;
  if (is_dense()) {
    auto* views = reinterpret_cast<kernels::DenseLayerView*>(staging.data());
    for (int l = 0; l < layers; ++l) {
      views[l] = *view.dense(l);
      views[l].k = moved(views[l].k, host, device);
      views[l].v = moved(views[l].v, host, device);
    }
    dense_ = reinterpret_cast<const kernels::DenseLayerView*>(target);
  } else {
    auto* views = reinterpret_cast<kernels::CompressedLayerView*>(staging.data());
    auto* heads = reinterpret_cast<kernels::CompressedHeadView*>(staging.data() + block.heads);
    for (int l = 0; l < layers; ++l) {
      const kernels::CompressedLayerView& from = *view.compressed(l);
      views[l] = from;
      views[l].heads =
          reinterpret_cast<const kernels::CompressedHeadView*>(target + block.heads) + l * kv_heads;
      views[l].signs = reinterpret_cast<const float*>(target + block.signs);
      for (int h = 0; h < kv_heads; ++h) {
        heads[l * kv_heads + h] = {kernels::cuda::rebased(from.heads[h].key, host, device),
                                   kernels::cuda::rebased(from.heads[h].value, host, device)};
      }
    }
    std::memcpy(staging.data() + block.signs, view.compressed(0)->signs,
                static_cast<size_t>(plan_.shape.head_dim) * sizeof(float));
    compressed_ = reinterpret_cast<const kernels::CompressedLayerView*>(target);
  }
  AKV_RETURN_IF_ERROR(stream.copy_to_device(target, staging));
  return stream.synchronize();
}

Status DeviceState::park(const Stream& stream) {
  AKV_CHECK(!parked());
  AKV_ASSIGN_OR_RETURN(auto host, kv::StateBuffer::create(plan_));
  AKV_RETURN_IF_ERROR(stream.copy_to_host(host.bytes(), memory_.data()));
  AKV_RETURN_IF_ERROR(stream.synchronize());
  host_ = std::move(host);
  memory_ = DeviceBuffer();
  compressed_ = nullptr;
  dense_ = nullptr;
  return {};
}

Status DeviceState::restore(DevicePool& pool, const Stream& stream) {
  AKV_CHECK(parked());
  AKV_RETURN_IF_ERROR(load(host_.bytes(), pool, stream));
  host_ = kv::StateBuffer();
  return {};
}

void* DevicePages::allocate(uint64_t bytes) {
  auto page = pool_->allocate(bytes, stream_);
  if (!page.ok()) return nullptr;
  void* at = page->data();
  pages_.emplace(at, std::move(*page));
  return at;
}

void DevicePages::free(void* page, uint64_t) { pages_.erase(page); }

}  // namespace akv::decode
