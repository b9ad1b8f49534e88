#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/decode_node/fake_service.h"
#include "tests/support/raw_http.h"

namespace akv::decode::api {
namespace {

using nlohmann::json;
using test::body_of;
using test::dechunk;
using test::RawClient;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kCompletions = "/v1/completions";

std::string chat_body(const std::string& more = "") {
  return R"({"model":"tiny","messages":[{"role":"user","content":"hi"}])" +
         (more.empty() ? std::string() : "," + more) + "}";
}
std::string completion_body(const std::string& more = "") {
  return R"({"prompt":"hi")" + (more.empty() ? std::string() : "," + more) + "}";
}

// What a stream says, with what is random taken out.
std::string transcript(const std::string& response) {
  std::string text = dechunk(body_of(response));
  for (const auto& [before, after, value] :
       {std::array<std::string, 3>{"\"id\":\"", "\"", "ID"}, {"\"created\":", ",", "0"}}) {
    for (size_t at = text.find(before); at != std::string::npos; at = text.find(before, at)) {
      at += before.size();
      text.replace(at, text.find(after, at) - at, value);
    }
  }
  return text;
}

class ApiTest : public testing::Test {
 protected:
  void SetUp() override {
    options_.http.bind = HostPort{"127.0.0.1", 0};
    options_.version = "0.1.0";
    options_.metrics_text = [] { return std::string("akv_up 1\n"); };
  }
  void start() {
    auto started = ApiServer::start(options_, service_, &observer_);
    ASSERT_TRUE(started.ok()) << started.error().message;
    server_ = std::move(*started);
  }
  RawClient client() {
    if (!server_) start();
    return RawClient(server_->address());
  }
  // One request and its whole answer.
  std::string post(const std::string& path, const std::string& body,
                   const std::string& headers = "") {
    RawClient c = client();
    c.post(path, body, headers);
    return c.response();
  }
  std::string get(const std::string& path) {
    RawClient c = client();
    c.get(path);
    return c.response();
  }

  ApiOptions options_;
  FakeService service_;
  Observer observer_;
  std::unique_ptr<ApiServer> server_;
};

TEST_F(ApiTest, ChatAnswersWhole) {
  RawClient c = client();
  c.post(kChat, chat_body(R"("temperature":0,"seed":5,"kv":{"theta":0.1})"),
         "X-Request-Id: mine-1\r\n");
  const GenerationRequest request = service_.request(1);
  EXPECT_EQ(request.request_id, "mine-1");
  EXPECT_EQ(request.prompt_ids,
            service_.ids("<|begin|>user\nhi<|im_end|>\n<|begin|>assistant\n", true));
  EXPECT_EQ(request.sampling.temperature, 0);
  EXPECT_EQ(request.sampling.seed, 5u);
  EXPECT_EQ(request.kv.theta, 0.1);
  EXPECT_EQ(request.max_tokens, 200 - static_cast<int>(request.prompt_ids.size()));
  service_.say(1, "Hello");
  service_.done(1, "stop", 6);
  const std::string response = c.response();
  EXPECT_THAT(response, AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("x-request-id: mine-1\r\n"),
                              HasSubstr("Content-Type: application/json\r\n")));
  const json body = json::parse(body_of(response));
  EXPECT_THAT(body["id"], StartsWith("chatcmpl-"));
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["model"], "tiny");
  EXPECT_EQ(body["choices"][0]["message"]["content"], "Hello");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["usage"]["prompt_tokens"], request.prompt_ids.size());
  EXPECT_EQ(body["usage"]["completion_tokens"], 6);
  EXPECT_EQ(body["kv"]["ratio"], 20.0);
  const RequestRecord record = observer_.wait_record();
  EXPECT_EQ(record.outcome, "ok");
  EXPECT_EQ(record.request_id, "mine-1");
  EXPECT_EQ(record.completion_tokens, 6);
  EXPECT_GE(record.ttft_ms, 0);
  EXPECT_EQ(observer_.first_tokens, 1);
  EXPECT_EQ(observer_.gaps, 4);
}

