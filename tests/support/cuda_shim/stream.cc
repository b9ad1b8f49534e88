// Streams and events: work is kept in order and run when somebody waits for it.
#include <algorithm>
#include <utility>

#include "tests/support/cuda_shim/runtime.h"

namespace cuda_shim {
namespace {

// Runs the oldest entry of a stream. A device that failed drops what is left.
cudaError_t run_one(Runtime& r, cudaStream_t stream) {
  if (stream->work.empty()) return r.sticky;
  const Work work = std::move(stream->work.front());
  stream->work.pop_front();
  const cudaError_t error = work();
  if (error != cudaSuccess && r.sticky == cudaSuccess) r.sticky = error;
  if (r.sticky != cudaSuccess) {
    for (cudaStream_t other : r.streams) other->work.clear();
  }
  return r.sticky;
}

bool alive(const Runtime& r, cudaStream_t stream) {
  return std::find(r.streams.begin(), r.streams.end(), stream) != r.streams.end();
}

// Runs the stream of an event up to the record numbered `record`.
cudaError_t reach(Runtime& r, EventState& event, uint64_t record) {
  while (event.done < record && r.sticky == cudaSuccess && alive(r, event.stream) &&
         !event.stream->work.empty()) {
    run_one(r, event.stream);
  }
  return r.sticky;
}

// The default stream and the blocking ones order their work with each other.
void order_with_default(Runtime& r, cudaStream_t stream) {
  cudaStream_t first = default_stream(r);
  if (stream == first) {
    for (cudaStream_t other : r.streams) {
      if (other == first || !other->blocking || other->work.empty() || other->capture) continue;
      first->work.push_back([&r, other] { return alive(r, other) ? drain(r, other) : r.sticky; });
    }
  } else if (stream->blocking && !first->work.empty()) {
    stream->work.push_back([&r, first] { return drain(r, first); });
  }
}

cudaError_t create_stream(cudaStream_t* stream, unsigned flags) {
  return call([&](Runtime& r) {
    if (flags > cudaStreamNonBlocking) return cudaErrorInvalidValue;
    *stream = new CUstream_st;
    (*stream)->blocking = flags == cudaStreamDefault;
    r.streams.push_back(*stream);
    return cudaSuccess;
  });
}

}  // namespace

cudaStream_t default_stream(Runtime& r) { return r.streams.front(); }

cudaStream_t find_stream(Runtime& r, cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy) return default_stream(r);
  return alive(r, stream) ? stream : nullptr;
}

cudaError_t drain(Runtime& r, cudaStream_t stream) {
  while (r.sticky == cudaSuccess && !stream->work.empty()) run_one(r, stream);
  return r.sticky;
}

cudaError_t drain_all(Runtime& r) {
  const std::vector<cudaStream_t> streams = r.streams;
  for (cudaStream_t stream : streams) drain(r, stream);
  return r.sticky;
}

cudaError_t enqueue(Runtime& r, cudaStream_t stream, Work work) {
  if (stream->capture != nullptr) {
    if (stream->capture_invalid) return cudaErrorStreamCaptureInvalidated;
    stream->capture->nodes.push_back(std::move(work));
    if (!stream->capture_origin) stream->capture_joined = false;
    return cudaSuccess;
  }
  // The default stream would have to wait for a blocking stream that is captured.
  if (stream == default_stream(r)) {
    for (cudaStream_t other : r.streams) {
      if (other->blocking && other->capture != nullptr) return cudaErrorStreamCaptureImplicit;
    }
  }
  order_with_default(r, stream);
  stream->work.push_back(std::move(work));
  return r.eager ? drain(r, stream) : cudaSuccess;
}

}  // namespace cuda_shim

using cuda_shim::call;
using cuda_shim::EventState;
using cuda_shim::Runtime;

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cuda_shim::create_stream(stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cuda_shim::create_stream(stream, flags);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cuda_shim::create_stream(stream, flags);
}

