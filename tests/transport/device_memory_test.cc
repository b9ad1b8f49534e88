// UCX from and to device memory, which here is the host's (DeviceMemory::kHost).
#include <gtest/gtest.h>

#include "tests/transport/rig.h"

namespace akv::transport {
namespace {

// The fourth and the last are small and copied: those go from host memory.
const std::vector<size_t> kSizes{70000, 300000, 65536, 4096, 123456, 1};
constexpr size_t kLarge = 4;

TransportConfig config_with(DeviceMemory memory) {
  TransportConfig config = config_for(Kind::kUcxTcp);
  config.device_memory = memory;
  return config;
}

// Ends of two processes: what each makes of device memory.
struct Ends {
  Ends(DeviceMemory of_sender, DeviceMemory of_receiver) {
    auto made = make_ucx_receiver(config_with(of_receiver), kAnyPort);
    EXPECT_TRUE(made.ok()) << made.error().message;
    receiver = std::move(*made);
    auto sending = make_ucx_sender(config_with(of_sender));
    EXPECT_TRUE(sending.ok()) << sending.error().message;
    sender = std::move(*sending);
  }
  std::unique_ptr<Receiver> receiver;
  std::unique_ptr<Sender> sender;
};

TEST(UcxDeviceMemory, LargeRecordsGoFromDeviceToDevice) {
  Ends ends(DeviceMemory::kHost, DeviceMemory::kHost);
  EXPECT_EQ(ends.receiver->extension(), "ucx-device/host");
  State state(kSizes);
  ExpectedOnDevice landing(*ends.receiver, kSizes);
  ASSERT_TRUE(landing.status.ok());
  EXPECT_TRUE(ends.sender->reads_device(landing.landing.address));
  SendRecorder sent;
  ship_from_device(*ends.sender, landing.landing.address, state, sent);
  EXPECT_TRUE(sent.complete()) << sent.message();
  EXPECT_TRUE(landing.events.complete()) << landing.events.message();
  EXPECT_TRUE(landing.arrived(state));
  EXPECT_EQ(landing.on_device, kLarge);
  EXPECT_EQ(ends.sender->stats().device_records, kLarge);
  EXPECT_EQ(ends.receiver->stats().device_records, kLarge);
  EXPECT_EQ(ends.receiver->stats().records, kSizes.size());
}

// Another item of the extension before UCX's own.
TEST(UcxDeviceMemory, TheOfferMayFollowAnothers) {
  Ends ends(DeviceMemory::kHost, DeviceMemory::kHost);
  LandingAddress to;
  to.extension = "nccl/1/00;ucx-device/host";
  EXPECT_TRUE(ends.sender->reads_device(to));
  for (const char* other :
       {"", "ucx-device/", "ucx-device/cuda", "ucx-device/hosts", "nccl/1/00"}) {
    to.extension = other;
    EXPECT_FALSE(ends.sender->reads_device(to)) << other;
  }
}

// Where one end has no device memory, or was made before there was any, all goes by the host's.
TEST(UcxDeviceMemory, AnEndWithoutItIsServedFromTheHost) {
  for (const bool at_sender : {false, true}) {
    Ends ends(at_sender ? DeviceMemory::kHost : DeviceMemory::kNone,
              at_sender ? DeviceMemory::kNone : DeviceMemory::kHost);
    State state(kSizes);
    ExpectedOnDevice landing(*ends.receiver, kSizes);
    ASSERT_TRUE(landing.status.ok());
    EXPECT_FALSE(ends.sender->reads_device(landing.landing.address));
    SendRecorder sent;
    ship_from_device(*ends.sender, landing.landing.address, state, sent);
    EXPECT_TRUE(landing.events.complete()) << landing.events.message();
    EXPECT_TRUE(landing.arrived(state));
    EXPECT_EQ(landing.on_device, 0u);
    EXPECT_EQ(ends.sender->stats().device_records, 0u);
  }
}

// The offer is the receiver's, device memory the landing's: one without lands in host memory.
TEST(UcxDeviceMemory, ALandingWithoutDeviceMemoryTakesWhatComesFromIt) {
  Ends ends(DeviceMemory::kHost, DeviceMemory::kHost);
  State state(kSizes);
  Expected landing(*ends.receiver, kSizes);
  landing.address.extension = ends.receiver->extension();
  SendRecorder sent;
  ship_from_device(*ends.sender, landing.address, state, sent);
  EXPECT_TRUE(landing.events.complete()) << landing.events.message();
  EXPECT_EQ(landing.memory.bytes, state.bytes);
  EXPECT_EQ(ends.receiver->stats().device_records, 0u);
}

TEST(UcxDeviceMemory, DestinationsAreOneARecordOrNone) {
  Ends ends(DeviceMemory::kHost, DeviceMemory::kHost);
  State memory(kSizes);
  LandingSpec spec;
  spec.transfer = Id128::random();
  spec.token = Id128::random();
  spec.destinations = memory.records();
  spec.device_destinations.push_back(memory.bytes.data());
  spec.deadline = after_ms(1000);
  spec.on_event = [](const LandEvent&) {};
  EXPECT_EQ(ends.receiver->expect(std::move(spec)).error().code, Code::kInvalidArgument);
}

// A machine without a driver: said, and the rest works as ever. With one, device memory is offered.
TEST(UcxDeviceMemory, WithoutCudaInUcxItIsLeftAloneAndSaid) {
  std::string notice;
  TransportConfig config = config_with(DeviceMemory::kCuda);
  config.on_notice = [&](std::string_view line) { notice += line; };
  auto receiver = make_ucx_receiver(config, kAnyPort);
  ASSERT_TRUE(receiver.ok()) << receiver.error().message;
  const bool offered = (*receiver)->extension() == "ucx-device/cuda";
  EXPECT_EQ(notice.find("device memory") == std::string::npos, offered) << notice;
  if (offered) return;
  EXPECT_EQ((*receiver)->extension(), "");
  auto sender = make_ucx_sender(config_with(DeviceMemory::kCuda));
  ASSERT_TRUE(sender.ok());
  State state(kSizes);
  Expected landing(**receiver, kSizes);
  SendRecorder sent;
  auto channel = (*sender)->open(landing.address, after_ms(60000), sent.fn());
  ASSERT_TRUE(channel.ok());
  post_all(**sender, *channel, state);
  EXPECT_TRUE(landing.events.complete()) << landing.events.message();
  EXPECT_EQ(landing.memory.bytes, state.bytes);
}

}  // namespace
}  // namespace akv::transport