TEST_F(ApiTest, ChatStreamByteForByte) {
  RawClient c = client();
  c.post(kChat, chat_body(R"("stream":true,"stream_options":{"include_usage":true})"));
  service_.say(1, "Hi");
  service_.done(1, "length", 2);
  const std::string prompt = std::to_string(service_.request(1).prompt_ids.size());
  const std::string total = std::to_string(service_.request(1).prompt_ids.size() + 2);
  const std::string head =
      R"(data: {"id":"ID","object":"chat.completion.chunk","created":0,"model":"tiny",)";
  EXPECT_EQ(
      transcript(c.wait_for("\r\n0\r\n\r\n")),
      head +
          R"("choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,)"
          R"("finish_reason":null}],"usage":null})"
          "\n\n" +
          head +
          R"("choices":[{"index":0,"delta":{"content":"H"},"logprobs":null,)"
          R"("finish_reason":null}],"usage":null})"
          "\n\n" +
          head +
          R"("choices":[{"index":0,"delta":{"content":"i"},"logprobs":null,)"
          R"("finish_reason":null}],"usage":null})"
          "\n\n" +
          head +
          R"("choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}],)"
          R"("usage":null})"
          "\n\n" +
          head + R"("choices":[],"usage":{"prompt_tokens":)" + prompt +
          R"(,"completion_tokens":2,"total_tokens":)" + total +
          R"(,"prompt_tokens_details":{"cached_tokens":0}},"kv":{"codec":"anchorkv",)"
          R"("profile":"pooled","theta":0.0625,"theta_requested":0.05,"prompt_tokens":100,)"
          R"("dense_bytes":4000,"state_bytes":200,"ratio":20.0,"prefill_ms":0.0,"compress_ms":0.0,)"
          R"("transfer_ms":0.0,"prefill_node":"p-0"}})"
          "\n\ndata: [DONE]\n\n");
}

TEST_F(ApiTest, CompletionStreamByteForByte) {
  RawClient c = client();
  c.post(kCompletions, completion_body(R"("stream":true,"max_tokens":7)"));
  EXPECT_EQ(service_.request(1).max_tokens, 7);
  EXPECT_EQ(service_.request(1).prompt_ids, service_.ids("hi"));
  service_.say(1, "H");
  service_.done(1, "stop", 1);
  const std::string head =
      R"(data: {"id":"ID","object":"text_completion","created":0,"model":"tiny",)";
  EXPECT_EQ(transcript(c.wait_for("\r\n0\r\n\r\n")),
            head +
                R"("choices":[{"index":0,"text":"H","logprobs":null,"finish_reason":null}]})"
                "\n\n" +
                head +
                R"("choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}]})"
                "\n\ndata: [DONE]\n\n");
}

TEST_F(ApiTest, AStreamWithoutAnyToken) {
  RawClient c = client();
  c.post(kChat, chat_body(R"("stream":true)"));
  service_.wait_session(1);
  service_.done(1, "stop", 1);
  EXPECT_THAT(transcript(c.wait_for("\r\n0\r\n\r\n")),
              AllOf(HasSubstr("\"role\":\"assistant\""), HasSubstr("\"finish_reason\":\"stop\""),
                    testing::EndsWith("data: [DONE]\n\n")));
}

TEST_F(ApiTest, StopStringsAcrossTokensEndTheTextAndTheWork) {
  RawClient c = client();
  c.post(kChat, chat_body(R"("stop":["END","x"])"));
  const auto sink = service_.sink(1);
  service_.say(1, "a EN");
  const auto rest = service_.byte_tokens("Db");
  sink->on_tokens(rest);
  ASSERT_TRUE(service_.wait_finished(1));
  const json body = json::parse(body_of(c.response()));
  EXPECT_EQ(body["choices"][0]["message"]["content"], "a ");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["usage"]["completion_tokens"], 5);
  EXPECT_EQ(observer_.wait_record().outcome, "ok");

  RawClient d = client();
  d.post(kChat, chat_body(R"("stop":"EN","stream":true,"include_stop_str_in_output":true)"));
  service_.say(2, "aEN");
  const std::string all = transcript(d.wait_for("\r\n0\r\n\r\n"));
  EXPECT_THAT(all, AllOf(HasSubstr(R"({"content":"a"})"), HasSubstr(R"({"content":"EN"})"),
                         Not(HasSubstr(R"("content":"E"})"))));
}

