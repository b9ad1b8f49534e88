// The shim's runtime behind cuda_runtime_api.h: what streams hold, memory, graphs, faults.
//
// A stream's work is a queue that nobody works on until a host call waits for it (synchronize, a
// copy to pageable memory, cudaFree, …) or polls it (a query runs one entry). Work runs on the
// calling thread, under the one lock of the runtime.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "tests/support/cuda_shim/cuda_shim.h"
#include "tests/support/cuda_shim/include/cuda_runtime_api.h"

namespace cuda_shim {

using Work = std::function<cudaError_t()>;

struct EventState {
  uint64_t recorded = 0;  // records that were asked for
  uint64_t done = 0;      // the last one that ran
  std::chrono::steady_clock::time_point time;
  cudaStream_t stream = nullptr;  // where it was recorded last
  bool timing = true;
};

enum class MemoryKind { kDevice, kPinned, kRegistered };

struct Allocation {
  size_t bytes = 0;
  MemoryKind kind = MemoryKind::kDevice;
  cudaMemPool_t pool = nullptr;
};

struct Runtime {
  std::recursive_mutex mutex;
  Faults faults;
  std::string failure;  // of the last kernel that failed
  cudaError_t sticky = cudaSuccess;
  uint64_t calls = 0;
  uint64_t launches = 0;
  std::map<uintptr_t, Allocation> allocations;
  uint64_t device_bytes = 0;
  std::vector<cudaStream_t> streams;  // alive, the default one first
  std::unordered_map<const void*, int> dynamic_shared_limit;
  bool eager = false;
};

Runtime& runtime();

// Runs body() under the lock unless a fault says otherwise; keeps the error for cudaGetLastError.
cudaError_t call(const std::function<cudaError_t(Runtime&)>& body);

// The error of calls that the calling thread may not make while a stream is captured; they spoil
// the capture.
cudaError_t unsafe_while_capturing(Runtime& r);

// Puts work into a stream, or into the graph that it is captured into.
cudaError_t enqueue(Runtime& r, cudaStream_t stream, Work work);

// Runs what a stream, or every stream, holds. The error of the device.
cudaError_t drain(Runtime& r, cudaStream_t stream);
cudaError_t drain_all(Runtime& r);

// Null for no such stream; the default stream for null.
cudaStream_t find_stream(Runtime& r, cudaStream_t stream);
cudaStream_t default_stream(Runtime& r);

// The allocation that holds [pointer, pointer + bytes), or null.
const Allocation* find_allocation(Runtime& r, const void* pointer, size_t bytes);

}  // namespace cuda_shim

struct CUgraph_st {
  std::vector<cuda_shim::Work> nodes;  // in the order of their capture
  std::vector<cudaStream_t> streams;   // captured into it, the first one begun
};

struct CUgraphExec_st {
  std::shared_ptr<const std::vector<cuda_shim::Work>> nodes;
};

struct CUstream_st {
  std::deque<cuda_shim::Work> work;
  bool blocking = true;
  CUgraph_st* capture = nullptr;  // what it is captured into
  bool capture_origin = false;
  bool capture_invalid = false;
  bool capture_joined = true;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
  std::thread::id capture_thread;
};

struct CUevent_st {
  std::shared_ptr<cuda_shim::EventState> state = std::make_shared<cuda_shim::EventState>();
  CUgraph_st* captured_in = nullptr;
};

struct CUmemPoolHandle_st {
  uint64_t limit_bytes = 0;  // 0: none
  uint64_t used_bytes = 0;
  uint64_t high_bytes = 0;
  uint64_t release_threshold = 0;
};
