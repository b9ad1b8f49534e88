// Mutates control messages, frames and HTTP bodies at random, a bounded number of times from fixed
// seeds: whatever the bytes, decoding ends in a value or in an error that says something. The suite
// runs it under ASan and UBSan, too.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "common/net/control_wire.h"
#include "proto/api_reply.h"
#include "proto/api_request.h"
#include "proto/control.h"

namespace akv {
namespace {

constexpr int kRounds = 10000;

// Pieces that parsers trip over.
const char* const kTokens[] = {"null",
                               "true",
                               "-1",
                               "1e999",
                               "18446744073709551616",
                               "0.5",
                               "[]",
                               "{}",
                               "\"\"",
                               "\\u0000",
                               "\xff",
                               "[[[[",
                               "{\"a\":",
                               ",",
                               "\"id\"",
                               "9223372036854775808",
                               "\xed\xa0\x80"};

std::string mutated(std::string bytes, std::mt19937_64& rng) {
  const int changes = 1 + static_cast<int>(rng() % 3);
  for (int i = 0; i < changes && !bytes.empty(); ++i) {
    const size_t at = rng() % bytes.size();
    switch (rng() % 5) {
      case 0:
        bytes[at] = static_cast<char>(rng());
        break;
      case 1:
        bytes.erase(at, 1 + rng() % 8);
        break;
      case 2:
        bytes.insert(at, kTokens[rng() % std::size(kTokens)]);
        break;
      case 3:
        bytes.resize(at);
        break;
      default:
        bytes.insert(at, bytes.substr(rng() % bytes.size(), 1 + rng() % 16));
    }
  }
  return bytes;
}

proto::Prefill sample() {
  proto::Prefill m;
  m.ref = {"id", 1};
  m.request_id = "r";
  m.token_ids = {1, 2, 3};
  m.sampling.logit_bias = {{5, 1.0f}};
  m.sampling.stop_token_ids = {2};
  m.codec.options = {{"layout", "compact"}};
  m.landing =
      proto::Landing{"ucx", "127.0.0.1:1", "1", std::string(32, 'a'), std::string(32, 'b'), 1};
  return m;
}

TEST(WireFuzz, ControlMessages) {
  std::mt19937_64 rng(1);
  const proto::Frames good = proto::encode(sample());
  ASSERT_TRUE(proto::decode<proto::Prefill>(good.type, good.body, good.blob));
  int accepted = 0;
  for (int i = 0; i < kRounds; ++i) {
    const auto decoded =
        proto::decode<proto::Prefill>(good.type, mutated(good.body, rng), mutated(good.blob, rng));
    if (!decoded) {
      ASSERT_FALSE(decoded.error.empty());
      continue;
    }
    // What is taken can be sent on, and is then the same.
    ++accepted;
    const proto::Frames frames = proto::encode(*decoded.value);
    const auto again = proto::decode<proto::Prefill>(frames.type, frames.body, frames.blob);
    ASSERT_TRUE(again) << again.error;
    ASSERT_EQ(*again.value, *decoded.value);
  }
  EXPECT_GT(accepted, 0);
}

TEST(WireFuzz, Frames) {
  std::mt19937_64 rng(2);
  const std::vector<std::vector<std::string>> good = {{net::encode_header(net::Ping{1000}), "load"},
                                                      {net::encode_header(net::Pong{1, 2}), "load"},
                                                      {net::encode_header("HELLO"), "{}", "blob"}};
  int accepted = 0;
  for (int i = 0; i < kRounds; ++i) {
    std::vector<std::string> frames = good[rng() % good.size()];
    for (std::string& frame : frames)
      if (rng() % 2 == 0) frame = mutated(frame, rng);
    if (rng() % 8 == 0) frames.resize(rng() % 5);
    const auto wire = net::decode_frames(std::move(frames), {});
    if (!wire) continue;
    ++accepted;
    const bool is_message = wire->kind == net::WireMessage::Kind::kMessage;
    ASSERT_TRUE(!is_message || net::valid_type(wire->message.type));
  }
  EXPECT_GT(accepted, kRounds / 20);
}

TEST(WireFuzz, HttpBodies) {
  std::mt19937_64 rng(3);
  const proto::ApiLimits limits;
  const std::string chat =
      R"({"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":)"
      R"([{"type":"text","text":"hi"}]}],"max_tokens":5,"temperature":0.5,"top_p":0.9,"n":2,)"
      R"("stop":["a","b"],"seed":7,"logit_bias":{"5":1.5},"stream":true,)"
      R"("stream_options":{"include_usage":true},"kv":{"codec":"anchorkv","theta":0.05}})";
  const std::string completion =
      R"({"prompt":["a",[1,2,3]],"logprobs":3,"echo":false,"best_of":1,"suffix":null})";
  ASSERT_TRUE(proto::parse_chat_request(chat, limits));
  ASSERT_TRUE(proto::parse_completion_request(completion, limits));
  int accepted = 0;
  const auto check = [&](const auto& parsed) {
    if (parsed) {
      ++accepted;
      return;
    }
    ASSERT_TRUE(parsed.error.status == 400 || parsed.error.status == 501);
    ASSERT_FALSE(parsed.error.message.empty());
    ASSERT_FALSE(proto::error_json(parsed.error).empty());
  };
  for (int i = 0; i < kRounds; ++i) {
    check(proto::parse_chat_request(mutated(chat, rng), limits));
    check(proto::parse_completion_request(mutated(completion, rng), limits));
    check(proto::parse_tokenize_request(mutated(R"({"content":"x","with_pieces":true})", rng),
                                        limits));
    check(proto::parse_detokenize_request(mutated(R"({"tokens":[1,2,3]})", rng), limits));
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace akv
