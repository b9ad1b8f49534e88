#include "prefill_node/outbox/sender_coats.h"

#include <gtest/gtest.h>

namespace akv::prefill {
namespace {

TEST(SenderCoats, TakesTheDocumentedFaultsAndNamesTheFlagOtherwise) {
  for (const char* good : {"", "corrupt=7", "cut=0", "stall=3:2", "corrupt=1:100"}) {
    EXPECT_TRUE(validate(SenderCoats{.fault = good}).ok()) << good;
  }
  for (const char* bad : {"corrupt", "break=1", "cut=", "cut=x", "stall=1:", "cut=-1", "=3"}) {
    const Status status = validate(SenderCoats{.fault = bad});
    ASSERT_FALSE(status.ok()) << bad;
    EXPECT_EQ(status.error().param, "state-fault");
  }
}

}  // namespace
}  // namespace akv::prefill
