#include <gtest/gtest.h>

#include <thread>

#include "common/base/bounded_queue.h"
#include "common/base/checksum.h"
#include "common/base/ids.h"
#include "common/base/units.h"

namespace akv {
namespace {

TEST(Units, ParsesBytesWithSuffixes) {
  EXPECT_EQ(*parse_bytes("17"), 17u);
  EXPECT_EQ(*parse_bytes("64K"), 65536u);
  EXPECT_EQ(*parse_bytes("3G"), 3ull << 30);
  for (const char* bad : {"", "K", "-1", "1T", "1 K", "99999999999G", "18446744073709551616"}) {
    EXPECT_FALSE(parse_bytes(bad).ok()) << bad;
  }
}

TEST(Units, ParsesAddresses) {
  EXPECT_EQ(*parse_host_port("127.0.0.1:80"), (HostPort{"127.0.0.1", 80}));
  EXPECT_EQ(parse_host_port("[::1]:7")->str(), "[::1]:7");
  for (const char* bad : {"", "host", ":1", "h:65536", "h:x", "::1:80", "[]:1", "h:"}) {
    EXPECT_FALSE(parse_host_port(bad).ok()) << bad;
  }
  EXPECT_TRUE(is_loopback(*parse_host_port("[::1]:7")));
  EXPECT_FALSE(is_loopback(*parse_host_port("10.0.0.1:7")));
}

TEST(Ids, HexRoundTripAndRefusal) {
  const Id128 id = Id128::random();
  EXPECT_EQ(Id128::from_hex(id.hex()), id);
  EXPECT_FALSE(Id128::from_hex("12"));
  EXPECT_FALSE(Id128::from_hex(std::string(32, 'g')));
  EXPECT_TRUE(equal_constant_time("abc", "abc"));
  EXPECT_FALSE(equal_constant_time("abc", "abd"));
  EXPECT_FALSE(equal_constant_time("abc", ""));
}

TEST(Checksum, KnownVectors) {
  EXPECT_EQ(xxh3_64({}), 0x2d06800538d394c2ull);
  Sha256 sha;
  sha.update("abc", 3);
  EXPECT_EQ(to_hex(sha.finish()),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(BoundedQueue, RefusesBeyondCapacityAndDrainsAfterClose) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.try_push(1));
  EXPECT_TRUE(queue.try_push(2));
  EXPECT_FALSE(queue.try_push(3));
  std::thread closer([&] { queue.close(); });
  EXPECT_EQ(queue.pop_until(after_ms(1000)), 1);
  EXPECT_EQ(queue.pop_until(after_ms(1000)), 2);
  closer.join();
  EXPECT_EQ(queue.pop_until(after_ms(60000)), std::nullopt);
  EXPECT_FALSE(queue.try_push(4));
}

}  // namespace
}  // namespace akv
