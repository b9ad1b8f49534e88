// A stream of a device, as operators see it: where their work is put.
#pragma once

namespace akv {

// A view: handle is the cudaStream_t of whoever owns the stream (common/device/stream.h). Null is
// the default stream. Work of one stream runs in order; the host goes on at once.
struct DeviceStream {
  void* handle = nullptr;
};

}  // namespace akv
