#include "tests/decode_node/whole_node.h"

#include <random>

#include "decode_node/cache/suffix.h"

namespace akv::decode {
namespace {

// The output that nothing disturbed.
std::vector<int32_t> reference(const std::vector<int32_t>& prompt, int32_t max_tokens,
                               double temperature = 0) {
  WholeNode node;
  const auto running = node.submit(prompt, max_tokens, temperature);
  EXPECT_EQ(running.output->ending(), "length") << running.output->message;
  EXPECT_EQ(running.output->tokens().size(), static_cast<size_t>(max_tokens));
  EXPECT_TRUE(node.all_free());
  return running.output->tokens();
}

proto::Failed lost(const proto::RequestRef& ref) {
  proto::Failed failed;
  failed.ref = ref;
  failed.code = static_cast<uint16_t>(Code::kUnavailable);
  failed.phase = "decode";
  return failed;
}

class Disturbed : public testing::TestWithParam<double> {};

TEST_P(Disturbed, TokensThatAreLostOnTheirWayAreDrawnAgain) {
  const auto prompt = WholeNode::prompt(100, 1);
  const auto expected = reference(prompt, 40, GetParam());
  for (const int32_t missing : {1, 20, 39}) {
    WholeNode node;
    bool dropped = false;
    node.on_event = [&](PeerEvent& event) {
      const auto* tokens = std::get_if<proto::Tokens>(&event);
      if (tokens == nullptr || tokens->index != missing || std::exchange(dropped, true))
        return true;
      return false;
    };
    const auto running = node.submit(prompt, 40, GetParam());
    EXPECT_EQ(running.output->ending(), "length") << missing;
    EXPECT_EQ(running.output->tokens(), expected) << missing;
    EXPECT_EQ(node.prefills, 1) << "the outbox holds the state";
    EXPECT_EQ(node.opens, 2);
    EXPECT_TRUE(node.all_free());
  }
}

// An engine that dies behind its last token, before it says so.
TEST_P(Disturbed, NoTokenTooManyWhenOnlyTheEndIsLost) {
  const auto prompt = WholeNode::prompt(70, 2);
  const auto expected = reference(prompt, 30, GetParam());
  WholeNode node;
  node.on_event = [](PeerEvent& event) {
    if (auto* done = std::get_if<proto::Done>(&event)) {
      event = lost(done->ref);
    }
    return true;
  };
  const auto running = node.submit(prompt, 30, GetParam());
  EXPECT_EQ(running.output->ending(), "length");
  EXPECT_EQ(running.output->tokens(), expected);
  EXPECT_TRUE(node.all_free());
}

TEST_P(Disturbed, AnEngineThatFailsAtAnyTokenIsReplaced) {
  const auto prompt = WholeNode::prompt(130, 3);
  const auto expected = reference(prompt, 24, GetParam());
  for (const int32_t last : {1, 7, 22}) {
    WholeNode node;
    bool failed = false;
    node.on_event = [&](PeerEvent& event) {
      const auto* tokens = std::get_if<proto::Tokens>(&event);
      if (tokens == nullptr || tokens->index != last || std::exchange(failed, true)) return true;
      event = lost(tokens->ref);
      return true;
    };
    const auto running = node.submit(prompt, 24, GetParam());
    EXPECT_EQ(running.output->ending(), "length");
    EXPECT_EQ(running.output->tokens(), expected) << last;
    EXPECT_TRUE(node.all_free());
  }
}

INSTANTIATE_TEST_SUITE_P(GreedyAndSeeded, Disturbed, testing::Values(0.0, 1.0));

TEST(WholeNodeTest, TokensOutsideTheVocabularyAreNoAnswer) {
  for (const bool first : {true, false}) {
    WholeNode node;
    node.on_event = [&](PeerEvent& event) {
      auto* tokens = std::get_if<proto::Tokens>(&event);
      auto* token = std::get_if<proto::FirstToken>(&event);
      if (first && token != nullptr) token->token.id = 1 << 20;
      if (!first && tokens != nullptr) tokens->tokens[0].top = {{-1, 0.0f}};
      return true;
    };
    const auto running = node.submit(WholeNode::prompt(50, 4), 10);
    EXPECT_EQ(running.output->ending(), "internal");
    EXPECT_TRUE(node.all_free());
  }
}

// The rotations and embeddings that START indexes end where the model's do.
TEST(WholeNodeTest, AStartBeyondTheContextIsRefused) {
  const std::vector<std::vector<int32_t>> starts = {
      std::vector<int32_t>(2000, 1), std::vector<int32_t>(20, 1), {1, 264}, {-1}};
  for (const auto& tokens : starts) {
    WholeNode node;  // the hook is set while no event can come yet
    node.on_event = [&](PeerEvent& event) {
      const auto* opened = std::get_if<proto::Opened>(&event);
      if (opened != nullptr)
        node.engine().handle(0, proto::Start{.ref = opened->ref, .tokens = tokens});
      return true;
    };
    const auto running = node.submit(WholeNode::prompt(60, 5), 20);
    EXPECT_EQ(running.output->ending(), "invalid_argument");
    EXPECT_TRUE(node.all_free());
  }
}

class SmallPool : public testing::Test {
 protected:
  // Room for `states` of 100 prompt tokens and `pages` of suffix.
  EngineOptions room_for(int states, int pages) {
    proto::CodecChoice codec;
    codec.theta = kv::auto_theta(100);
    codec.min_compress_tokens = 64;
    const auto plan = *model::plan_state(*model_, 100, codec);
    const PageShape page(model_->config());
    EngineOptions options;
    options.page_share = 0.01;
    options.max_state_bytes = static_cast<uint64_t>(states) * plan.total_bytes +
                              static_cast<uint64_t>(pages) * page.bytes();
    return options;
  }

