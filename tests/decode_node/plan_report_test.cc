#include "decode_node/plan_report.h"

#include <gtest/gtest.h>

#include "decode_node/cache/byte_pool.h"

namespace akv::decode {
namespace {

const kv::KvShape kShape{.layers = 30, .heads = 9, .kv_heads = 3, .head_dim = 64};

kv::StatePlan plan_of(int64_t tokens, double theta) {
  kv::PlanRequest request;
  request.theta = theta;
  return *kv::plan_state(kShape, tokens, request);
}

PlanNode node_of(uint64_t capacity_bytes) {
  return {.capacity_bytes = capacity_bytes,
          .page_share = 0.125,
          .page_bytes = uint64_t{64} * 23'040,
          .max_sessions = 100'000};
}

// The sessions that a pool really takes, each with all pages of its answer.
int64_t admitted(uint64_t state_bytes, int64_t pages, const PlanNode& node) {
  BytePool pool(node.capacity_bytes, node.page_share);
  for (int64_t sessions = 0;; ++sessions) {
    if (!pool.reserve_session(state_bytes, node.page_bytes)) return sessions;
    for (int64_t page = 1; page < pages; ++page) {
      if (!pool.reserve_page(node.page_bytes)) return sessions;
    }
  }
}

TEST(PlanReport, SessionsAreThoseThatThePoolAdmits) {
  for (const int64_t prompt : {600, 1300, 7500}) {
    for (const int64_t answer : {1, 64, 65, 1000}) {
      for (const uint64_t capacity : {uint64_t{64} << 20, uint64_t{1} << 30, uint64_t{4} << 30}) {
        const kv::StatePlan plan = plan_of(prompt, 0.2);
        const PlanNode node = node_of(capacity);
        const Sizing sizing =
            size_deployment(plan, {.prompt_tokens = prompt, .answer_tokens = answer}, node);
        EXPECT_EQ(sizing.suffix_pages, (answer + 63) / 64);
        EXPECT_EQ(sizing.sessions, admitted(plan.total_bytes, sizing.suffix_pages, node));
        EXPECT_EQ(sizing.dense_sessions, admitted(plan.dense_bytes, sizing.suffix_pages, node));
      }
    }
  }
}

TEST(PlanReport, MaxSessionsBounds) {
  PlanNode node = node_of(uint64_t{4} << 30);
  node.max_sessions = 7;
  EXPECT_EQ(size_deployment(plan_of(1300, 0.2), {.prompt_tokens = 1300}, node).sessions, 7);
}

TEST(PlanReport, TransferIsBytesOverTheLink) {
  const kv::StatePlan plan = plan_of(7500, 0.05);
  PlanLoad load{.prompt_tokens = 7500, .link_gbit_per_s = 1};
  Sizing sizing = size_deployment(plan, load, node_of(1 << 30));
  // 172.8 MB dense, a twentieth of it compressed, 125 MB a second.
  EXPECT_NEAR(sizing.dense_transfer_ms, 1382.4, 0.1);
  EXPECT_NEAR(sizing.transfer_ms, 1382.4 / 20, 1);
  EXPECT_NEAR(sizing.exposed_ms, sizing.transfer_ms / 30, 0.1);
  // A prefill that is faster than the link hides only its own time.
  load.prefill_tokens_per_s = 7500 / 0.02;
  sizing = size_deployment(plan, load, node_of(1 << 30));
  EXPECT_NEAR(sizing.exposed_ms, sizing.transfer_ms - 20, 1e-6);
}

TEST(PlanReport, NodesFollowFromRatesOrFromMemory) {
  const kv::StatePlan plan = plan_of(1000, 0.2);
  PlanLoad load{.prompt_tokens = 1000,
                .answer_tokens = 100,
                .requests_per_s = 4,
                .prefill_tokens_per_s = 2000,
                .decode_tokens_per_s = 200,
                .session_tokens_per_s = 20};
  PlanNode node = node_of(uint64_t{4} << 30);
  Sizing sizing = size_deployment(plan, load, node);
  EXPECT_DOUBLE_EQ(sizing.prefill_nodes, 2);  // 4 x 1000 / 2000
  EXPECT_DOUBLE_EQ(sizing.decode_nodes, 2);   // 4 x 100 / 200
  // Two sessions of 0.5 s + 5 s each: 0.36 requests a second a node.
  node.max_sessions = 2;
  sizing = size_deployment(plan, load, node);
  EXPECT_DOUBLE_EQ(sizing.decode_nodes, 4 * 5.5 / 2);
  load.decode_tokens_per_s = 0;
  EXPECT_EQ(size_deployment(plan, load, node).decode_nodes, 0);
}

}  // namespace
}  // namespace akv::decode