TEST_F(ApiTest, HeldBackTextComesOutAtTheEnd) {
  RawClient c = client();
  c.post(kChat, chat_body(R"("stop":"END","stream":true)"));
  service_.say(1, "aEN");
  EXPECT_THAT(c.wait_for(R"("content":"a")"), Not(HasSubstr("EN")));
  service_.done(1, "length", 3);
  EXPECT_THAT(transcript(c.wait_for("\r\n0\r\n\r\n")),
              AllOf(HasSubstr(R"("content":"EN")"), HasSubstr("\"length\"")));
}

TEST_F(ApiTest, MinTokensHoldsStopStringsOff) {
  RawClient c = client();
  c.post(kChat, chat_body(R"("stop":"b","min_tokens":3)"));
  service_.say(1, "abcb");
  const json body = json::parse(body_of(c.response()));
  EXPECT_EQ(body["choices"][0]["message"]["content"], "abc");
}

TEST_F(ApiTest, CharactersAreNeverCut) {
  RawClient c = client();
  c.post(kChat, chat_body(R"("stream":true)"));
  service_.say(1, "\xf0\x9f\x98\x80\xc3");
  service_.done(1, "length", 5);
  EXPECT_THAT(transcript(c.wait_for("\r\n0\r\n\r\n")),
              AllOf(HasSubstr("{\"content\":\"\xf0\x9f\x98\x80\"}"),
                    HasSubstr("{\"content\":\"\xef\xbf\xbd\"}")));
}

TEST_F(ApiTest, MessageTextNeverBecomesAControlToken) {
  RawClient c = client();
  c.post(kChat, R"({"messages":[{"role":"user","content":"<|im_end|>"}]})");
  const auto control = service_.ids("<|im_end|>", true);
  ASSERT_EQ(control.size(), 1u);
  const auto chat = service_.request(1).prompt_ids;
  EXPECT_EQ(std::count(chat.begin(), chat.end(), control[0]), 1);
  RawClient d = client();
  d.post(kCompletions, R"({"prompt":"<|im_end|>"})");
  EXPECT_EQ(service_.request(2).prompt_ids, control);
}

TEST_F(ApiTest, LogprobsOfBothDialects) {
  RawClient c = client();
  c.post(kChat, chat_body(R"("logprobs":true,"top_logprobs":2,"return_token_ids":true)"));
  EXPECT_EQ(service_.request(1).sampling.logprobs, 2);
  service_.say(1, "a\xc3\xa4");
  service_.done(1, "stop", 3);
  const json chat = json::parse(body_of(c.response()))["choices"][0];
  ASSERT_EQ(chat["logprobs"]["content"].size(), 3u);
  EXPECT_EQ(chat["logprobs"]["content"][1]["bytes"], json({0xc3}));
  EXPECT_EQ(chat["logprobs"]["content"][0]["top_logprobs"][1]["token"], "z");
  EXPECT_EQ(chat["token_ids"].size(), 3u);
  RawClient d = client();
  d.post(kCompletions, completion_body(R"("logprobs":1,"stream":true)"));
  service_.say(2, "ab");
  service_.done(2, "stop", 2);
  EXPECT_THAT(transcript(d.wait_for("\r\n0\r\n\r\n")),
              AllOf(HasSubstr(R"("tokens":["a"],"token_logprobs":[-0.5])"),
                    HasSubstr(R"("tokens":["b"])"), HasSubstr(R"("text_offset":[1])")));
}

TEST_F(ApiTest, SeveralChoicesAndPrompts) {
  RawClient c = client();
  c.post(kCompletions, R"({"prompt":["a",[1,2]],"n":2,"seed":10,"echo":true})");
  ASSERT_TRUE(service_.wait_session(4));
  EXPECT_EQ(service_.request(2).sampling.seed, 11u);
  EXPECT_EQ(service_.request(3).prompt_ids, (std::vector<int32_t>{1, 2}));
  for (const uint64_t handle : {3, 1, 4, 2}) {
    service_.say(handle, std::to_string(handle));
    service_.done(handle, "stop", 1);
  }
  const json body = json::parse(body_of(c.response()));
  ASSERT_EQ(body["choices"].size(), 4u);
  EXPECT_EQ(body["choices"][0]["text"], "a1");
  EXPECT_EQ(body["choices"][1]["text"], "a2");
  EXPECT_EQ(body["choices"][3]["index"], 3);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(body["usage"]["completion_tokens"], 4);
}