  std::shared_ptr<const model::Model> model_ =
      *model::Model::load(AKV_GOLDEN_DIR "/random_gguf/llama_mixed.gguf");
};

// Every session needs six pages; there are twelve for eight.
TEST_F(SmallPool, ParkedSessionsLoseNoToken) {
  constexpr int kSessions = 8;
  std::vector<std::vector<int32_t>> expected;
  for (int i = 0; i < kSessions; ++i) expected.push_back(reference(WholeNode::prompt(100, i), 350));
  WholeNode node(room_for(kSessions, 12));
  std::vector<WholeNode::Running> running;
  for (int i = 0; i < kSessions; ++i)
    running.push_back(node.submit(WholeNode::prompt(100, i), 350));
  for (int i = 0; i < kSessions; ++i) {
    EXPECT_EQ(running[static_cast<size_t>(i)].output->ending(), "length") << i;
    EXPECT_EQ(running[static_cast<size_t>(i)].output->tokens(), expected[static_cast<size_t>(i)]);
  }
  EXPECT_TRUE(node.all_free());
}

// What ends must go to the parked ones first: a stream of new ones would hold them up for ever.
TEST_F(SmallPool, NewSessionsDoNotOvertakeParkedOnes) {
  WholeNode node(room_for(3, 9));
  const auto first = node.submit(WholeNode::prompt(100, 0), 380);
  ASSERT_TRUE(first.output->wait_tokens(2));
  const auto second = node.submit(WholeNode::prompt(100, 1), 380);
  ASSERT_TRUE(second.output->wait_tokens(2));
  std::vector<WholeNode::Running> later;
  for (int i = 2; i < 30; ++i) later.push_back(node.submit(WholeNode::prompt(100, i), 100));
  EXPECT_EQ(second.output->ending(), "length");
  EXPECT_EQ(second.output->tokens(), reference(WholeNode::prompt(100, 1), 380));
  for (const auto& each : later) EXPECT_EQ(each.output->ending(), "length");
  EXPECT_TRUE(node.all_free());
}

TEST_F(SmallPool, AnOutputThatCanNeverFitIsSaidOnce) {
  WholeNode node(room_for(1, 3));
  const auto running = node.submit(WholeNode::prompt(100, 0), 380);
  EXPECT_EQ(running.output->ending(), "resource_exhausted");
  EXPECT_EQ(running.output->tokens().size(), 3u * 64 + 1);
  EXPECT_EQ(node.opens, 1);
  EXPECT_TRUE(node.all_free());
}

// Clients that go away at random moments: in every phase, also while a prompt is just started.
TEST(WholeNodeTest, CancelsAtAnyMomentLeaveNothing) {
  prefill::ServiceOptions prefill;
  prefill.outbox_bytes = 1 << 20;
  WholeNode node({}, prefill);
  std::mt19937 random(5);
  for (int round = 0; round < 40; ++round) {
    std::vector<WholeNode::Running> running;
    for (int i = 0; i < 8; ++i) {
      const int tokens = 1 + static_cast<int>(random() % 300);
      running.push_back(node.submit(WholeNode::prompt(tokens, i), 40));
    }
    for (auto& each : running) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
      if (random() % 4 != 0) node.dispatcher().cancel(each.handle, "client gone");
    }
  }
  EXPECT_TRUE(node.all_free());
}

}  // namespace
}  // namespace akv::decode
