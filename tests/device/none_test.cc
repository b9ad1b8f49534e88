// A build without CUDA.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/device/memory.h"

namespace akv {
namespace {

TEST(NoCuda, SaysSo) {
  const Result<DeviceChoice> cuda = choose_device("cuda");
  ASSERT_FALSE(cuda.ok());
  EXPECT_EQ(cuda.error().code, Code::kUnsupported);
  EXPECT_THAT(cuda.error().message, testing::HasSubstr("this build has no CUDA"));
  const Result<DeviceChoice> any = choose_device("auto");
  ASSERT_TRUE(any.ok());
  EXPECT_EQ(any->device.kind, DeviceKind::kCpu);
  EXPECT_EQ(any->reason, cuda.error().message);
}

TEST(NoCuda, CreatesNothing) {
  EXPECT_EQ(Stream::create(Device{}).error().code, Code::kUnsupported);
  EXPECT_EQ(DevicePool::create(Device{}, 1).error().code, Code::kUnsupported);
  EXPECT_EQ(PinnedPool::create(Device{}, 1).error().code, Code::kUnsupported);
}

}  // namespace
}  // namespace akv