TEST_F(ApiTest, OneFailedChoiceEndsTheOthers) {
  RawClient c = client();
  c.post(kChat, chat_body(R"("n":3)"));
  ASSERT_TRUE(service_.wait_session(3));
  GenerationError error;
  error.error = make_error(Code::kDataLoss, "the state was corrupt");
  service_.sink(2)->on_error(error);
  EXPECT_THAT(c.response(), AllOf(StartsWith("HTTP/1.1 500 "), HasSubstr("corrupt"),
                                  HasSubstr("\"code\":\"data_loss\"")));
  EXPECT_TRUE(service_.wait_cancelled(1, "another choice failed"));
  EXPECT_TRUE(service_.wait_cancelled(3, "another choice failed"));
  EXPECT_EQ(service_.cancelled(2), "");
  EXPECT_EQ(observer_.wait_record().outcome, "error");
  // A choice that is refused after others were taken.
  service_.refusal = error;
  service_.accept = 4;
  EXPECT_THAT(post(kChat, chat_body(R"("n":2)")), StartsWith("HTTP/1.1 500 "));
  EXPECT_TRUE(service_.wait_cancelled(4, "another choice failed"));
}

struct Refusal {
  Code code;
  int status;
  const char* type;
  const char* header;
  const char* outcome;
};
class ApiRefusal : public ApiTest, public testing::WithParamInterface<Refusal> {};
TEST_P(ApiRefusal, ErrorsBeforeTheFirstTokenArePlain) {
  const Refusal& want = GetParam();
  GenerationError error;
  error.error = make_error(want.code, "because", "field");
  error.retry_after_ms = 2500;
  const auto check = [&](const std::string& response) {
    EXPECT_THAT(response, StartsWith("HTTP/1.1 " + std::to_string(want.status)));
    EXPECT_THAT(response, HasSubstr("Content-Type: application/json\r\n"));
    EXPECT_THAT(response, HasSubstr("x-request-id: "));
    EXPECT_THAT(response, HasSubstr(want.header));
    const json body = json::parse(body_of(response))["error"];
    EXPECT_EQ(body["type"], want.type);
    EXPECT_EQ(body["message"], "because");
    EXPECT_EQ(body["param"], "field");
    EXPECT_TRUE(body["code"].is_string());
  };
  RawClient c = client();
  c.post(kChat, chat_body(R"("stream":true)"));
  service_.sink(1)->on_error(error);
  check(c.response());
  service_.refusal = error;
  check(post(kCompletions, completion_body()));
  EXPECT_EQ(observer_.wait_record(0).outcome, want.outcome);
  EXPECT_EQ(observer_.wait_record(1).outcome, want.outcome);
}
INSTANTIATE_TEST_SUITE_P(
    Codes, ApiRefusal,
    testing::Values(Refusal{Code::kInvalidArgument, 400, "invalid_request_error", "", "invalid"},
                    Refusal{Code::kContextLength, 400, "exceed_context_size_error", "", "invalid"},
                    Refusal{Code::kResourceExhausted, 429, "rate_limit_error", "Retry-After: 3\r\n",
                            "overloaded"},
                    Refusal{Code::kUnavailable, 503, "unavailable_error", "Retry-After: 3\r\n",
                            "unavailable"},
                    Refusal{Code::kDeadlineExceeded, 504, "timeout_error",
                            "x-should-retry: false\r\n", "timeout"},
                    Refusal{Code::kUnsupported, 501, "not_supported_error",
                            "x-should-retry: false\r\n", "invalid"},
                    Refusal{Code::kInternal, 500, "server_error", "", "error"}));

TEST_F(ApiTest, AnErrorAfterTheFirstTokenIsAnEvent) {
  RawClient c = client();
  c.post(kChat, chat_body(R"("stream":true)"));
  service_.say(1, "a");
  GenerationError error;
  error.error = make_error(Code::kUnavailable, "the prefill node is gone");
  service_.sink(1)->on_error(error);
  const std::string all = transcript(c.wait_for("\r\n0\r\n\r\n"));
  EXPECT_THAT(all, testing::EndsWith(
                       "data: {\"error\":{\"message\":\"the prefill node is gone\","
                       "\"type\":\"unavailable_error\",\"param\":null,\"code\":\"unavailable\"}}"
                       "\n\n"));
  EXPECT_THAT(all, Not(HasSubstr("[DONE]")));
  EXPECT_EQ(observer_.wait_record().outcome, "unavailable");
}

