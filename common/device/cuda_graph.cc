#include "common/device/cuda_check.h"
#include "common/device/graph.h"

namespace akv {
namespace {
cudaStream_t native(DeviceStream stream) { return static_cast<cudaStream_t>(stream.handle); }
cudaGraphExec_t native_graph(void* handle) { return static_cast<cudaGraphExec_t>(handle); }
}  // namespace

Result<Graph> Graph::capture(const Stream& stream, const std::function<Status()>& enqueue) {
  const Device& device = stream.device();
  AKV_RETURN_IF_ERROR(enter_device(device));
  AKV_RETURN_IF_ERROR(stream.check());
  // Of this thread alone: others go on allocating meanwhile.
  AKV_CUDA_RETURN_IF_ERROR(device,
                           cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal),
                           "begin to record a graph");
  Status done = enqueue();
  if (done.ok()) done = stream.check();
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(native(stream), &graph);
  if (done.ok()) done = cuda_status(device, ended, "record a graph");
  size_t nodes = 0;
  cudaGraphExec_t exec = nullptr;
  if (done.ok()) {
    done = cuda_status(device, cudaGraphGetNodes(graph, nullptr, &nodes), "count a graph's nodes");
  }
  if (done.ok()) {
    done = cuda_status(device, cudaGraphInstantiate(&exec, graph, 0), "make a graph");
  }
  if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
  if (!done.ok()) {
    static_cast<void>(cudaGetLastError());  // what a discarded recording leaves behind
    return done.error();
  }
  return Graph(device, exec, nodes);
}

Graph& Graph::operator=(Graph&& other) noexcept {
  Graph taken(std::move(other));
  std::swap(device_, taken.device_);
  std::swap(handle_, taken.handle_);
  std::swap(nodes_, taken.nodes_);
  return *this;
}

Graph::~Graph() {
  if (handle_ == nullptr) return;
  enter_device_quietly(device_);
  static_cast<void>(cudaGraphExecDestroy(native_graph(handle_)));
}

Status Graph::launch(DeviceStream stream) const {
  AKV_RETURN_IF_ERROR(enter_device(device_));
  return cuda_status(device_, cudaGraphLaunch(native_graph(handle_), native(stream)),
                     "launch a graph");
}

}  // namespace akv
