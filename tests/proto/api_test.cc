#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/api_reply.h"
#include "proto/api_request.h"

namespace akv::proto {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const ApiLimits kLimits;

// A chat body with more fields.
std::string chat(const std::string& more) {
  return R"({"messages":[{"role":"user","content":"hi"}])" + (more.empty() ? "" : "," + more) + "}";
}
std::string completion(const std::string& more) {
  return R"({"prompt":"hi")" + (more.empty() ? "" : "," + more) + "}";
}

TEST(ApiRequest, DefaultsOfAnEmptyChat) {
  const auto parsed = parse_chat_request(chat(""), kLimits);
  ASSERT_TRUE(parsed);
  const CommonFields& c = parsed.value->common;
  EXPECT_EQ(c.sampling, Sampling{});
  EXPECT_FALSE(c.max_tokens);
  EXPECT_FALSE(c.has_seed);
  EXPECT_FALSE(c.stream);
  EXPECT_EQ(c.n, 1);
  EXPECT_EQ(c.kv, KvOptions{});
  EXPECT_TRUE(parsed.value->add_generation_prompt);
}

TEST(ApiRequest, EveryFieldIsRead) {
  const auto parsed = parse_chat_request(
      chat(R"("model":"m","max_tokens":5,"max_completion_tokens":7,"temperature":0,"top_k":40,
      "top_p":0.9,"min_p":0.1,"repetition_penalty":1.1,"presence_penalty":-2,
      "frequency_penalty":2.0,"logit_bias":{"5":-100,"49151":1.5},"seed":-1,"logprobs":true,
      "top_logprobs":20,"stop":["a","","b"],"stop_token_ids":[1,2],"ignore_eos":true,
      "min_tokens":3.0,"include_stop_str_in_output":true,"skip_special_tokens":false,
      "return_token_ids":true,"n":2,"stream":true,"stream_options":{"include_usage":true},
      "kv":{"codec":"none","profile":"paper","theta":1},"chat_template_kwargs":{"a":1},
      "add_generation_prompt":false,"user":"u","metadata":{"x":[1]},"tools":[],"tool_choice":"auto",
      "response_format":{"type":"text"},"unknown":{"deep":[{}]})"),
      kLimits);
  ASSERT_TRUE(parsed) << parsed.error.message;
  const CommonFields& c = parsed.value->common;
  EXPECT_EQ(c.model, "m");
  EXPECT_EQ(c.max_tokens, 7);
  Sampling s;
  s.temperature = 0;
  s.top_k = 40;
  s.top_p = 0.9;
  s.min_p = 0.1;
  s.repetition_penalty = 1.1;
  s.presence_penalty = -2;
  s.frequency_penalty = 2;
  s.logit_bias = {{49151, 1.5f}, {5, -100.0f}};
  s.seed = ~uint64_t{0};
  s.logprobs = 20;
  s.stop_token_ids = {1, 2};
  s.ignore_eos = true;
  s.min_tokens = 3;
  EXPECT_EQ(c.sampling, s);
  EXPECT_TRUE(c.has_seed);
  EXPECT_THAT(c.stop, ElementsAre("a", "b"));
  EXPECT_TRUE(c.include_stop_str_in_output && c.return_token_ids && c.stream && c.include_usage);
  EXPECT_FALSE(c.skip_special_tokens);
  EXPECT_EQ(c.n, 2);
  EXPECT_EQ(c.kv.codec, "none");
  EXPECT_EQ(c.kv.profile, "paper");
  EXPECT_EQ(c.kv.theta, 1.0);
  EXPECT_EQ(parsed.value->chat_template_kwargs, R"({"a":1})");
  EXPECT_FALSE(parsed.value->add_generation_prompt);
}

TEST(ApiRequest, NullIsAbsent) {
  EXPECT_TRUE(parse_chat_request(
      chat(R"("max_tokens":null,"stop":null,"seed":null,"kv":null,"tools":null,"n":null,
           "logit_bias":null,"stream_options":null,"response_format":null,"logprobs":null)"),
      kLimits));
}

TEST(ApiRequest, MessagesOfAllShapes) {
  const auto parsed = parse_chat_request(
      R"({"messages":[{"role":"developer","content":"be brief","name":"dev"},
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b\u0000c"}]},
      {"role":"assistant"},{"role":"assistant","content":null},{"role":"user","content":""}]})",
      kLimits);
  ASSERT_TRUE(parsed) << parsed.error.message;
  const auto& messages = parsed.value->messages;
  EXPECT_EQ(messages[0].role, "system");
  EXPECT_EQ(messages[0].name, "dev");
  EXPECT_EQ(messages[1].content, std::string("ab\0c", 4));
  EXPECT_EQ(messages[2].content, "");
  EXPECT_EQ(messages.size(), 5u);
}

