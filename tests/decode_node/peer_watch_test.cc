#include "decode_node/dispatch/peer_watch.h"

#include <gtest/gtest.h>

#include "common/base/bounded_queue.h"
#include "tests/support/temp_dir.h"

namespace akv::decode {
namespace {

TEST(PeerFile, ReadsAddressesAndNamesTheBadLine) {
  const testing::TempDir dir;
  const std::string path =
      dir.write("peers", "# pool\n 127.0.0.1:7001 \n\n[::1]:7002 # second\n127.0.0.1:7001\n");
  const auto peers = read_peer_file(path);
  ASSERT_TRUE(peers.ok());
  EXPECT_EQ(*peers, (std::vector<HostPort>{{"127.0.0.1", 7001}, {"::1", 7002}}));
  dir.write("peers", "127.0.0.1:7001\nnonsense\n");
  EXPECT_NE(read_peer_file(path).error().message.find(":2:"), std::string::npos);
  EXPECT_EQ(read_peer_file(dir.path() + "/none").error().code, Code::kIo);
}

TEST(PeerDns, ResolvesEachAddressOnce) {
  const auto peers = resolve_peers(HostPort{"127.0.0.1", 9});
  ASSERT_TRUE(peers.ok());
  EXPECT_EQ(*peers, (std::vector<HostPort>{{"127.0.0.1", 9}}));
  EXPECT_EQ(resolve_peers(HostPort{"no.such.host.invalid", 9}).error().code, Code::kUnavailable);
}

TEST(PeerWatch, ReportsTheFileAndEachChangeAndKeepsPeersOverABadOne) {
  const testing::TempDir dir;
  const std::string path = dir.write("peers", "127.0.0.1:1\n");
  BoundedQueue<std::vector<HostPort>> seen(16);
  PeerSource source;
  source.file = path;
  PeerWatch watch(source, Logger(), [&](std::vector<HostPort> peers) {
    EXPECT_TRUE(seen.try_push(std::move(peers)));
  });
  EXPECT_EQ(seen.pop_until(after_ms(10'000))->size(), 1u);
  dir.write("peers", "broken\n");
  dir.write("peers", "127.0.0.1:1\n127.0.0.1:2\n");
  EXPECT_EQ(seen.pop_until(after_ms(10'000))->size(), 2u);
}

}  // namespace
}  // namespace akv::decode
