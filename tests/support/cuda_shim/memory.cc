// Device, pool and pinned memory, and copies. Device memory is the host's, poisoned.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/support/cuda_shim/include/cuda_shim_block.h"
#include "tests/support/cuda_shim/runtime.h"

namespace cuda_shim {
namespace {

constexpr size_t kAlignment = 512;  // cudaMalloc's

cudaMemPool_t default_pool() {
  static CUmemPoolHandle_st* pool = new CUmemPoolHandle_st;
  return pool;
}

bool fits(const Runtime& r, size_t bytes, cudaMemPool_t pool) {
  if (bytes > r.faults.memory_bytes || r.device_bytes > r.faults.memory_bytes - bytes) return false;
  return pool == nullptr || pool->limit_bytes == 0 || bytes <= pool->limit_bytes - pool->used_bytes;
}

cudaError_t allocate(Runtime& r, void** pointer, size_t bytes, MemoryKind kind,
                     cudaMemPool_t pool) {
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (kind == MemoryKind::kDevice && !fits(r, rounded, pool)) {
    drain_all(r);  // what is freed in stream order is free now
    if (!fits(r, rounded, pool)) return cudaErrorMemoryAllocation;
  }
  // Not rounded: what lies behind the last byte is out of bounds for ASan.
  void* memory = nullptr;
  if (posix_memalign(&memory, kAlignment, bytes) != 0) return cudaErrorMemoryAllocation;
  std::memset(memory, kPoison, bytes);
  r.allocations[reinterpret_cast<uintptr_t>(memory)] = {bytes, kind, pool};
  if (kind == MemoryKind::kDevice) r.device_bytes += rounded;
  if (pool != nullptr) {
    pool->used_bytes += rounded;
    pool->high_bytes = std::max(pool->high_bytes, pool->used_bytes);
  }
  *pointer = memory;
  return cudaSuccess;
}

cudaError_t release(Runtime& r, void* pointer, bool device) {
  const auto it = r.allocations.find(reinterpret_cast<uintptr_t>(pointer));
  if (it == r.allocations.end() || it->second.kind == MemoryKind::kRegistered ||
      (it->second.kind == MemoryKind::kDevice) != device) {
    return cudaErrorInvalidValue;
  }
  const Allocation allocation = it->second;
  const size_t rounded = (allocation.bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (device) r.device_bytes -= rounded;
  if (allocation.pool != nullptr) allocation.pool->used_bytes -= rounded;
  r.allocations.erase(it);
  std::memset(pointer, kPoison, allocation.bytes);
  std::free(pointer);
  return cudaSuccess;
}

// Which side of a copy an address is: device memory, or the host's.
bool is_device(Runtime& r, const void* pointer) {
  const Allocation* found = find_allocation(r, pointer, 1);
  return found != nullptr && found->kind == MemoryKind::kDevice;
}

// A copy's ends as its kind claims them, and inside their allocations.
cudaError_t check_copy(Runtime& r, const void* to, const void* from, size_t bytes,
                       cudaMemcpyKind kind) {
  const bool to_device = is_device(r, to);
  const bool from_device = is_device(r, from);
  if (to_device && find_allocation(r, to, bytes) == nullptr) return cudaErrorInvalidValue;
  if (from_device && find_allocation(r, from, bytes) == nullptr) return cudaErrorInvalidValue;
  if (kind == cudaMemcpyDefault) return cudaSuccess;
  const bool claims_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool claims_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  return to_device == claims_to && from_device == claims_from ? cudaSuccess : cudaErrorInvalidValue;
}

struct Rows {
  size_t to_pitch;
  size_t from_pitch;
  size_t width;
  size_t height;
  size_t span(size_t pitch) const { return (height - 1) * pitch + width; }
};

void copy_rows(void* to, const void* from, const Rows& rows) {
  for (size_t y = 0; y < rows.height; ++y) {
    std::memmove(static_cast<char*>(to) + y * rows.to_pitch,
                 static_cast<const char*>(from) + y * rows.from_pitch, rows.width);
  }
}

cudaError_t copy(Runtime& r, void* to, const void* from, const Rows& rows, cudaMemcpyKind kind,
                 cudaStream_t stream) {
  if (rows.width == 0 || rows.height == 0) return cudaSuccess;
  cudaError_t error = check_copy(r, to, from, rows.span(rows.to_pitch), kind);
  if (error == cudaSuccess) error = check_copy(r, to, from, rows.span(rows.from_pitch), kind);
  if (error != cudaSuccess) return error;
  cudaStream_t found = find_stream(r, stream);
  if (found == nullptr) return cudaErrorInvalidResourceHandle;
  const bool to_pageable = find_allocation(r, to, 1) == nullptr;
  const bool from_pageable = find_allocation(r, from, 1) == nullptr;
  if (found->capture == nullptr && from_pageable) {
    // Read before the call returns: the caller may reuse the memory at once.
    const auto* first = static_cast<const char*>(from);
    auto kept = std::make_shared<std::vector<char>>(first, first + rows.span(rows.from_pitch));
    error = enqueue(r, found, [to, kept, rows] {
      copy_rows(to, kept->data(), rows);
      return cudaSuccess;
    });
  } else {
    error = enqueue(r, found, [to, from, rows] {
      copy_rows(to, from, rows);
      return cudaSuccess;
    });
  }
  if (error == cudaSuccess && found->capture == nullptr && to_pageable) error = drain(r, found);
  return error;
}

cudaError_t allocate_in_stream(void** pointer, size_t bytes, cudaMemPool_t pool,
                               cudaStream_t stream) {
  return call([&](Runtime& r) {
    cudaStream_t found = find_stream(r, stream);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    if (found->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
    return allocate(r, pointer, bytes, MemoryKind::kDevice, pool);
  });
}

// Freeing goes on where the device is lost: the process still owns the address space.
cudaError_t free_at_once(void* pointer, bool device) {
  if (pointer == nullptr) return cudaSuccess;
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  const cudaError_t unsafe = unsafe_while_capturing(r);
  if (unsafe != cudaSuccess) return unsafe;
  drain_all(r);
  const cudaError_t error = release(r, pointer, device);
  return r.sticky != cudaSuccess ? r.sticky : error;
}

}  // namespace

const Allocation* find_allocation(Runtime& r, const void* pointer, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  auto it = r.allocations.upper_bound(address);
  if (it == r.allocations.begin()) return nullptr;
  --it;
  const uintptr_t offset = address - it->first;
  return offset <= it->second.bytes && bytes <= it->second.bytes - offset ? &it->second : nullptr;
}

}  // namespace cuda_shim

using cuda_shim::call;
using cuda_shim::MemoryKind;
using cuda_shim::Runtime;

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return call([&](Runtime& r) {
    const cudaError_t unsafe = cuda_shim::unsafe_while_capturing(r);
    if (unsafe != cudaSuccess) return unsafe;
    return cuda_shim::allocate(r, pointer, bytes, MemoryKind::kDevice, nullptr);
  });
}

cudaError_t cudaFree(void* pointer) { return cuda_shim::free_at_once(pointer, true); }

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  return cuda_shim::allocate_in_stream(pointer, bytes, cuda_shim::default_pool(), stream);
}