TEST(ApiRequest, PromptsOfAllShapes) {
  using Ids = std::vector<int32_t>;
  const auto prompts = [](const std::string& prompt) {
    const auto parsed = parse_completion_request("{\"prompt\":" + prompt + "}", kLimits);
    EXPECT_TRUE(parsed) << parsed.error.message;
    return parsed ? parsed.value->prompts : std::vector<Prompt>{};
  };
  EXPECT_THAT(prompts(R"("text")"), ElementsAre(Prompt("text")));
  EXPECT_THAT(prompts("[1,2,3]"), ElementsAre(Prompt(Ids{1, 2, 3})));
  EXPECT_THAT(prompts(R"(["a","b"])"), ElementsAre(Prompt("a"), Prompt("b")));
  EXPECT_THAT(prompts("[[1],[2,3]]"), ElementsAre(Prompt(Ids{1}), Prompt(Ids{2, 3})));
}

struct Bad {
  std::string body;
  std::string param;
  std::string message;
  int status = 400;
};
class ApiBad : public testing::TestWithParam<Bad> {};

TEST_P(ApiBad, Chat) {
  const auto parsed = parse_chat_request(GetParam().body, kLimits);
  ASSERT_FALSE(parsed) << GetParam().body;
  EXPECT_EQ(parsed.error.status, GetParam().status) << parsed.error.message;
  EXPECT_EQ(parsed.error.param, GetParam().param) << parsed.error.message;
  EXPECT_THAT(parsed.error.message, HasSubstr(GetParam().message));
  EXPECT_EQ(parsed.error.type,
            GetParam().status == 501 ? "not_supported_error" : "invalid_request_error");
}

INSTANTIATE_TEST_SUITE_P(
    Json, ApiBad,
    testing::Values(Bad{"", "", "not valid JSON"}, Bad{"{", "", "not valid JSON"},
                    Bad{"[]", "", "must be an object"}, Bad{"\"x\"", "", "must be an object"},
                    Bad{chat("") + "x", "", "not valid JSON"},
                    Bad{chat(R"("seed":NaN)"), "", "not valid"},
                    Bad{chat(R"("seed":1e999)"), "", "not valid JSON"},
                    Bad{chat(R"("n":1,"n":2)"), "", "occurs twice"},
                    Bad{chat("\"user\":\"\xff\xfe\""), "", "not valid JSON"},
                    Bad{chat("\"x\":" + std::string(40, '[') + std::string(40, ']')), "",
                        "nested deeper"},
                    Bad{std::string(1 << 20, '['), "", "nested deeper"}));

INSTANTIATE_TEST_SUITE_P(
    Messages, ApiBad,
    testing::Values(
        Bad{"{}", "messages", "is missing"}, Bad{R"({"messages":[]})", "messages", "at least one"},
        Bad{R"({"messages":"hi"})", "messages", "list"},
        Bad{R"({"messages":["hi"]})", "messages[0]", "must be an object"},
        Bad{R"({"messages":[{"content":"x"}]})", "messages[0].role", "is missing"},
        Bad{R"({"messages":[{"role":"king","content":"x"}]})", "messages[0].role", "one of"},
        Bad{R"({"messages":[{"role":"user"}]})", "messages[0].content", "is missing"},
        Bad{R"({"messages":[{"role":"user","content":5}]})", "messages[0].content", "string"},
        Bad{R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})",
            "messages[0].content[0].text", "must be a string"},
        Bad{R"({"messages":[{"role":"user","content":["x"]}]})", "messages[0].content[0]",
            "must be an object"},
        Bad{R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
            "messages[0].content[0].type", "image_url", 501},
        Bad{R"({"messages":[{"role":"assistant","tool_calls":[{"id":"x"}]}]})",
            "messages[0].tool_calls", "not supported", 501}));