// Works on a lost device too, as owners give back what they have.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Runtime& r = cuda_shim::runtime();
  std::lock_guard lock(r.mutex);
  cudaStream_t found = cuda_shim::find_stream(r, stream);
  if (found == nullptr || found == cuda_shim::default_stream(r)) {
    return cudaErrorInvalidResourceHandle;
  }
  // Its work is still done; here nobody would come back to it.
  cuda_shim::drain(r, found);
  std::erase(r.streams, found);
  delete found;
  return r.sticky;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call([&](Runtime& r) {
    cudaStream_t found = cuda_shim::find_stream(r, stream);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    if (found->capture != nullptr) {
      found->capture_invalid = true;
      return cudaErrorStreamCaptureUnsupported;
    }
    return cuda_shim::drain(r, found);
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return call([&](Runtime& r) {
    cudaStream_t found = cuda_shim::find_stream(r, stream);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    if (found->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
    if (found->work.empty()) return cudaSuccess;
    const cudaError_t error = cuda_shim::run_one(r, found);
    return error != cudaSuccess ? error : cudaErrorNotReady;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call([](Runtime& r) {
    const cudaError_t unsafe = cuda_shim::unsafe_while_capturing(r);
    return unsafe != cudaSuccess ? unsafe : cuda_shim::drain_all(r);
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* user) {
  return call([&](Runtime& r) {
    cudaStream_t found = cuda_shim::find_stream(r, stream);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    return cuda_shim::enqueue(r, found, [function, user] {
      function(user);
      return cudaSuccess;
    });
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return call([&](Runtime&) {
    *event = new CUevent_st;
    (*event)->state->timing = (flags & cudaEventDisableTiming) == 0;
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (event == nullptr) return cudaErrorInvalidResourceHandle;
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call([&](Runtime& r) {
    cudaStream_t found = cuda_shim::find_stream(r, stream);
    if (event == nullptr || found == nullptr) return cudaErrorInvalidResourceHandle;
    std::shared_ptr<EventState> state = event->state;
    state->stream = found;
    if (found->capture != nullptr) {
      event->captured_in = found->capture;
      return cudaSuccess;
    }
    event->captured_in = nullptr;
    const uint64_t record = ++state->recorded;
    return cuda_shim::enqueue(r, found, [state, record] {
      state->done = record;
      state->time = std::chrono::steady_clock::now();
      return cudaSuccess;
    });
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return call([&](Runtime& r) {
    cudaStream_t found = cuda_shim::find_stream(r, stream);
    if (event == nullptr || found == nullptr) return cudaErrorInvalidResourceHandle;
    std::shared_ptr<EventState> state = event->state;
    if (event->captured_in != nullptr) {  // a fork or a join of a capture: nodes run in their order
      if (found->capture == nullptr) {
        found->capture = event->captured_in;
        found->capture_origin = false;
        found->capture_invalid = false;
        found->capture_joined = false;
        found->capture_mode = cudaStreamCaptureModeRelaxed;  // its origin's mode counts
        event->captured_in->streams.push_back(found);
      }
      if (found->capture != event->captured_in) return cudaErrorStreamCaptureIsolation;
      if (state->stream != found) state->stream->capture_joined = true;
      return cudaSuccess;
    }
    const uint64_t record = state->recorded;
    if (found->capture != nullptr) {
      return record == 0 ? cudaSuccess : cudaErrorStreamCaptureIsolation;
    }
    if (state->done >= record) return cudaSuccess;
    return cuda_shim::enqueue(r, found,
                              [&r, state, record] { return cuda_shim::reach(r, *state, record); });
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call([&](Runtime& r) {
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    if (event->captured_in != nullptr) return cudaErrorStreamCaptureUnsupported;
    return cuda_shim::reach(r, *event->state, event->state->recorded);
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call([&](Runtime& r) {
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    if (event->captured_in != nullptr) return cudaErrorStreamCaptureUnsupported;
    const EventState& state = *event->state;
    if (state.done >= state.recorded) return cudaSuccess;
    const cudaError_t error = cuda_shim::run_one(r, state.stream);
    return error != cudaSuccess ? error : cudaErrorNotReady;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return call([&](Runtime&) {
    if (start == nullptr || end == nullptr) return cudaErrorInvalidResourceHandle;
    const EventState& a = *start->state;
    const EventState& b = *end->state;
    if (!a.timing || !b.timing || a.recorded == 0 || b.recorded == 0) {
      return cudaErrorInvalidResourceHandle;
    }
    if (a.done < a.recorded || b.done < b.recorded) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(b.time - a.time).count();
    return cudaSuccess;
  });
}
