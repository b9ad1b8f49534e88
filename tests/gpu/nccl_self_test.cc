// The library itself on one GPU: a communicator of one rank that sends to itself, through the
// interface that the transport uses. Skipped where there is no library or no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "common/base/clock.h"
#include "common/device/device.h"
#include "common/device/memory.h"
#include "common/device/stream.h"
#include "transport/nccl/nccl.h"

namespace akv::transport {
namespace {

constexpr int64_t kPatienceMs = 60000;
const std::vector<size_t> kSizes{1, 4096, 65537, 3 << 20, 16 << 20};

std::vector<std::byte> pattern(size_t bytes, uint64_t seed) {
  std::vector<std::byte> out(bytes);
  uint64_t x = 0x9e3779b97f4a7c15ull * (seed + 1);
  for (auto& byte : out) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    byte = static_cast<std::byte>(x >> 32);
  }
  return out;
}

class NcclAlone : public testing::Test {
 protected:
  void SetUp() override {
    auto nccl = load_nccl(0);
    if (!nccl.ok()) GTEST_SKIP() << nccl.error().message;
    const auto choice = choose_device("cuda");
    if (!choice.ok()) GTEST_SKIP() << choice.error().message;
    device_ = choice->device;
    auto link = (*nccl)->join_alone();
    ASSERT_TRUE(link.ok()) << link.error().message;
    link_ = std::move(*link);
    const TimePoint end = after_ms(kPatienceMs);
    for (;;) {
      const auto ready = link_->ready();
      ASSERT_TRUE(ready.ok()) << ready.error().message;
      if (*ready) return;
      ASSERT_LT(SteadyClock::now(), end) << "the communicator does not form";
    }
  }
  void wait(const Result<uint64_t>& operation) {
    ASSERT_TRUE(operation.ok()) << operation.error().message;
    const TimePoint end = after_ms(kPatienceMs);
    for (;;) {
      const auto done = link_->done(*operation);
      ASSERT_TRUE(done.ok()) << done.error().message;
      if (*done) return;
      ASSERT_LT(SteadyClock::now(), end) << "the operation does not end";
    }
  }

  Device device_;
  std::unique_ptr<NcclLink> link_;
};

TEST_F(NcclAlone, DeviceMemoryIsSentFromAndReceivedInto) {
  auto stream = Stream::create(device_);
  ASSERT_TRUE(stream.ok());
  for (const size_t bytes : kSizes) {
    const auto truth = pattern(bytes, bytes);
    auto from = DeviceBuffer::allocate(device_, bytes);
    auto to = DeviceBuffer::allocate(device_, bytes);
    ASSERT_TRUE(from.ok() && to.ok());
    ASSERT_TRUE(stream->copy_to_device(from->data(), truth).ok());
    ASSERT_TRUE(stream->fill(to->data(), 0xaa, bytes).ok());
    ASSERT_TRUE(stream->synchronize().ok());
    std::vector<std::byte> untouched(bytes, std::byte{0x55});
    const auto sent = link_->send(truth, from->data());
    const auto received = link_->receive(untouched, to->data());
    wait(sent);
    wait(received);
    std::vector<std::byte> arrived(bytes);
    ASSERT_TRUE(stream->copy_to_host(arrived, to->data()).ok());
    ASSERT_TRUE(stream->synchronize().ok());
    EXPECT_TRUE(arrived == truth) << bytes;
    EXPECT_TRUE(std::all_of(untouched.begin(), untouched.end(), [](std::byte b) {
      return b == std::byte{0x55};
    })) << bytes;
  }
}

TEST_F(NcclAlone, HostMemoryIsStagedAtBothEnds) {
  for (const size_t bytes : kSizes) {
    const auto truth = pattern(bytes, bytes + 1);
    std::vector<std::byte> arrived(bytes);
    const auto sent = link_->send(truth, nullptr);
    const auto received = link_->receive(arrived, nullptr);
    wait(sent);
    wait(received);
    EXPECT_TRUE(arrived == truth) << bytes;
  }
}

TEST_F(NcclAlone, AnAbortedLinkTakesNothingMore) {
  link_->abort();
  link_->abort();
}

}  // namespace
}  // namespace akv::transport