INSTANTIATE_TEST_SUITE_P(
    Fields, ApiBad,
    testing::Values(
        Bad{chat(R"("max_tokens":0)"), "max_tokens", "from 1"},
        Bad{chat(R"("max_tokens":1.5)"), "max_tokens", "whole number"},
        Bad{chat(R"("max_completion_tokens":"5")"), "max_completion_tokens", "\"5\""},
        Bad{chat(R"("max_tokens":99999999999)"), "max_tokens", "2147483647"},
        Bad{chat(R"("temperature":-0.1)"), "temperature", "from 0 to 100, got -0.1"},
        Bad{chat(R"("temperature":"hot")"), "temperature", "must be a number"},
        Bad{chat(R"("top_p":0)"), "top_p", "above 0 and at most 1"},
        Bad{chat(R"("top_p":1.01)"), "top_p", "above 0"},
        Bad{chat(R"("min_p":2)"), "min_p", "from 0 to 1"},
        Bad{chat(R"("top_k":-2)"), "top_k", "from -1"},
        Bad{chat(R"("repetition_penalty":0)"), "repetition_penalty", "above 0"},
        Bad{chat(R"("presence_penalty":2.5)"), "presence_penalty", "from -2 to 2"},
        Bad{chat(R"("frequency_penalty":-3)"), "frequency_penalty", "from -2 to 2"},
        Bad{chat(R"("logit_bias":[1])"), "logit_bias", "object"},
        Bad{chat(R"("logit_bias":{"a":1})"), "logit_bias", "token ids"},
        Bad{chat(R"("logit_bias":{"-1":1})"), "logit_bias", "token ids"},
        Bad{chat(R"("logit_bias":{"1":101})"), "logit_bias", "-100 to 100"},
        Bad{chat(R"("seed":1.5)"), "seed", "whole number"},
        Bad{chat(R"("seed":18446744073709551615)"), "seed", "whole number"},
        Bad{chat(R"("stop":5)"), "stop", "string"},
        Bad{chat(R"("stop":["a",5])"), "stop", "string"},
        Bad{chat(R"("stop":["1","2","3","4","5","6","7","8","9","0","a","b","c","d","e","f","g"])"),
            "stop", "at most 16"},
        Bad{chat("\"stop\":\"" + std::string(2000, 'x') + "\""), "stop", "256"},
        Bad{chat(R"("stop_token_ids":"1")"), "stop_token_ids", "list"},
        Bad{chat(R"("stop_token_ids":[-1])"), "stop_token_ids", "token ids"},
        Bad{chat(R"("stream":1)"), "stream", "true or false"},
        Bad{chat(R"("stream_options":true)"), "stream_options", "object"},
        Bad{chat(R"("stream_options":{"include_usage":"y"})"), "stream_options.include_usage", ""},
        Bad{chat(R"("n":0)"), "n", "from 1 to 16"}, Bad{chat(R"("n":17)"), "n", "from 1 to 16"},
        Bad{chat(R"("logprobs":5)"), "logprobs", "true or false"},
        Bad{chat(R"("top_logprobs":21,"logprobs":true)"), "top_logprobs", "from 0 to 20"},
        Bad{chat(R"("top_logprobs":2)"), "top_logprobs", "needs 'logprobs'"},
        Bad{chat(R"("model":7)"), "model", "string"},
        Bad{chat(R"("chat_template_kwargs":[])"), "chat_template_kwargs", "object"}));

INSTANTIATE_TEST_SUITE_P(
    Kv, ApiBad,
    testing::Values(Bad{chat(R"("kv":5)"), "kv", "object"},
                    Bad{chat(R"("kv":{"codec":"zip"})"), "kv.codec", "\"anchorkv\", \"none\""},
                    Bad{chat(R"("kv":{"profile":5})"), "kv.profile", "one of"},
                    Bad{chat(R"("kv":{"theta":0})"), "kv.theta", "above 0 and at most 1, got 0"},
                    Bad{chat(R"("kv":{"theta":-1})"), "kv.theta", ""},
                    Bad{chat(R"("kv":{"theta":1.5})"), "kv.theta", ""},
                    Bad{chat(R"("kv":{"theta":"auto"})"), "kv.theta", "\"auto\""}));

INSTANTIATE_TEST_SUITE_P(
    Unsupported, ApiBad,
    testing::Values(
        Bad{chat(R"("tools":[{"type":"function"}])"), "tools", "not supported", 501},
        Bad{chat(R"("functions":[{"name":"f"}])"), "functions", "not supported", 501},
        Bad{chat(R"("tool_choice":"required")"), "tool_choice", "", 501},
        Bad{chat(R"("tool_choice":{"type":"function"})"), "tool_choice", "", 501},
        Bad{chat(R"("response_format":{"type":"json_object"})"), "response_format", "", 501},
        Bad{chat(R"("response_format":{"type":"json_schema"})"), "response_format", "", 501},
        Bad{chat(R"("response_format":{"type":"xml"})"), "response_format.type", "", 400},
        Bad{chat(R"("modalities":["text","audio"])"), "modalities", "", 501},
        Bad{chat(R"("audio":{"voice":"x"})"), "audio", "", 501},
        Bad{chat(R"("guided_regex":"a+")"), "guided_regex", "", 501},
        Bad{chat(R"("use_beam_search":true)"), "use_beam_search", "", 501},
        Bad{chat(R"("prompt_logprobs":1)"), "prompt_logprobs", "", 501},
        Bad{chat(R"("chat_template":"{{ x }}")"), "chat_template", "", 501}));

