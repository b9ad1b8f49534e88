#include "decode_node/cache/byte_pool.h"

#include <gtest/gtest.h>

#include "decode_node/cache/suffix.h"

namespace akv::decode {
namespace {

TEST(BytePool, ReservesStateAndFirstPageTogetherOrNeither) {
  BytePool pool(1000, 0.2);
  EXPECT_EQ(pool.state_capacity(), 800u);
  EXPECT_TRUE(pool.reserve_session(700, 100));
  EXPECT_FALSE(pool.reserve_session(150, 10));  // over the share of states
  EXPECT_TRUE(pool.reserve_session(100, 100));
  EXPECT_FALSE(pool.reserve_page(1));
  EXPECT_EQ(pool.state_bytes(), 800u);
  EXPECT_EQ(pool.page_bytes(), 200u);
  EXPECT_EQ(pool.used_share(), 1);
  pool.release_state(700);
  pool.release_pages(200);
  EXPECT_TRUE(pool.reserve_page(900));
  EXPECT_FALSE(pool.could_hold(801, 1));
  EXPECT_TRUE(pool.could_hold(800, 200));
}

model::ModelConfig tiny() {
  model::ModelConfig config;
  config.layers = 2;
  config.kv_heads = 2;
  config.heads = 2;
  config.head_dim = 16;
  return config;
}

TEST(Suffix, ChargesWholePagesAndGivesThemBack) {
  const PageShape shape(tiny());
  EXPECT_EQ(shape.bytes(), 2u * 64 * 2 * 32 * 2);
  BytePool pool(3 * shape.bytes(), 0.5);
  {
    ASSERT_TRUE(pool.reserve_session(0, shape.bytes()));
    Suffix suffix(shape, &pool);
    suffix.adopt_reservation(1);
    EXPECT_TRUE(suffix.grow(64));
    EXPECT_EQ(pool.page_bytes(), shape.bytes());  // the page paid at admission
    EXPECT_TRUE(suffix.grow(65));
    EXPECT_TRUE(suffix.grow(192));
    EXPECT_FALSE(suffix.grow(193));
    EXPECT_EQ(suffix.pages(), 3u);
    EXPECT_EQ(pool.page_bytes(), 3 * shape.bytes());
  }
  EXPECT_EQ(pool.page_bytes(), 0u);
}

TEST(Suffix, RowsOfLayersAndTokensDoNotOverlap) {
  const PageShape shape(tiny());
  Suffix suffix(shape, nullptr);
  ASSERT_TRUE(suffix.grow(130));
  uint16_t next = 1;
  for (int layer = 0; layer < 2; ++layer) {
    for (int64_t token = 0; token < 130; ++token) {
      suffix.k_row(layer, token)[31].bits = next++;
      suffix.v_row(layer, token)[0].bits = next++;
    }
  }
  next = 1;
  for (int layer = 0; layer < 2; ++layer) {
    const auto view = suffix.view(layer, 130);
    for (int64_t token = 0; token < 130; ++token) {
      const bf16* page = view.pages[token / 64] + view.layer_offset;
      EXPECT_EQ(page[token % 64 * 32 + 31].bits, next++);
      EXPECT_EQ(page[64 * 32 + token % 64 * 32].bits, next++);
    }
  }
}

}  // namespace
}  // namespace akv::decode
