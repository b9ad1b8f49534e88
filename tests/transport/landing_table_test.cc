#include "transport/landing_table.h"

#include <gtest/gtest.h>

#include <cstring>

namespace akv::transport {
namespace {

class LandingTableTest : public testing::Test {
 protected:
  LandingSpec spec(Id128 id) {
    return {id, Id128{7, 7}, 3, {memory, std::span(memory).first(10)}, after_ms(1000), {}};
  }
  std::vector<std::byte> memory = std::vector<std::byte>(100);
  TransportConfig config;
  LandingTable table{config};
  int peer = 0, stranger = 0;
};

TEST_F(LandingTableTest, MatchesOnlyTheWholeKeyAndOnePeer) {
  ASSERT_TRUE(table.add(spec({1, 1})).ok());
  EXPECT_EQ(table.match({{1, 2}, {7, 7}, 3}, &peer).error().code, Code::kNotFound);
  EXPECT_EQ(table.match({{1, 1}, {7, 8}, 3}, &peer).error().code, Code::kMismatch);
  EXPECT_EQ(table.match({{1, 1}, {7, 7}, 2}, &peer).error().code, Code::kMismatch);
  ASSERT_TRUE(table.match({{1, 1}, {7, 7}, 3}, &peer).ok());
  EXPECT_EQ(table.match({{1, 1}, {7, 7}, 3}, &stranger).error().code, Code::kMismatch);
  EXPECT_TRUE(table.match({{1, 1}, {7, 7}, 3}, &peer).ok());
  table.remove({1, 1});
  EXPECT_EQ(table.match({{1, 1}, {7, 7}, 3}, &peer).error().code, Code::kNotFound);
}

TEST_F(LandingTableTest, ClaimsEachRecordOnceAtItsExactSize) {
  ASSERT_TRUE(table.add(spec({1, 1})).ok());
  LandingPtr landing = table.find({1, 1});
  EXPECT_EQ(LandingTable::claim(*landing, 2, 100).error().code, Code::kDataLoss);
  EXPECT_EQ(LandingTable::claim(*landing, 0, 99).error().code, Code::kDataLoss);
  EXPECT_EQ(LandingTable::claim(*landing, 0, 101).error().code, Code::kDataLoss);
  EXPECT_EQ(landing->claimed_count, 0u);
  auto span = LandingTable::claim(*landing, 0, 100);
  ASSERT_TRUE(span.ok());
  EXPECT_EQ(span->data(), memory.data());
  EXPECT_EQ(LandingTable::claim(*landing, 0, 100).error().code, Code::kDataLoss);
  EXPECT_TRUE(LandingTable::claim(*landing, 1, 10).ok());
}

TEST_F(LandingTableTest, RefusesWhenClosedAndZeroIds) {
  EXPECT_EQ(table.add(spec({0, 0})).error().code, Code::kInvalidArgument);
  table.close();
  EXPECT_EQ(table.add(spec({1, 1})).error().code, Code::kUnavailable);
}

TEST(TransportConfigTest, DefaultsAreValidAndBoundsNameTheField) {
  EXPECT_TRUE(validate(TransportConfig{}).ok());
  TransportConfig config;
  config.heartbeat_lost_ms = config.heartbeat_interval_ms;
  EXPECT_EQ(validate(config).error().param, "heartbeat_lost_ms");
  config = {};
  config.connections_max = 0;
  EXPECT_EQ(validate(config).error().param, "connections_max");
  config = {};
  config.drain_ms = -5;
  EXPECT_EQ(validate(config).error().param, "drain_ms");
}

}  // namespace
}  // namespace akv::transport