class CompletionBad : public testing::TestWithParam<Bad> {};
TEST_P(CompletionBad, Completion) {
  const auto parsed = parse_completion_request(GetParam().body, kLimits);
  ASSERT_FALSE(parsed) << GetParam().body;
  EXPECT_EQ(parsed.error.status, GetParam().status) << parsed.error.message;
  EXPECT_EQ(parsed.error.param, GetParam().param);
  EXPECT_THAT(parsed.error.message, HasSubstr(GetParam().message));
}
INSTANTIATE_TEST_SUITE_P(
    Fields, CompletionBad,
    testing::Values(Bad{"{}", "prompt", "is missing"}, Bad{R"({"prompt":[]})", "prompt", "empty"},
                    Bad{R"({"prompt":5})", "prompt", "string"},
                    Bad{R"({"prompt":[1,"a"]})", "prompt", "token ids"},
                    Bad{R"({"prompt":["a",[]]})", "prompt", "string"},
                    Bad{R"({"prompt":["a",{}]})", "prompt", "string"},
                    Bad{R"({"prompt":[1.5]})", "prompt", "token ids"},
                    Bad{R"({"prompt":[[-1]]})", "prompt", "token ids"},
                    Bad{R"({"prompt":["a","b","c"],"n":6})", "prompt", "16 choices"},
                    Bad{completion(R"("logprobs":true)"), "logprobs", "whole number"},
                    Bad{completion(R"("logprobs":21)"), "logprobs", "from 0 to 20"},
                    Bad{completion(R"("echo":true,"logprobs":1)"), "echo", "logprobs", 501},
                    Bad{completion(R"("suffix":"x")"), "suffix", "not supported", 501},
                    Bad{completion(R"("best_of":3)"), "best_of", "", 501}));

// However many values a body of 32 MiB has, it is refused before they are many times its size.
TEST(ApiRequest, BodiesOfManyValuesAreBounded) {
  std::string messages = R"({"messages":[)";
  for (int i = 0; i < 100'000; ++i) messages += R"({"role":"user","content":""},)";
  EXPECT_THAT(parse_chat_request(messages + "{}]}", {}).error.message,
              HasSubstr("more than 131072 keys"));
  std::string keys = R"({"x":{"a":0)";
  for (int i = 0; i < 131'072; ++i) keys += ",\"" + std::to_string(i) + "\":0";
  EXPECT_THAT(parse_chat_request(keys + "}}", {}).error.message,
              HasSubstr("more than 131072 keys"));
  std::string values = R"({"x":[0)";
  for (int i = 0; i < 1 << 21; ++i) values += ",0";
  EXPECT_THAT(parse_chat_request(values + "]}", {}).error.message,
              HasSubstr("more than 2097152 values"));
}

TEST(ApiRequest, Tokenize) {
  auto parsed = parse_tokenize_request(R"({"content":"x","add_special":false})", kLimits);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed.value->content, "x");
  EXPECT_FALSE(parsed.value->add_special);
  EXPECT_TRUE(parsed.value->parse_special);
  parsed = parse_tokenize_request(
      R"({"messages":[{"role":"user","content":"x"}],"with_pieces":true})", kLimits);
  ASSERT_TRUE(parsed);
  EXPECT_TRUE(parsed.value->has_messages && parsed.value->with_pieces);
  EXPECT_FALSE(parsed.value->parse_special);
  EXPECT_EQ(parse_tokenize_request("{}", kLimits).error.param, "prompt");
  EXPECT_EQ(*parse_detokenize_request(R"({"tokens":[1,2]})", kLimits).value,
            (std::vector<int32_t>{1, 2}));
  EXPECT_TRUE(parse_detokenize_request(R"({"tokens":[]})", kLimits));
  EXPECT_EQ(parse_detokenize_request(R"({"tokens":"1"})", kLimits).error.param, "tokens");
}

TEST(ApiReply, ErrorsNameTheirField) {
  EXPECT_EQ(error_json({404, "no \"x\"", "not_found_error", "model_not_found", "model"}),
            R"({"error":{"message":"no \"x\"","type":"not_found_error","param":"model",)"
            R"("code":"model_not_found"}})");
  EXPECT_THAT(error_json({}), HasSubstr(R"("param":null,"code":null)"));
  EXPECT_THAT(error_json({500, "caf\xe9", "t", "", ""}), HasSubstr("caf\xef\xbf\xbd"));
}