TEST_F(ApiTest, ALongPrefillIsBridgedByComments) {
  options_.http.ping_interval_ms = 50;
  RawClient c = client();
  c.post(kChat, chat_body(R"("stream":true)"), "x-request-id: long\r\n");
  EXPECT_THAT(c.wait_for(": ping"), HasSubstr("x-request-id: long\r\n"));
  GenerationError error;
  error.error = make_error(Code::kUnavailable, "gone");
  service_.sink(1)->on_error(error);
  EXPECT_THAT(transcript(c.wait_for("\r\n0\r\n\r\n")), HasSubstr("data: {\"error\":"));
  RawClient d = client();
  d.post(kChat, chat_body(R"("stream":true)"));
  d.wait_for(": ping");
  service_.say(2, "x");
  service_.done(2, "stop", 1);
  EXPECT_THAT(transcript(d.wait_for("\r\n0\r\n\r\n")),
              AllOf(HasSubstr("\"role\":\"assistant\""), HasSubstr("\"content\":\"x\""),
                    testing::EndsWith("data: [DONE]\n\n")));
}

TEST_F(ApiTest, AClientThatGoesAwayIsCancelledInEveryPhase) {
  RawClient queued = client();
  queued.post(kChat, chat_body());
  ASSERT_TRUE(service_.wait_session(1));
  queued.close();
  EXPECT_TRUE(service_.wait_cancelled(1, "client gone"));

  RawClient waiting_stream = client();
  waiting_stream.post(kChat, chat_body(R"("stream":true,"n":2)"));
  ASSERT_TRUE(service_.wait_session(3));
  waiting_stream.close();
  EXPECT_TRUE(service_.wait_cancelled(2, "client gone"));
  EXPECT_TRUE(service_.wait_cancelled(3, "client gone"));

  RawClient streaming = client();
  streaming.post(kChat, chat_body(R"("stream":true)"));
  service_.say(4, "a");
  streaming.wait_for("\"a\"");
  const auto late = service_.sink(4);
  streaming.reset();
  EXPECT_TRUE(service_.wait_cancelled(4, "client gone"));
  // A call that was under way when cancel() came.
  late->on_tokens(service_.byte_tokens("b"));
  late->on_done(FakeService::result("stop", 2));

  RawClient plain = client();
  plain.post(kChat, chat_body());
  service_.say(5, "a");
  plain.close();
  EXPECT_TRUE(service_.wait_cancelled(5, "client gone"));
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(observer_.wait_record(i).outcome, "client_gone");
  EXPECT_EQ(observer_.count(), 4u);
}

TEST_F(ApiTest, StoppingTheServerCancelsWhatRuns) {
  RawClient c = client();
  c.post(kChat, chat_body());
  const auto sink = service_.sink(1);
  server_->stop(0);
  EXPECT_EQ(service_.cancelled(1), "client gone");
  server_.reset();
  sink->on_tokens(service_.byte_tokens("b"));
  sink->on_done(FakeService::result("stop", 1));
}

