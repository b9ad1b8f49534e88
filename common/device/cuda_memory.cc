#include <algorithm>
#include <bit>

#include "common/device/cuda_check.h"
#include "common/device/memory.h"

namespace akv {
namespace {

constexpr uint64_t kRounding = 512;      // what the runtime rounds to
constexpr uint64_t kLeastPinned = 4096;  // a page

uint64_t rounded(uint64_t bytes) { return (bytes + kRounding - 1) / kRounding * kRounding; }

cudaStream_t native(DeviceStream stream) { return static_cast<cudaStream_t>(stream.handle); }
cudaMemPool_t native_pool(void* handle) { return static_cast<cudaMemPool_t>(handle); }

Error over_limit(const char* what, uint64_t bytes, uint64_t used, uint64_t limit) {
  return make_error(Code::kResourceExhausted, std::string(what) + ": " + std::to_string(bytes) +
                                                  " bytes asked for, " + std::to_string(used) +
                                                  " of " + std::to_string(limit) + " in use");
}

}  // namespace

Result<DeviceBuffer> DeviceBuffer::allocate(const Device& device, uint64_t bytes) {
  AKV_RETURN_IF_ERROR(enter_device(device));
  DeviceBuffer buffer;
  if (bytes == 0) return buffer;
  void* data = nullptr;
  AKV_CUDA_RETURN_IF_ERROR(device, cudaMalloc(&data, bytes), "allocate");
  buffer.device_ = device;
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.bytes_ = bytes;
  return buffer;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  if (pool_ != nullptr) {
    pool_->give_back(data_, bytes_, stream_);
    return;
  }
  enter_device_quietly(device_);
  static_cast<void>(cudaFree(data_));
}

void DeviceBuffer::swap(DeviceBuffer& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(pool_, other.pool_);
  std::swap(stream_, other.stream_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
}

Result<std::shared_ptr<DevicePool>> DevicePool::create(const Device& device, uint64_t limit_bytes) {
  AKV_RETURN_IF_ERROR(enter_device(device));
  int supported = 0;
  AKV_CUDA_RETURN_IF_ERROR(
      device, cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, device.ordinal),
      "ask for memory pools");
  if (supported == 0) {
    return make_error(Code::kUnsupported, device.name + " has no stream-ordered memory pools");
  }
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device.ordinal;
  cudaMemPool_t handle = nullptr;
  AKV_CUDA_RETURN_IF_ERROR(device, cudaMemPoolCreate(&handle, &properties), "create a memory pool");
  std::shared_ptr<DevicePool> pool(new DevicePool(device, handle, limit_bytes));
  uint64_t keep = UINT64_MAX;  // until trim()
  AKV_CUDA_RETURN_IF_ERROR(device,
                           cudaMemPoolSetAttribute(handle, cudaMemPoolAttrReleaseThreshold, &keep),
                           "set up a memory pool");
  return pool;
}

DevicePool::~DevicePool() {
  enter_device_quietly(device_);
  static_cast<void>(cudaMemPoolDestroy(native_pool(handle_)));
}

bool DevicePool::reserve(uint64_t bytes) {
  uint64_t used = used_bytes_.load(std::memory_order_relaxed);
  do {
    if (bytes > limit_bytes_ || used > limit_bytes_ - bytes) return false;
  } while (!used_bytes_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  uint64_t peak = peak_bytes_.load(std::memory_order_relaxed);
  while (peak < used + bytes &&
         !peak_bytes_.compare_exchange_weak(peak, used + bytes, std::memory_order_relaxed)) {
  }
  return true;
}

Result<DeviceBuffer> DevicePool::allocate(uint64_t bytes, DeviceStream stream) {
  AKV_RETURN_IF_ERROR(enter_device(device_));
  DeviceBuffer buffer;
  if (bytes == 0) return buffer;
  if (bytes > UINT64_MAX - kRounding || !reserve(rounded(bytes))) {
    return over_limit("device memory", bytes, used_bytes(), limit_bytes_);
  }
  void* data = nullptr;
  const cudaError_t error =
      cudaMallocFromPoolAsync(&data, bytes, native_pool(handle_), native(stream));
  if (error != cudaSuccess) {
    used_bytes_.fetch_sub(rounded(bytes), std::memory_order_relaxed);
    return cuda_status(device_, error, "allocate from a pool").error();
  }
  buffer.device_ = device_;
  buffer.pool_ = shared_from_this();
  buffer.stream_ = stream;
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.bytes_ = bytes;
  return buffer;
}

void DevicePool::give_back(std::byte* data, uint64_t bytes, DeviceStream stream) {
  enter_device_quietly(device_);
  const cudaError_t error = cudaFreeAsync(data, native(stream));
  // A lost device has no memory left to count.
  if (error != cudaSuccess) static_cast<void>(cuda_status(device_, error, "free"));
  used_bytes_.fetch_sub(rounded(bytes), std::memory_order_relaxed);
}

Status DevicePool::trim() {
  AKV_RETURN_IF_ERROR(enter_device(device_));
  AKV_CUDA_RETURN_IF_ERROR(device_, cudaDeviceSynchronize(), "wait for the device");
  return cuda_status(device_, cudaMemPoolTrimTo(native_pool(handle_), 0), "trim a memory pool");
}

PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) pool_->give_back(data_, bytes_);
}

