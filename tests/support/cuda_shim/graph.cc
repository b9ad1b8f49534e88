// Stream capture and graphs: a graph is the captured entries in their order, which respects every
// dependency that the capture saw.
#include <algorithm>

#include "tests/support/cuda_shim/runtime.h"

namespace cuda_shim {

cudaError_t unsafe_while_capturing(Runtime& r) {
  cudaError_t error = cudaSuccess;
  for (cudaStream_t stream : r.streams) {
    if (stream->capture == nullptr || stream->capture_mode == cudaStreamCaptureModeRelaxed ||
        (stream->capture_mode == cudaStreamCaptureModeThreadLocal &&
         stream->capture_thread != std::this_thread::get_id())) {
      continue;
    }
    stream->capture_invalid = true;
    error = cudaErrorStreamCaptureUnsupported;
  }
  return error;
}

namespace {

// Ends the capture of every stream that is captured into the graph. Whether all had joined.
bool leave_capture(const CUgraph_st& graph) {
  bool joined = true;
  for (cudaStream_t stream : graph.streams) {
    joined = joined && (stream->capture_origin || stream->capture_joined);
    stream->capture = nullptr;
    stream->capture_joined = true;
  }
  return joined;
}

}  // namespace
}  // namespace cuda_shim

using cuda_shim::call;
using cuda_shim::Runtime;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return call([&](Runtime& r) {
    cudaStream_t found = cuda_shim::find_stream(r, stream);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    if (found == cuda_shim::default_stream(r) || found->capture != nullptr) {
      return cudaErrorStreamCaptureUnsupported;
    }
    found->capture = new CUgraph_st;
    found->capture->streams.push_back(found);
    found->capture_origin = true;
    found->capture_invalid = false;
    found->capture_mode = mode;
    found->capture_thread = std::this_thread::get_id();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  Runtime& r = cuda_shim::runtime();
  std::lock_guard lock(r.mutex);
  cudaStream_t found = cuda_shim::find_stream(r, stream);
  if (found == nullptr) return cudaErrorInvalidResourceHandle;
  if (found->capture == nullptr || !found->capture_origin) return cudaErrorStreamCaptureUnmatched;
  CUgraph_st* made = found->capture;
  bool invalid = false;
  for (cudaStream_t member : made->streams) invalid = invalid || member->capture_invalid;
  const bool joined = cuda_shim::leave_capture(*made);
  if (invalid || !joined || r.sticky != cudaSuccess) {
    delete made;
    if (r.sticky != cudaSuccess) return r.sticky;
    return invalid ? cudaErrorStreamCaptureInvalidated : cudaErrorStreamCaptureUnjoined;
  }
  made->streams.clear();
  *graph = made;
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return call([&](Runtime& r) {
    cudaStream_t found = cuda_shim::find_stream(r, stream);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    *status = cudaStreamCaptureStatusNone;
    if (found->capture != nullptr) {
      *status = found->capture_invalid ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  return call([&](Runtime&) {
    if (graph == nullptr) return cudaErrorInvalidValue;
    *exec = new CUgraphExec_st;
    (*exec)->nodes = std::make_shared<const std::vector<cuda_shim::Work>>(graph->nodes);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return call([&](Runtime& r) {
    cudaStream_t found = cuda_shim::find_stream(r, stream);
    if (exec == nullptr || found == nullptr) return cudaErrorInvalidResourceHandle;
    return cuda_shim::enqueue(r, found, [nodes = exec->nodes] {
      for (const cuda_shim::Work& work : *nodes) {
        const cudaError_t error = work();
        if (error != cudaSuccess) return error;
      }
      return cudaSuccess;
    });
  });
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
  return call([&](Runtime& r) {
    const bool known = exec != nullptr && cuda_shim::find_stream(r, stream) != nullptr;
    return known ? cudaSuccess : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, void* nodes, size_t* count) {
  return call([&](Runtime&) {
    if (graph == nullptr || nodes != nullptr) return cudaErrorNotSupported;
    *count = graph->nodes.size();
    return cudaSuccess;
  });
}
