#include "proto/control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace akv::proto {
namespace {

using testing::HasSubstr;

Prefill sample_prefill() {
  Prefill m;
  m.ref = {"4c1f", 3};
  m.request_id = "client-7";
  m.token_ids = {0, 1, 49151, 0x7fffffff, 258};
  m.sampling.temperature = 0.25;
  m.sampling.logit_bias = {{7, -1.5f}, {9, 100.0f}};
  m.sampling.seed = std::numeric_limits<uint64_t>::max();
  m.sampling.stop_token_ids = {2, 0};
  m.sampling.logprobs = 5;
  m.max_tokens = 128;
  m.codec = {"anchorkv", "pooled", 0.05, {{"layout", "compact"}, {"scale", "lsq"}}, 512, "best"};
  m.state_bytes = uint64_t{1} << 63;
  m.plan_hash = 0x9e3779b97f4a7c15ull;
  m.landing =
      Landing{"ucx", "127.0.0.1:4711", "1.22.0", std::string(32, 'a'), std::string(32, 'b'), 2, ""};
  m.deadline_ms = 600000;
  return m;
}

template <class M>
Decoded<M> again(const M& m) {
  const Frames frames = encode(m);
  EXPECT_EQ(frames.type, type_of<M>());
  return decode<M>(frames.type, frames.body, frames.blob);
}

TEST(Control, PrefillComesBackWhole) {
  const Prefill m = sample_prefill();
  const auto decoded = again(m);
  ASSERT_TRUE(decoded) << decoded.error;
  EXPECT_EQ(*decoded.value, m);
  Prefill bare = m;
  bare.landing.reset();
  EXPECT_EQ(again(bare).value->landing, std::nullopt);
}

// An error text of any length and of any bytes reaches its reader.
TEST(Control, LongTextsAreCutAndArrive) {
  for (const std::string& piece : {std::string("a"), std::string("\u20ac"), std::string("\xff")}) {
    Failed m;
    m.ref = {"4c1f", 3};
    m.code = 1;
    for (const size_t bytes : {1365, 1366, 4096, 5000}) {
      m.message = "x";
      while (m.message.size() < bytes) m.message += piece;
      const auto decoded = again(m);
      ASSERT_TRUE(decoded) << decoded.error;
      EXPECT_GT(decoded.value->message.size(), std::min<size_t>(bytes, 4096) - 3);
      EXPECT_LE(decoded.value->message.size(), 4096u);
    }
  }
}

TEST(Control, TokenIdsAreLittleEndianInt32) {
  Start m;
  m.tokens = {0x01020304};
  EXPECT_EQ(encode(m).blob, std::string("\x04\x03\x02\x01", 4));
}

TEST(Control, HelloComesBackWholeAndFindsDifferences) {
  Hello mine{"decode",       "d-0", "0.1.0", kControlProtocol, 1,         "SmolLM2",
             "aa",           "bb",  8192,    "1.22.0",         "[::1]:9", {"ucx", "inproc"},
             {1, 2, 3, 4, 5}};
  EXPECT_EQ(*again(mine).value, mine);
  EXPECT_EQ(again(Welcome{mine}).value->hello, mine);
  EXPECT_EQ(incompatibility(mine, mine), "");
  Hello theirs = mine;
  theirs.role = "prefill";
  theirs.version = "9";
  EXPECT_EQ(incompatibility(mine, theirs), "");
  theirs.protocol = 2;
  theirs.state_format = 7;
  theirs.model_fingerprint = "cc";
  theirs.tokenizer_hash = "dd";
  EXPECT_EQ(incompatibility(mine, theirs),
            "protocol: mine 1, theirs 2; state format: mine 1, theirs 7; "
            "model fingerprint: mine aa, theirs cc; tokenizer: mine bb, theirs dd");
}

TEST(Control, EveryMessageComesBack) {
  const RequestRef ref{"r", 9};
  EXPECT_EQ(again(Refused{"no"}).value->reason, "no");
  EXPECT_EQ(again(Bye{"stop"}).value->reason, "stop");
  EXPECT_EQ(again(Cancel{ref, "client gone"}).value->ref, ref);
  EXPECT_EQ(again(Release{ref}).value->ref, ref);
  const Landing landing = *sample_prefill().landing;
  EXPECT_EQ(again(Resend{ref, landing, 5}).value->landing, landing);
  EXPECT_EQ(again(Queued{ref, 2, 3000}).value->queue_tokens, 3000u);
  EXPECT_EQ(again(Started{ref, 1.5}).value->queue_ms, 1.5);
  const TokenOut token{17, -0.125f, {{17, -0.125f}, {3, -2.5f}}};
  EXPECT_EQ(again(FirstToken{ref, token, 1, 2}).value->token, token);
  EXPECT_EQ(again(Sent{ref, 1, 2, 0.05, 3, 4, 5, 6}).value->transfer_hidden_ms, 6);
  EXPECT_EQ(again(Failed{ref, 3, "send", "m", "p", 1000}).value->retry_after_ms, 1000);
  Open open{ref, "x", {1, 2}, {}, 4, {}, 100};
  EXPECT_EQ(*again(open).value, open);
  EXPECT_EQ(again(Start{ref, {5, 6}}).value->tokens, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(again(Close{ref, "done"}).value->reason, "done");
  EXPECT_EQ(again(Opened{ref, landing, 1, 2, 3, 0.07, true}).value->unreachable, true);
  EXPECT_EQ(again(Landed{ref, 77, 1.0}).value->state_bytes, 77u);
  EXPECT_EQ(again(Tokens{ref, 4, {token, token}}).value->tokens.at(1), token);
  EXPECT_EQ(again(Done{ref, "length", 12}).value->completion_tokens, 12);
  const Load load{1, 2, 3, 4, 5, 6, 7, true, false};
  EXPECT_EQ(*decode_load(encode_load(load)).value, load);
}

// The worked example of proto/README.md.
TEST(Control, TheWorkedExample) {
  Prefill m;
  m.ref.id = "9f2c";
  m.request_id = "r-1";
  m.token_ids = {1, 4370, 346};
  m.sampling.temperature = 0;
  m.sampling.seed = 7;
  m.deadline_ms = 600000;
  const Frames frames = encode(m);
  EXPECT_EQ(frames.body,
            R"({"attempt":0,"codec":{"codec":"anchorkv","min_compress_tokens":512,)"
            R"("on_unreachable":"best","options":[],"profile":"pooled","theta":0.05},)"
            R"("deadline_ms":600000,"id":"9f2c","max_tokens":1,"plan_hash":0,"request_id":"r-1",)"
            R"("sampling":{"frequency_penalty":0.0,"ignore_eos":false,"logit_bias":[],)"
            R"("logprobs":-1,"min_p":0.0,"min_tokens":0,"presence_penalty":0.0,)"
            R"("repetition_penalty":1.0,"seed":7,"stop_token_ids":[],"temperature":0.0,)"
            R"("top_k":0,"top_p":1.0},"state_bytes":0})");
  EXPECT_EQ(frames.blob, std::string("\1\0\0\0\x12\x11\0\0\x5a\1\0\0", 12));
}

TEST(Control, ImpossibleLogprobsStayNumbers) {
  const float inf = std::numeric_limits<float>::infinity();
  const auto decoded = again(FirstToken{{"r", 0}, {1, -inf, {{2, -inf}}}, 0, 0});
  ASSERT_TRUE(decoded) << decoded.error;
  EXPECT_EQ(decoded.value->token.logprob, -9999.0f);
  EXPECT_EQ(decoded.value->token.top[0].second, -9999.0f);
}

TEST(Control, TextThatIsNotUtf8IsReplacedNotRefused) {
  const auto decoded = again(Refused{"caf\xe9"});
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded.value->reason, "caf\xef\xbf\xbd");
}

struct Bad {
  const char* find;
  const char* replace;
  const char* error;
};
class ControlBad : public testing::TestWithParam<Bad> {};

TEST_P(ControlBad, IsRefusedWithTheFieldNamed) {
  Frames frames = encode(sample_prefill());
  const size_t at = frames.body.find(GetParam().find);
  ASSERT_NE(at, std::string::npos) << frames.body;
  frames.body.replace(at, std::string(GetParam().find).size(), GetParam().replace);
  const auto decoded = decode<Prefill>(frames.type, frames.body, frames.blob);
  EXPECT_FALSE(decoded);
  EXPECT_THAT(decoded.error, HasSubstr(GetParam().error));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, ControlBad,
    testing::Values(Bad{"\"attempt\":3", "\"attempt\":-1", "'attempt' is not an integer"},
                    Bad{"\"attempt\":3", "\"attempt\":4294967296", "'attempt'"},
                    Bad{"\"attempt\":3", "\"attempt\":3.5", "'attempt'"},
                    Bad{"\"attempt\":3", "\"attempt\":\"3\"", "'attempt'"},
                    Bad{"\"attempt\":3", "\"attempT\":3", "'attempt' is missing"},
                    Bad{"\"theta\":0.05", "\"theta\":0", "'theta' is out of range"},
                    Bad{"\"theta\":0.05", "\"theta\":1.01", "'theta' is out of range"},
                    Bad{"\"theta\":0.05", "\"theta\":null", "'theta' is not a number"},
                    Bad{"\"4c1f\"", "\"\"", "'id' is empty"},
                    Bad{"\"max_tokens\":128", "\"max_tokens\":0", "'max_tokens'"},
                    Bad{"\"deadline_ms\":600000", "\"deadline_ms\":-5", "'deadline_ms'"},
                    Bad{"\"ignore_eos\":false", "\"ignore_eos\":0", "'ignore_eos'"},
                    Bad{"[7,-1.5]", "[7]", "'logit_bias'"},
                    Bad{"[7,-1.5]", "[-7,-1.5]", "'logit_bias'"},
                    Bad{"[7,-1.5]", "[7,1e999]", "number overflow"},
                    Bad{"\"ucx\"", "{}", "'landing' is wrong: 'transport' is not a string"},
                    Bad{"\"attempt\":3", "\"attempt\":3,\"attempt\":4", "occurs twice"},
                    Bad{"\"attempt\":3", "\"x\":[[[[[[[[[1]]]]]]]]],\"attempt\":3",
                        "nested deeper"},
                    Bad{"{", "", "parse error"}, Bad{"{", "[{", "parse error"}));

TEST(Control, ForeignBytesAreRefused) {
  const Frames frames = encode(sample_prefill());
  EXPECT_FALSE(decode<Prefill>("OPEN", frames.body, frames.blob));
  EXPECT_FALSE(decode<Prefill>(frames.type, "", frames.blob));
  EXPECT_FALSE(decode<Prefill>(frames.type, "[]", frames.blob));
  EXPECT_FALSE(decode<Prefill>(frames.type, frames.body, "abc"));
  EXPECT_FALSE(decode<Prefill>(frames.type, frames.body, ""));
  EXPECT_FALSE(decode<Prefill>(frames.type, frames.body, "\xff\xff\xff\xff"));
  // Every cut of a good message is an error, not a crash.
  for (size_t n = 0; n < frames.body.size(); ++n)
    EXPECT_FALSE(decode<Prefill>(frames.type, frames.body.substr(0, n), frames.blob));
  // Fields of a newer peer are passed over.
  std::string newer = frames.body;
  newer.insert(1, "\"new_field\":{\"a\":[1]},");
  EXPECT_TRUE(decode<Prefill>(frames.type, newer, frames.blob));
}

}  // namespace
}  // namespace akv::proto
