#include "common/device/cuda_check.h"
#include "common/device/stream.h"

namespace akv {
namespace {

cudaStream_t native(void* handle) { return static_cast<cudaStream_t>(handle); }
cudaEvent_t native_event(void* handle) { return static_cast<cudaEvent_t>(handle); }

// The answer of a query: done, not yet, or an error.
Result<bool> answer(const Device& device, cudaError_t error, const char* what) {
  if (error == cudaErrorNotReady) return false;
  AKV_CUDA_RETURN_IF_ERROR(device, error, what);
  return true;
}

}  // namespace

Result<Stream> Stream::create(const Device& device, Priority priority) {
  AKV_RETURN_IF_ERROR(enter_device(device));
  int least = 0;
  int greatest = 0;
  AKV_CUDA_RETURN_IF_ERROR(device, cudaDeviceGetStreamPriorityRange(&least, &greatest),
                           "ask for stream priorities");
  cudaStream_t handle = nullptr;
  AKV_CUDA_RETURN_IF_ERROR(
      device,
      cudaStreamCreateWithPriority(&handle, cudaStreamNonBlocking,
                                   priority == Priority::kHigh ? greatest : least),
      "create a stream");
  return Stream(device, handle);
}

Stream& Stream::operator=(Stream&& other) noexcept {
  Stream taken(std::move(other));
  std::swap(device_, taken.device_);
  std::swap(handle_, taken.handle_);
  return *this;
}

Stream::~Stream() {
  if (handle_ == nullptr) return;
  enter_device_quietly(device_);
  static_cast<void>(cudaStreamSynchronize(native(handle_)));
  static_cast<void>(cudaStreamDestroy(native(handle_)));
}

Status Stream::synchronize() const {
  AKV_RETURN_IF_ERROR(enter_device(device_));
  AKV_RETURN_IF_ERROR(check());
  return cuda_status(device_, cudaStreamSynchronize(native(handle_)), "wait for a stream");
}

Result<bool> Stream::idle() const {
  AKV_RETURN_IF_ERROR(enter_device(device_));
  return answer(device_, cudaStreamQuery(native(handle_)), "ask a stream");
}

Status Stream::check() const {
  AKV_RETURN_IF_ERROR(enter_device(device_));
  return cuda_status(device_, cudaGetLastError(), "launch");
}

Status Stream::wait(const Event& event) const {
  AKV_RETURN_IF_ERROR(enter_device(device_));
  return cuda_status(device_, cudaStreamWaitEvent(native(handle_), native_event(event.handle()), 0),
                     "let a stream wait");
}

Status Stream::copy_to_device(std::byte* to, std::span<const std::byte> from) const {
  AKV_RETURN_IF_ERROR(enter_device(device_));
  return cuda_status(
      device_,
      cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, native(handle_)),
      "copy to the device");
}

Status Stream::copy_to_host(std::span<std::byte> to, const std::byte* from) const {
  AKV_RETURN_IF_ERROR(enter_device(device_));
  return cuda_status(
      device_, cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, native(handle_)),
      "copy to the host");
}

Status Stream::copy_on_device(std::byte* to, const std::byte* from, size_t bytes) const {
  AKV_RETURN_IF_ERROR(enter_device(device_));
  return cuda_status(device_,
                     cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, native(handle_)),
                     "copy on the device");
}

Status Stream::fill(std::byte* to, uint8_t value, size_t bytes) const {
  AKV_RETURN_IF_ERROR(enter_device(device_));
  return cuda_status(device_, cudaMemsetAsync(to, value, bytes, native(handle_)), "fill memory");
}

Result<Event> Event::create(const Device& device, bool timing) {
  AKV_RETURN_IF_ERROR(enter_device(device));
  cudaEvent_t handle = nullptr;
  AKV_CUDA_RETURN_IF_ERROR(
      device, cudaEventCreateWithFlags(&handle, timing ? cudaEventDefault : cudaEventDisableTiming),
      "create an event");
  return Event(device, handle);
}

Event& Event::operator=(Event&& other) noexcept {
  Event taken(std::move(other));
  std::swap(device_, taken.device_);
  std::swap(handle_, taken.handle_);
  return *this;
}

Event::~Event() {
  if (handle_ == nullptr) return;
  enter_device_quietly(device_);
  static_cast<void>(cudaEventDestroy(native_event(handle_)));
}

Status Event::record(DeviceStream stream) const {
  AKV_RETURN_IF_ERROR(enter_device(device_));
  return cuda_status(device_, cudaEventRecord(native_event(handle_), native(stream.handle)),
                     "record an event");
}

Status Event::synchronize() const {
  AKV_RETURN_IF_ERROR(enter_device(device_));
  return cuda_status(device_, cudaEventSynchronize(native_event(handle_)), "wait for an event");
}

Result<bool> Event::reached() const {
  AKV_RETURN_IF_ERROR(enter_device(device_));
  return answer(device_, cudaEventQuery(native_event(handle_)), "ask an event");
}

Result<double> Event::seconds_between(const Event& start, const Event& end) {
  AKV_RETURN_IF_ERROR(enter_device(start.device_));
  float milliseconds = 0;
  AKV_CUDA_RETURN_IF_ERROR(
      start.device_,
      cudaEventElapsedTime(&milliseconds, native_event(start.handle_), native_event(end.handle_)),
      "time between events");
  return static_cast<double>(milliseconds) * 1e-3;
}

}  // namespace akv
