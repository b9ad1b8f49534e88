// What goes wrong with a device, by the shim's faults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/device/graph.h"
#include "common/device/memory.h"
#include "common/device/stream.h"
#include "tests/device/device_kernels.h"
#include "tests/support/cuda_shim/cuda_shim.h"

namespace akv {
namespace {

using testing::HasSubstr;

class Faults : public testing::Test {
 protected:
  ~Faults() override { cuda_shim::reset(); }
  static void set(const cuda_shim::Faults& faults) { cuda_shim::set_faults(faults); }
};

TEST_F(Faults, NoDriver) {
  set({.driver = cuda_shim::Driver::kNone});
  const Result<DeviceChoice> cuda = choose_device("cuda");
  ASSERT_FALSE(cuda.ok());
  EXPECT_EQ(cuda.error().code, Code::kUnavailable);
  EXPECT_EQ(cuda.error().param, "device");
  EXPECT_THAT(cuda.error().message, HasSubstr("no NVIDIA driver"));
  const Result<DeviceChoice> any = choose_device("auto");
  ASSERT_TRUE(any.ok());
  EXPECT_FALSE(any->device.is_cuda());
  EXPECT_EQ(any->reason, cuda.error().message);
}

TEST_F(Faults, ADriverThatIsTooOldIsNamedWithBothVersions) {
  set({.driver = cuda_shim::Driver::kTooOld});
  const Result<DeviceChoice> cuda = choose_device("cuda");
  ASSERT_FALSE(cuda.ok());
  EXPECT_THAT(cuda.error().message, HasSubstr("11.4"));
  EXPECT_THAT(cuda.error().message, HasSubstr("13.0"));
}

TEST_F(Faults, NoDevice) {
  set({.devices = 0});
  EXPECT_THAT(choose_device("cuda").error().message, HasSubstr("no device"));
  EXPECT_FALSE(choose_device("auto")->device.is_cuda());
}

TEST_F(Faults, TheChoiceIsByName) {
  set({.devices = 2});
  EXPECT_EQ(choose_device("auto")->device.kind, DeviceKind::kCuda);
  EXPECT_EQ(choose_device("cpu")->device.kind, DeviceKind::kCpu);
  EXPECT_EQ(choose_device("cuda:1")->device.ordinal, 1);
  EXPECT_EQ(choose_device("cuda:2").error().code, Code::kUnavailable);
  for (const char* wrong : {"gpu", "", "cuda:", "cuda:x", "cuda:1x", "CUDA"}) {
    EXPECT_EQ(choose_device(wrong).error().code, Code::kInvalidArgument) << wrong;
  }
  EXPECT_THAT(choose_device("cuda")->reason, HasSubstr("compute capability 8.0"));
}

TEST_F(Faults, OutOfMemoryIsThatCallsErrorAlone) {
  set({.memory_bytes = 1 << 20});
  const Device device = choose_device("cuda")->device;
  Result<Stream> stream = Stream::create(device);
  auto pool = DevicePool::create(device, uint64_t{1} << 40);
  ASSERT_TRUE(stream.ok() && pool.ok());
  Result<DeviceBuffer> most = (*pool)->allocate(1 << 20, *stream);
  ASSERT_TRUE(most.ok());
  const Result<DeviceBuffer> more = (*pool)->allocate(1, *stream);
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.error().code, Code::kResourceExhausted);
  EXPECT_EQ(DeviceBuffer::allocate(device, 1).error().code, Code::kResourceExhausted);
  EXPECT_EQ((*pool)->used_bytes(), uint64_t{1} << 20);
  EXPECT_FALSE(device.health->lost().has_value());
  *most = DeviceBuffer();
  EXPECT_TRUE((*pool)->allocate(1, *stream).ok());
  EXPECT_TRUE(stream->synchronize().ok());
}

TEST_F(Faults, AKernelThatFailsLosesTheDevice) {
  const Device device = choose_device("cuda")->device;
  Result<Stream> stream = Stream::create(device);
  auto pool = DevicePool::create(device, 1 << 20);
  ASSERT_TRUE(stream.ok() && pool.ok());
  Result<DeviceBuffer> buffer = (*pool)->allocate(64, *stream);
  ASSERT_TRUE(buffer.ok());
  set({.fail_launch = 2});
  add_one(buffer->as<int>(), 16, *stream);
  ASSERT_TRUE(stream->synchronize().ok());
  add_one(buffer->as<int>(), 16, *stream);
  EXPECT_TRUE(stream->check().ok());  // it has not run yet
  const Status failed = stream->synchronize();
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, Code::kUnavailable);
  EXPECT_THAT(failed.error().message, HasSubstr("cudaErrorLaunchFailure"));
  ASSERT_TRUE(device.health->lost().has_value());
  EXPECT_EQ(device.health->lost()->message, failed.error().message);
  EXPECT_EQ((*pool)->allocate(64, *stream).error().code, Code::kUnavailable);
  EXPECT_EQ(Stream::create(device).error().code, Code::kUnavailable);
}

TEST_F(Faults, ALostDeviceStaysLostAndGivesBackItsMemory) {
  const Device device = choose_device("cuda")->device;
  {
    Result<Stream> stream = Stream::create(device);
    auto pool = DevicePool::create(device, 1 << 20);
    auto pinned = PinnedPool::create(device, 1 << 20);
    ASSERT_TRUE(stream.ok() && pool.ok() && pinned.ok());
    Result<DeviceBuffer> buffer = (*pool)->allocate(64, *stream);
    Result<PinnedBuffer> host = (*pinned)->allocate(64);
    Result<Event> event = Event::create(device);
    ASSERT_TRUE(buffer.ok() && host.ok() && event.ok());
    set({.lose_device = 1});
    EXPECT_EQ(stream->fill(buffer->data(), 0, 64).error().code, Code::kUnavailable);
    set({});
    // The runtime's own error is sticky, and so is ours.
    EXPECT_EQ(event->record(*stream).error().code, Code::kUnavailable);
    EXPECT_EQ(stream->idle().error().code, Code::kUnavailable);
    EXPECT_TRUE(device.health->lost().has_value());
  }
  EXPECT_EQ(cuda_shim::device_bytes(), 0u);
}

TEST_F(Faults, WorkWaitsForTheHostToWait) {
  const Device device = choose_device("cuda")->device;
  Result<Stream> stream = Stream::create(device);
  auto pinned = PinnedPool::create(device, 1 << 20);
  auto pool = DevicePool::create(device, 1 << 20);
  ASSERT_TRUE(stream.ok() && pinned.ok() && pool.ok());
  Result<DeviceBuffer> buffer = (*pool)->allocate(4, *stream);
  Result<PinnedBuffer> host = (*pinned)->allocate(4);
  ASSERT_TRUE(buffer.ok() && host.ok());
  host->as<int>()[0] = 0;
  ASSERT_TRUE(stream->fill(buffer->data(), 1, 4).ok());
  ASSERT_TRUE(stream->copy_to_host(host->bytes(), buffer->data()).ok());
  EXPECT_EQ(host->as<int>()[0], 0);
  EXPECT_FALSE(*stream->idle());
  ASSERT_TRUE(stream->synchronize().ok());
  EXPECT_EQ(host->as<int>()[0], 0x01010101);
  EXPECT_TRUE(*stream->idle());
}

}  // namespace
}  // namespace akv