TEST_F(ApiTest, TheModelsLimitsAreChecked) {
  const auto error = [&](const std::string& path, const std::string& body) {
    const std::string response = post(path, body);
    const json e = json::parse(body_of(response))["error"];
    return response.substr(9, 3) + " " + e["code"].get<std::string>() + " " +
           (e["param"].is_null() ? "-" : e["param"].get<std::string>());
  };
  const std::string ids199 = json(std::vector<int32_t>(199, 1)).dump();
  EXPECT_EQ(error(kChat, R"({"model":"other","messages":[{"role":"user","content":""}]})"),
            "404 model_not_found model");
  EXPECT_EQ(error(kCompletions, completion_body(R"("max_tokens":200)")),
            "400 context_length_exceeded max_tokens");
  EXPECT_EQ(error(kCompletions, R"({"prompt":)" + ids199 + R"(,"max_tokens":2})"),
            "400 context_length_exceeded max_tokens");
  EXPECT_EQ(error(kCompletions, R"({"prompt":")" + std::string(3000, '#') + R"("})"),
            "400 context_length_exceeded prompt");
  // Not tokenised, rendered or looked through: that would hold up everybody else.
  const std::string far_too_long(1 << 20, '#');
  EXPECT_EQ(error(kCompletions, R"({"prompt":")" + far_too_long + R"("})"),
            "400 context_length_exceeded prompt");
  EXPECT_EQ(error(kChat, R"({"messages":[{"role":"user","content":")" + far_too_long + R"("}]})"),
            "400 context_length_exceeded messages");
  EXPECT_EQ(error("/tokenize", R"({"content":")" + std::string((4 << 20) + 1, '#') + R"("})"),
            "400 invalid_value content");
  EXPECT_EQ(error(kCompletions, R"({"prompt":[999999]})"), "400 invalid_value prompt");
  EXPECT_EQ(error(kCompletions, R"({"prompt":""})"), "400 empty_prompt prompt");
  EXPECT_EQ(error(kCompletions, completion_body(R"("stop_token_ids":[999999])")),
            "400 invalid_value stop_token_ids");
  EXPECT_EQ(error(kCompletions, completion_body(R"("logit_bias":{"999999":1})")),
            "400 invalid_value logit_bias");
  EXPECT_EQ(error(kChat, chat_body(R"("kv":{"theta":0})")), "400 invalid_value kv.theta");
  EXPECT_EQ(error(kChat, "{"), "400 invalid_json -");
  EXPECT_EQ(error(kChat, chat_body(R"("tools":[{}])")), "501 unsupported_parameter tools");
  EXPECT_EQ(observer_.wait_record(0).outcome, "invalid");
  RawClient fits = client();
  fits.post(kCompletions, R"({"prompt":)" + ids199 + R"(,"max_tokens":1})");
  EXPECT_EQ(service_.request(1).prompt_ids.size(), 199u);
  service_.info_.chat_template = nullptr;
  EXPECT_EQ(error(kChat, chat_body()), "400 no_chat_template messages");
}

TEST_F(ApiTest, IdsAndDeadlines) {
  options_.request_timeout_ms = 60000;
  RawClient c = client();
  c.post(kChat, chat_body(), "X-Request-Id: bad id\r\nx-request-timeout-ms: 2000\r\n");
  const GenerationRequest request = service_.request(1);
  EXPECT_EQ(request.request_id.size(), 32u);
  EXPECT_LT(ms_between(SteadyClock::now(), request.deadline), 2000);
  RawClient d = client();
  d.post(kChat, chat_body(), "x-request-timeout-ms: 99999999\r\n");
  EXPECT_LT(ms_between(SteadyClock::now(), service_.request(2).deadline), 60001);
  EXPECT_GT(ms_between(SteadyClock::now(), service_.request(2).deadline), 50000);
  EXPECT_NE(service_.request(1).sampling.seed, service_.request(2).sampling.seed);
}

TEST_F(ApiTest, ATimeOutThatIsNoneIsSaid) {
  for (const std::string value : {"0", "-1", "abc", "1.5", "5s", ""}) {
    EXPECT_THAT(post(kChat, chat_body(), "x-request-timeout-ms: " + value + "\r\n"),
                AllOf(StartsWith("HTTP/1.1 400 "), HasSubstr("x-request-timeout-ms")))
        << value;
  }
  RawClient c = client();
  c.post(kChat, chat_body(), "x-request-timeout-ms: 99999999999999999999999\r\n");
  EXPECT_GT(ms_between(SteadyClock::now(), service_.request(1).deadline), 500000);
}

TEST_F(ApiTest, EncodedBodiesAreRefused) {
  EXPECT_THAT(post(kChat, "\x1f\x8b", "Content-Encoding: gzip\r\n"),
              AllOf(StartsWith("HTTP/1.1 415 "), HasSubstr("unsupported_encoding")));
  EXPECT_THAT(post("/tokenize", R"({"content":"a"})", "Content-Encoding: identity\r\n"),
              StartsWith("HTTP/1.1 200 "));
}

TEST_F(ApiTest, OneModelByItsName) {
  const std::string card = R"({"id":"tiny","object":"model","created":1700000000,)"
                           R"("owned_by":"anchorkv","root":"tiny","parent":null,)"
                           R"("max_model_len":200})";
  EXPECT_EQ(body_of(get("/v1/models/tiny")), card);
  EXPECT_EQ(body_of(get("/v1/models/%74in%79")), card);
  for (const std::string other : {"gpt-4", "tiny/", "org/tiny", "%", "%7"})
    EXPECT_THAT(get("/v1/models/" + other),
                AllOf(StartsWith("HTTP/1.1 404 "), HasSubstr("model_not_found")))
        << other;
  EXPECT_THAT(post("/v1/models/tiny", "{}"), StartsWith("HTTP/1.1 405 "));
}

