#include "common/device/export_pool.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

namespace akv {
namespace {

constexpr uint64_t kLeastBytes = uint64_t{64} << 10;

// Eight sizes to each power of two: records of one model are of few sizes, and little is lost.
uint64_t size_for(uint64_t bytes) {
  const uint64_t step = std::max(kLeastBytes, std::bit_floor(bytes) / 8);
  return (bytes + step - 1) / step * step;
}

}  // namespace

Result<std::shared_ptr<std::byte>> ExportPool::allocate(uint64_t bytes) {
  AKV_ASSIGN_OR_RETURN(auto buffer, take(size_for(bytes)));
  std::byte* const data = buffer.data();
  auto owned = std::make_shared<DeviceBuffer>(std::move(buffer));
  return std::shared_ptr<std::byte>(
      data, [pool = shared_from_this(), owned = std::move(owned)](std::byte*) {
        const std::lock_guard lock(pool->mutex_);
        const uint64_t size = owned->size();
        pool->kept_[size].push_back(std::move(*owned));
      });
}

Result<DeviceBuffer> ExportPool::take(uint64_t size) {
  const std::lock_guard lock(mutex_);
  if (const auto it = kept_.find(size); it != kept_.end()) {
    DeviceBuffer kept = std::move(it->second.back());
    it->second.pop_back();
    if (it->second.empty()) kept_.erase(it);
    return kept;
  }
  drop_kept(size);
  if (size > limit_bytes_ || held_bytes_ > limit_bytes_ - size) {
    return make_error(Code::kResourceExhausted,
                      "device memory for transfers: " + std::to_string(held_bytes_) + " of " +
                          std::to_string(limit_bytes_) + " in use");
  }
  AKV_ASSIGN_OR_RETURN(auto buffer, DeviceBuffer::allocate(device_, size));
  held_bytes_ += size;
  return buffer;
}

// Frees kept blocks, the largest first, until `needed_bytes` fit below the limit.
void ExportPool::drop_kept(uint64_t needed_bytes) {
  while (!kept_.empty() &&
         (needed_bytes > limit_bytes_ || held_bytes_ > limit_bytes_ - needed_bytes)) {
    const auto last = std::prev(kept_.end());
    last->second.pop_back();
    held_bytes_ -= last->first;
    if (last->second.empty()) kept_.erase(last);
  }
}

uint64_t ExportPool::held_bytes() const {
  const std::lock_guard lock(mutex_);
  return held_bytes_;
}

}  // namespace akv
