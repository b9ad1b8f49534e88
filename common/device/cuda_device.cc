#include <algorithm>

#include "common/device/cuda_check.h"

namespace akv {
namespace {

constexpr int kLeastCapability = 80;  // bf16 mma and cp.async

// The context is gone after these: CUDA gives them for every later call.
bool loses_device(cudaError_t error) {
  switch (error) {
    case cudaErrorDevicesUnavailable:
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorLaunchFailure:
    case cudaErrorUnknown:
      return true;
    default:
      // Traps, misaligned and invalid addresses, hardware stack errors lie beside them.
      return error >= 714 && error <= 718;
  }
}

Code code_of(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return Code::kResourceExhausted;
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
      return Code::kUnavailable;
    case cudaErrorNotSupported:
      return Code::kUnsupported;
    default:
      return loses_device(error) ? Code::kUnavailable : Code::kInternal;
  }
}

// 13000 -> "13.0"
std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Why the runtime finds no device, for people.
Error explain(cudaError_t error) {
  int driver = 0;
  int runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  std::string text = "no CUDA: ";
  if (driver == 0) {
    text += "no NVIDIA driver is installed";
  } else if (error == cudaErrorInsufficientDriver) {
    text += "the driver serves CUDA " + version_text(driver) + ", this build needs CUDA " +
            version_text(runtime);
  } else if (error == cudaErrorNoDevice) {
    text += "the driver sees no device";
  } else {
    text += std::string(cudaGetErrorString(error)) + " (" + cudaGetErrorName(error) + ")";
  }
  return make_error(Code::kUnavailable, std::move(text), "device");
}

Result<Device> describe_device(int ordinal) {
  cudaDeviceProp properties;
  const cudaError_t error = cudaGetDeviceProperties(&properties, ordinal);
  if (error != cudaSuccess) return explain(error);
  Device device;
  device.kind = DeviceKind::kCuda;
  device.ordinal = ordinal;
  device.name = properties.name;
  device.memory_bytes = properties.totalGlobalMem;
  device.multiprocessors = properties.multiProcessorCount;
  device.compute_capability = 10 * properties.major + properties.minor;
  device.shared_memory_bytes = static_cast<int>(properties.sharedMemPerBlockOptin);
  return device;
}

}  // namespace

Status cuda_status(const Device& device, cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());  // it is reported here; a lost device keeps its own
  std::string text = "CUDA device " + std::to_string(device.ordinal) + ", " + what + ": " +
                     cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")";
  if (loses_device(error)) device.health->mark_lost(text);
  return make_error(code_of(error), std::move(text));
}

Status enter_device(const Device& device) {
  if (const std::optional<Error> lost = device.health->lost()) return *lost;
  if (!device.is_cuda()) return make_error(Code::kUnsupported, "the device is not a CUDA device");
  return cuda_status(device, cudaSetDevice(device.ordinal), "select");
}

void enter_device_quietly(const Device& device) {
  static_cast<void>(cudaSetDevice(device.ordinal));
}

Result<std::vector<Device>> find_cuda_devices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    static_cast<void>(cudaGetLastError());
    return explain(error == cudaSuccess ? cudaErrorNoDevice : error);
  }
  std::vector<Device> devices;
  std::string too_old;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    AKV_ASSIGN_OR_RETURN(Device device, describe_device(ordinal));
    if (device.compute_capability >= kLeastCapability) {
      devices.push_back(std::move(device));
    } else {
      too_old = device.name + " has compute capability " +
                std::to_string(device.compute_capability / 10) + "." +
                std::to_string(device.compute_capability % 10);
    }
  }
  if (devices.empty()) {
    return make_error(Code::kUnavailable, "no CUDA: " + too_old + ", this build needs 8.0",
                      "device");
  }
  return devices;
}

Status use_device(const Device& device) { return enter_device(device); }

Result<bool> memory_is_host(const Device& device) {
  AKV_RETURN_IF_ERROR(enter_device(device));
  void* probe = nullptr;
  AKV_CUDA_RETURN_IF_ERROR(device, cudaMalloc(&probe, 256), "allocate");
  cudaPointerAttributes attributes = {};
  const cudaError_t error = cudaPointerGetAttributes(&attributes, probe);
  const bool same = attributes.hostPointer == probe;
  AKV_CUDA_RETURN_IF_ERROR(device, cudaFree(probe), "free");
  AKV_CUDA_RETURN_IF_ERROR(device, error, "ask about an address");
  return same;
}

Result<uint64_t> free_memory_bytes(const Device& device) {
  AKV_RETURN_IF_ERROR(enter_device(device));
  size_t free = 0;
  size_t total = 0;
  AKV_CUDA_RETURN_IF_ERROR(device, cudaMemGetInfo(&free, &total), "ask for free memory");
  return static_cast<uint64_t>(free);
}

}  // namespace akv
