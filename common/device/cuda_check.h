// Errors of the CUDA runtime as ours. Private to this folder.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "common/base/result.h"
#include "common/device/device.h"

namespace akv {

// Success, or the error of `what` (a few words: "copy to the device"). Marks the device as lost
// where no later call can work.
Status cuda_status(const Device& device, cudaError_t error, const char* what);

// Makes the device the calling thread's. The error of a lost device.
Status enter_device(const Device& device);

// The same where errors have no way out, as in destructors: false where it cannot be entered. The
// runtime's calls that give things back are made nevertheless.
void enter_device_quietly(const Device& device);

}  // namespace akv

// Enters the device, runs a call of the runtime and returns its error from the function.
#define AKV_CUDA_RETURN_IF_ERROR(device, call, what) \
  AKV_RETURN_IF_ERROR(::akv::cuda_status((device), (call), (what)))
