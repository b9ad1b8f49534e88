// A recorded sequence of work that is started as one.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "common/base/result.h"
#include "common/device/stream.h"

namespace akv {

// Records what is put into a stream, with the arguments as they are then, and plays it any number
// of times. Pointers stay those of the recording. One thread at a time.
class Graph {
 public:
  // Calls enqueue() once: what it puts into `stream` (and into streams that wait for it and that it
  // waits for) is recorded, not run. It must not synchronise or allocate. Its error, or kInternal
  // for work that cannot be recorded; the stream is usable afterwards either way.
  static Result<Graph> capture(const Stream& stream, const std::function<Status()>& enqueue);
  Graph(Graph&& other) noexcept
      : device_(std::move(other.device_)),
        handle_(std::exchange(other.handle_, nullptr)),
        nodes_(other.nodes_) {}
  Graph& operator=(Graph&& other) noexcept;
  ~Graph();

  // Puts the recorded work into a stream of the same device.
  Status launch(DeviceStream stream) const;

  size_t nodes() const { return nodes_; }  // kernels, copies and fills

 private:
  Graph(const Device& device, void* handle, size_t nodes)
      : device_(device), handle_(handle), nodes_(nodes) {}

  Device device_;
  void* handle_ = nullptr;
  size_t nodes_ = 0;
};

}  // namespace akv