void PinnedBuffer::swap(PinnedBuffer& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
}

Result<std::shared_ptr<PinnedPool>> PinnedPool::create(const Device& device, uint64_t limit_bytes) {
  AKV_RETURN_IF_ERROR(enter_device(device));
  return std::shared_ptr<PinnedPool>(new PinnedPool(device, limit_bytes));
}

PinnedPool::~PinnedPool() {
  const std::lock_guard lock(mutex_);
  drop_kept(UINT64_MAX);
}

uint64_t PinnedPool::held_bytes() const {
  const std::lock_guard lock(mutex_);
  return held_bytes_;
}

// Frees kept memory, the largest first, until `needed_bytes` fit below the limit.
void PinnedPool::drop_kept(uint64_t needed_bytes) {
  enter_device_quietly(device_);
  while (!kept_.empty() &&
         (needed_bytes > limit_bytes_ || held_bytes_ > limit_bytes_ - needed_bytes)) {
    const auto last = std::prev(kept_.end());
    static_cast<void>(cudaFreeHost(last->second.back()));
    held_bytes_ -= last->first;
    last->second.pop_back();
    if (last->second.empty()) kept_.erase(last);
  }
}

Result<PinnedBuffer> PinnedPool::allocate(uint64_t bytes) {
  AKV_RETURN_IF_ERROR(enter_device(device_));
  PinnedBuffer buffer;
  if (bytes == 0) return buffer;
  const std::lock_guard lock(mutex_);
  if (bytes > limit_bytes_) return over_limit("pinned memory", bytes, held_bytes_, limit_bytes_);
  const uint64_t size = std::bit_ceil(std::max(bytes, kLeastPinned));
  void* data = nullptr;
  if (const auto it = kept_.find(size); it != kept_.end()) {
    data = it->second.back();
    it->second.pop_back();
    if (it->second.empty()) kept_.erase(it);
  } else {
    drop_kept(size);
    if (size > limit_bytes_ || held_bytes_ > limit_bytes_ - size) {
      return over_limit("pinned memory", bytes, held_bytes_, limit_bytes_);
    }
    AKV_CUDA_RETURN_IF_ERROR(device_, cudaHostAlloc(&data, size, cudaHostAllocPortable),
                             "allocate pinned memory");
    held_bytes_ += size;
  }
  buffer.pool_ = shared_from_this();
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.bytes_ = bytes;
  return buffer;
}

void PinnedPool::give_back(std::byte* data, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  kept_[std::bit_ceil(std::max(bytes, kLeastPinned))].push_back(data);
}

}  // namespace akv
