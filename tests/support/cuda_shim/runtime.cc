#include "tests/support/cuda_shim/runtime.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace cuda_shim {
namespace {

thread_local cudaError_t t_last_error = cudaSuccess;
thread_local int t_device = 0;

uint64_t number_from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

Faults faults_from_environment() {
  Faults f;
  const char* driver = std::getenv("AKV_SHIM_DRIVER");
  const std::string_view name = driver == nullptr ? "" : driver;
  if (name == "none") f.driver = Driver::kNone;
  if (name == "old") f.driver = Driver::kTooOld;
  f.devices = static_cast<int>(number_from_environment("AKV_SHIM_DEVICES", 1));
  f.memory_bytes = number_from_environment("AKV_SHIM_MEMORY_BYTES", f.memory_bytes);
  f.fail_launch = number_from_environment("AKV_SHIM_FAIL_LAUNCH", 0);
  f.lose_device = number_from_environment("AKV_SHIM_LOSE_DEVICE", 0);
  return f;
}

// What keeps every call from working, or success.
cudaError_t standing_error(Runtime& r) {
  if (r.faults.driver != Driver::kPresent) return cudaErrorInsufficientDriver;
  if (r.faults.devices == 0) return cudaErrorNoDevice;
  ++r.calls;
  if (r.faults.lose_device != 0 && r.calls >= r.faults.lose_device) r.sticky = r.faults.lost_error;
  return r.sticky;
}

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) t_last_error = error;
  return error;
}

cudaError_t check_device(const Runtime& r, int device) {
  return device >= 0 && device < r.faults.devices ? cudaSuccess : cudaErrorInvalidDevice;
}

}  // namespace

Runtime& runtime() {
  static Runtime* instance = [] {
    auto* r = new Runtime;
    r->faults = faults_from_environment();
    const char* mode = std::getenv("AKV_SHIM_STREAMS");
    r->eager = mode != nullptr && std::string_view(mode) == "eager";
    r->streams.push_back(new CUstream_st);
    return r;
  }();
  return *instance;
}

cudaError_t call(const std::function<cudaError_t(Runtime&)>& body) {
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  const cudaError_t standing = standing_error(r);
  return remember(standing != cudaSuccess ? standing : body(r));
}

void set_faults(const Faults& faults) {
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  r.faults = faults;
  r.calls = 0;
  r.launches = 0;
}

Faults faults() {
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  return r.faults;
}

void reset() {
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  for (cudaStream_t stream : r.streams) stream->work.clear();
  r.sticky = cudaSuccess;
  r.failure.clear();
  r.faults = faults_from_environment();
  r.calls = 0;
  r.launches = 0;
  t_last_error = cudaSuccess;
}

std::string last_failure() {
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  return r.failure;
}

uint64_t launches() {
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  return r.launches;
}

uint64_t device_bytes() {
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  return r.device_bytes;
}

size_t pending_work() {
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  size_t count = 0;
  for (cudaStream_t stream : r.streams) count += stream->work.size();
  return count;
}

}  // namespace cuda_shim

using cuda_shim::call;
using cuda_shim::Runtime;

cudaError_t cudaDriverGetVersion(int* version) {
  switch (cuda_shim::faults().driver) {
    case cuda_shim::Driver::kPresent:
      *version = 13000;
      break;
    case cuda_shim::Driver::kNone:
      *version = 0;
      break;
    case cuda_shim::Driver::kTooOld:
      *version = 11040;
      break;
  }
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  return call([&](Runtime& r) {
    *count = r.faults.devices;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  *device = cuda_shim::t_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return call([&](Runtime& r) {
    const cudaError_t error = cuda_shim::check_device(r, device);
    if (error == cudaSuccess) cuda_shim::t_device = device;
    return error;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call([&](Runtime& r) {
    *properties = {};
    std::snprintf(properties->name, sizeof properties->name, "CUDA shim on the CPU");
    properties->totalGlobalMem = r.faults.memory_bytes;
    properties->sharedMemPerBlock = size_t{48} << 10;
    properties->sharedMemPerBlockOptin = size_t{163} << 10;
    properties->sharedMemPerMultiprocessor = size_t{164} << 10;
    properties->regsPerBlock = 65536;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->multiProcessorCount = 4;
    properties->major = 8;
    properties->minor = 0;
    properties->l2CacheSize = 40 << 20;
    properties->pciBusID = device;
    return cuda_shim::check_device(r, device);
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  const cudaError_t error = cudaGetDeviceProperties(&properties, device);
  if (error != cudaSuccess) return error;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = properties.maxThreadsPerBlock;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(properties.sharedMemPerBlock);
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(properties.sharedMemPerMultiprocessor);
      break;
    case cudaDevAttrWarpSize:
      *value = properties.warpSize;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      break;
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate:
      *value = 1'000'000;  // kHz
      break;
    case cudaDevAttrGlobalMemoryBusWidth:
      *value = 4096;
      break;
    case cudaDevAttrL2CacheSize:
      *value = properties.l2CacheSize;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      break;
    case cudaDevAttrMemoryPoolsSupported:
      *value = 1;
      break;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int bytes, int device) {
  return call([&](Runtime& r) {
    std::snprintf(id, static_cast<size_t>(bytes), "0000:%02x:00.0", static_cast<unsigned>(device));
    return cuda_shim::check_device(r, device);
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer;
  return call([&](Runtime& r) {
    const cudaError_t error = cuda_shim::check_device(r, device);
    return error != cudaSuccess ? error : cuda_shim::check_device(r, peer);
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  return call([&](Runtime& r) { return cuda_shim::check_device(r, peer); });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return call([](Runtime&) { return cudaSuccess; });
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  cuda_shim::t_last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() {
  Runtime& r = cuda_shim::runtime();
  std::lock_guard lock(r.mutex);
  return r.sticky != cudaSuccess ? r.sticky : cuda_shim::t_last_error;
}

namespace {
struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};
constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection",
     "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
};
}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
  for (const ErrorText& e : kErrors) {
    if (e.error == error) return e.name;
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  for (const ErrorText& e : kErrors) {
    if (e.error == error) return e.text;
  }
  return "unrecognized error code";
}