cudaError_t cudaMallocFromPoolAsync(void** pointer, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  return cuda_shim::allocate_in_stream(pointer, bytes, pool, stream);
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  if (pointer == nullptr) return cudaSuccess;
  Runtime& r = cuda_shim::runtime();
  std::lock_guard lock(r.mutex);
  if (r.sticky != cudaSuccess) {
    cuda_shim::release(r, pointer, true);
    return r.sticky;
  }
  cudaStream_t found = cuda_shim::find_stream(r, stream);
  const cuda_shim::Allocation* allocation = cuda_shim::find_allocation(r, pointer, 1);
  if (found == nullptr || allocation == nullptr || allocation->kind != MemoryKind::kDevice) {
    return cudaErrorInvalidValue;
  }
  if (found->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
  return cuda_shim::enqueue(r, found,
                            [&r, pointer] { return cuda_shim::release(r, pointer, true); });
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  return call([&](Runtime&) {
    *pool = new CUmemPoolHandle_st;
    (*pool)->limit_bytes = properties->maxSize;
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  Runtime& r = cuda_shim::runtime();
  std::lock_guard lock(r.mutex);
  if (pool == nullptr || pool == cuda_shim::default_pool()) return cudaErrorInvalidValue;
  cuda_shim::drain_all(r);
  for (auto& [address, allocation] : r.allocations) {
    if (allocation.pool == pool) allocation.pool = nullptr;
  }
  delete pool;
  return r.sticky;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return call([&](Runtime&) {
    if (attribute != cudaMemPoolAttrReleaseThreshold) return cudaErrorInvalidValue;
    pool->release_threshold = *static_cast<uint64_t*>(value);
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return call([&](Runtime&) {
    auto* out = static_cast<uint64_t*>(value);
    switch (attribute) {
      case cudaMemPoolAttrReleaseThreshold:
        *out = pool->release_threshold;
        break;
      case cudaMemPoolAttrReservedMemCurrent:
      case cudaMemPoolAttrUsedMemCurrent:
        *out = pool->used_bytes;
        break;
      case cudaMemPoolAttrReservedMemHigh:
      case cudaMemPoolAttrUsedMemHigh:
        *out = pool->high_bytes;
        break;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) {
  return call([](Runtime& r) { return cuda_shim::drain_all(r); });
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  *pool = cuda_shim::default_pool();
  return call([](Runtime&) { return cudaSuccess; });
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault);
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  return call([&](Runtime& r) {
    return cuda_shim::allocate(r, pointer, bytes, MemoryKind::kPinned, nullptr);
  });
}

cudaError_t cudaFreeHost(void* pointer) { return cuda_shim::free_at_once(pointer, false); }

cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  return call([&](Runtime& r) {
    if (cuda_shim::find_allocation(r, pointer, 1) != nullptr) {
      return cudaErrorHostMemoryAlreadyRegistered;
    }
    r.allocations[reinterpret_cast<uintptr_t>(pointer)] = {bytes, MemoryKind::kRegistered, nullptr};
    return cudaSuccess;
  });
}

cudaError_t cudaHostUnregister(void* pointer) {
  Runtime& r = cuda_shim::runtime();
  std::lock_guard lock(r.mutex);
  const auto it = r.allocations.find(reinterpret_cast<uintptr_t>(pointer));
  if (it == r.allocations.end() || it->second.kind != MemoryKind::kRegistered) {
    return cudaErrorHostMemoryNotRegistered;
  }
  cuda_shim::drain_all(r);
  r.allocations.erase(it);
  return r.sticky;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return call([&](Runtime& r) {
    *total = r.faults.memory_bytes;
    *free = r.faults.memory_bytes - std::min(r.faults.memory_bytes, r.device_bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  return call([&](Runtime& r) {
    *attributes = {};
    const cuda_shim::Allocation* found = cuda_shim::find_allocation(r, pointer, 1);
    if (found == nullptr) return cudaSuccess;
    const bool device = found->kind == MemoryKind::kDevice;
    attributes->type = device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    attributes->devicePointer = const_cast<void*>(pointer);
    attributes->hostPointer = const_cast<void*>(pointer);  // CUDA says null for a device's
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return call([&](Runtime& r) {
    const cudaError_t unsafe = cuda_shim::unsafe_while_capturing(r);
    if (unsafe != cudaSuccess) return unsafe;
    const cudaError_t error = cuda_shim::copy(r, to, from, {bytes, bytes, bytes, 1}, kind, nullptr);
    return error != cudaSuccess ? error : cuda_shim::drain(r, cuda_shim::default_stream(r));
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return call([&](Runtime& r) {
    return cuda_shim::copy(r, to, from, {bytes, bytes, bytes, 1}, kind, stream);
  });
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  return call([&](Runtime& r) {
    if (width > to_pitch || width > from_pitch) return cudaErrorInvalidValue;
    return cuda_shim::copy(r, to, from, {to_pitch, from_pitch, width, height}, kind, stream);
  });
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes,
                                cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  const cudaError_t error = cudaMemsetAsync(to, value, bytes, nullptr);
  return error != cudaSuccess ? error : cudaStreamSynchronize(nullptr);
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return call([&](Runtime& r) {
    if (bytes == 0) return cudaSuccess;
    cudaStream_t found = cuda_shim::find_stream(r, stream);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    if (cuda_shim::find_allocation(r, to, bytes) == nullptr) return cudaErrorInvalidValue;
    return cuda_shim::enqueue(r, found, [to, value, bytes] {
      std::memset(to, value, bytes);
      return cudaSuccess;
    });
  });
}
