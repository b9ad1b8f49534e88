// The device library of a build without CUDA: nothing can be created, so nothing else is reached.
#include "common/base/check.h"
#include "common/device/graph.h"
#include "common/device/memory.h"

namespace akv {
namespace {
Error no_cuda() { return make_error(Code::kUnsupported, "this build has no CUDA", "device"); }
}  // namespace

Result<std::vector<Device>> find_cuda_devices() { return no_cuda(); }
Status use_device(const Device&) { return no_cuda(); }
Result<uint64_t> free_memory_bytes(const Device&) { return no_cuda(); }
Result<bool> memory_is_host(const Device&) { return no_cuda(); }

Result<Stream> Stream::create(const Device&, Priority) { return no_cuda(); }
Stream& Stream::operator=(Stream&&) noexcept { return *this; }
Stream::~Stream() = default;
Status Stream::synchronize() const { return no_cuda(); }
Result<bool> Stream::idle() const { return no_cuda(); }
Status Stream::check() const { return no_cuda(); }
Status Stream::wait(const Event&) const { return no_cuda(); }
Status Stream::copy_to_device(std::byte*, std::span<const std::byte>) const { return no_cuda(); }
Status Stream::copy_to_host(std::span<std::byte>, const std::byte*) const { return no_cuda(); }
Status Stream::copy_on_device(std::byte*, const std::byte*, size_t) const { return no_cuda(); }
Status Stream::fill(std::byte*, uint8_t, size_t) const { return no_cuda(); }

Result<Event> Event::create(const Device&, bool) { return no_cuda(); }
Event& Event::operator=(Event&&) noexcept { return *this; }
Event::~Event() = default;
Status Event::record(DeviceStream) const { return no_cuda(); }
Status Event::synchronize() const { return no_cuda(); }
Result<bool> Event::reached() const { return no_cuda(); }
Result<double> Event::seconds_between(const Event&, const Event&) { return no_cuda(); }

Result<DeviceBuffer> DeviceBuffer::allocate(const Device&, uint64_t) { return no_cuda(); }
DeviceBuffer::~DeviceBuffer() { AKV_CHECK(data_ == nullptr); }
void DeviceBuffer::swap(DeviceBuffer&) noexcept {}

Result<std::shared_ptr<DevicePool>> DevicePool::create(const Device&, uint64_t) {
  return no_cuda();
}
DevicePool::~DevicePool() = default;
Result<DeviceBuffer> DevicePool::allocate(uint64_t, DeviceStream) { return no_cuda(); }
Status DevicePool::trim() { return no_cuda(); }

PinnedBuffer::~PinnedBuffer() { AKV_CHECK(data_ == nullptr); }
void PinnedBuffer::swap(PinnedBuffer&) noexcept {}
Result<std::shared_ptr<PinnedPool>> PinnedPool::create(const Device&, uint64_t) {
  return no_cuda();
}
PinnedPool::~PinnedPool() = default;
Result<PinnedBuffer> PinnedPool::allocate(uint64_t) { return no_cuda(); }
uint64_t PinnedPool::held_bytes() const { return 0; }

Result<Graph> Graph::capture(const Stream&, const std::function<Status()>&) { return no_cuda(); }
Graph& Graph::operator=(Graph&&) noexcept { return *this; }
Graph::~Graph() = default;
Status Graph::launch(DeviceStream) const { return no_cuda(); }

}  // namespace akv