const ReplyHead kHead{"chatcmpl-1", 7, "m", ""};

KvReport sample_kv() {
  KvReport kv{"anchorkv", "pooled", 0.0625, 0.05, 100, 4000, 200, 1.5, 0.25, 2, "p-0"};
  return kv;
}

TEST(ApiReply, ChatIsByteExact) {
  Choice choice;
  choice.text = "Hi\n";
  choice.finish_reason = "stop";
  EXPECT_EQ(
      chat_reply(kHead, {&choice, 1}, {100, 2, 0}, sample_kv()),
      R"({"id":"chatcmpl-1","object":"chat.completion","created":7,"model":"m","choices":[)"
      R"({"index":0,"message":{"role":"assistant","content":"Hi\n","refusal":null},)"
      R"("logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":100,)"
      R"("completion_tokens":2,"total_tokens":102,"prompt_tokens_details":{"cached_tokens":0}},)"
      R"("kv":{"codec":"anchorkv","profile":"pooled","theta":0.0625,"theta_requested":0.05,)"
      R"("prompt_tokens":100,"dense_bytes":4000,"state_bytes":200,"ratio":20.0,)"
      R"("prefill_ms":1.5,"compress_ms":0.25,"transfer_ms":2.0,"prefill_node":"p-0"}})");
}

TEST(ApiReply, ChunksAreByteExact) {
  const std::string head =
      R"({"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[)";
  EXPECT_EQ(chat_role_chunk(kHead, 0, false),
            head + R"({"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,)"
                   R"("finish_reason":null}]})");
  Choice choice;
  choice.index = 1;
  choice.text = "a";
  EXPECT_EQ(chat_chunk(kHead, choice, true),
            head + R"({"index":1,"delta":{"content":"a"},"logprobs":null,"finish_reason":null}],)"
                   R"("usage":null})");
  choice.text = "";
  choice.finish_reason = "length";
  EXPECT_EQ(chat_chunk(kHead, choice, false),
            head + R"({"index":1,"delta":{},"logprobs":null,"finish_reason":"length"}]})");
  EXPECT_EQ(chat_usage_chunk(kHead, {3, 4, 0}, std::nullopt),
            head + R"(],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,)"
                   R"("prompt_tokens_details":{"cached_tokens":0}}})");
}

TEST(ApiReply, LogprobsInBothDialects) {
  Choice choice;
  choice.text = "a";
  choice.logprobs = {{"a", -0.5f, {{"a", -0.5f}, {"\xe4", -INFINITY}}}};
  choice.text_offsets = {4};
  EXPECT_THAT(chat_chunk(kHead, choice, false),
              HasSubstr(R"("logprobs":{"content":[{"token":"a","logprob":-0.5,"bytes":[97],)"
                        R"("top_logprobs":[{"token":"a","logprob":-0.5,"bytes":[97]},)"
                        "{\"token\":\"\xef\xbf\xbd\",\"logprob\":-9999.0,\"bytes\":[228]}]}]}"));
  EXPECT_THAT(completion_chunk(kHead, choice, false),
              HasSubstr(R"("logprobs":{"tokens":["a"],"token_logprobs":[-0.5],)"
                        R"("top_logprobs":[{"a":-0.5,"bytes:\\xe4":-9999.0}],"text_offset":[4]})"));
}

TEST(ApiReply, ListsOfModelsAndTokens) {
  const ModelCard card{"m", 5, 8192};
  EXPECT_EQ(models_reply({&card, 1}),
            R"({"object":"list","data":[{"id":"m","object":"model","created":5,)"
            R"("owned_by":"anchorkv","root":"m","parent":null,"max_model_len":8192}]})");
  const std::vector<int32_t> ids{1, 2};
  EXPECT_EQ(tokenize_reply(ids, std::nullopt, 10),
            R"({"tokens":[1,2],"count":2,"max_model_len":10})");
  EXPECT_THAT(tokenize_reply(ids, std::vector<std::string>{"a", "\xff"}, 10),
              HasSubstr(R"([{"id":1,"piece":"a"},{"id":2,"piece":[255]}])"));
  EXPECT_EQ(detokenize_reply("x\"y"), R"({"content":"x\"y","prompt":"x\"y"})");
  EXPECT_EQ(version_reply("1.2"), R"({"version":"1.2"})");
}

}  // namespace
}  // namespace akv::proto