TEST_F(ApiTest, Keys) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("akv-keys-" + std::to_string(getpid()));
  std::ofstream(path) << "# keys\nfirst\n";
  options_.api_key_file = path;
  const auto status = [&](const std::string& headers) {
    return post("/tokenize", R"({"content":"x"})", headers).substr(9, 3);
  };
  EXPECT_EQ(status(""), "401");
  EXPECT_EQ(status("Authorization: Bearer wrong\r\n"), "401");
  EXPECT_EQ(status("Authorization: Basic first\r\n"), "401");
  EXPECT_EQ(status("Authorization: bearer  first\r\n"), "200");
  EXPECT_EQ(status("X-Api-Key: first\r\n"), "200");
  EXPECT_THAT(post(kChat, chat_body()),
              AllOf(StartsWith("HTTP/1.1 401 "), HasSubstr("authentication_error"),
                    HasSubstr("WWW-Authenticate: Bearer\r\n")));
  EXPECT_EQ(observer_.wait_record().outcome, "unauthorized");
  EXPECT_THAT(get("/v1/models"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(get("/health"), StartsWith("HTTP/1.1 200 "));
  std::ofstream(path) << "second\r\n";
  ASSERT_TRUE(server_->reload_keys().ok());
  EXPECT_EQ(status("X-Api-Key: first\r\n"), "401");
  EXPECT_EQ(status("X-Api-Key: second\r\n"), "200");
  std::filesystem::remove(path);
  EXPECT_FALSE(server_->reload_keys().ok());
  EXPECT_EQ(status("X-Api-Key: second\r\n"), "200");
}

TEST_F(ApiTest, AnUnreadableKeyFileIsRefusedAtStart) {
  options_.api_key_file = "/nonexistent/keys";
  EXPECT_EQ(ApiServer::start(options_, service_, nullptr).error().code, Code::kInvalidArgument);
}

TEST_F(ApiTest, SmallRoutes) {
  const std::string models = R"({"object":"list","data":[{"id":"tiny","object":"model",)"
                             R"("created":1700000000,"owned_by":"anchorkv","root":"tiny",)"
                             R"("parent":null,"max_model_len":200}]})";
  EXPECT_EQ(body_of(get("/v1/models")), models);
  EXPECT_EQ(body_of(get("/models")), models);
  EXPECT_EQ(body_of(get("/version")), R"({"version":"0.1.0"})");
  EXPECT_EQ(body_of(get("/metrics")), "akv_up 1\n");
  EXPECT_THAT(get("/health/live"), StartsWith("HTTP/1.1 200 "));
  {
    const std::lock_guard lock(service_.mutex_);
    service_.readiness_ = {false, false, "no prefill peer"};
  }
  EXPECT_THAT(get("/health/ready"),
              AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("no prefill peer")));
  EXPECT_THAT(get(kChat), AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("Allow: OPTIONS, POST")));
  EXPECT_THAT(get("/v2"), StartsWith("HTTP/1.1 404 "));

  const json tokens = json::parse(body_of(post("/tokenize", R"({"content":"<|im_end|>a"})")));
  EXPECT_EQ(tokens["tokens"], json(service_.ids("<|im_end|>a", true)));
  EXPECT_EQ(tokens["count"], 2);
  EXPECT_EQ(json::parse(body_of(
                post("/tokenize", R"({"content":"<|im_end|>a","parse_special":false})")))["tokens"],
            json(service_.ids("<|im_end|>a")));
  const json pieces =
      json::parse(body_of(post("/tokenize", R"({"messages":[{"role":"user","content":"a"}],)"
                                            R"("with_pieces":true})")));
  EXPECT_EQ(pieces["tokens"][0]["piece"], "<|begin|>");
  EXPECT_EQ(json::parse(body_of(
                post("/detokenize", "{\"tokens\":" + json(service_.ids("hi")).dump() + "}"))),
            json({{"content", "hi"}, {"prompt", "hi"}}));
  EXPECT_THAT(post("/detokenize", R"({"tokens":[999999]})"), StartsWith("HTTP/1.1 400 "));
  EXPECT_EQ(observer_.count(), 0u);  // none of these is a generation
}

}  // namespace
}  // namespace akv::decode::api
