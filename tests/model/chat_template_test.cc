#include "common/model/chat_template.h"

#include <random>

#include "common/model/jinja/interpreter.h"
#include "common/model/jinja/parser.h"
#include "tests/model/text_fixture.h"

namespace akv::model {
namespace {

std::string joined(const std::vector<Segment>& segments) {
  std::string text;
  for (const Segment& s : segments) text += s.text;
  return text;
}

jinja::Value json_value(const std::string& json) {
  auto value = jinja::value_from_json(json);
  EXPECT_TRUE(value.ok()) << json;
  return std::move(value).value();
}

ChatTemplate parsed(std::string_view source, ChatTemplateLimits limits = {}) {
  auto chat_template = ChatTemplate::parse(source, limits);
  EXPECT_TRUE(chat_template.ok()) << chat_template.error().message;
  return std::move(chat_template).value();
}

// Messages from their JSON; what is beside role and content becomes `extra`.
std::vector<ChatMessage> messages_of(const std::string& json) {
  std::vector<ChatMessage> messages;
  const jinja::Value list = json_value(json);
  for (const jinja::Value& v : list.as_list()) {
    ChatMessage message;
    jinja::Dict extra;
    for (const auto& [key, value] : v.as_dict().items) {
      if (key.bytes() == "role") {
        message.role = value.as_text().bytes();
      } else if (key.bytes() == "content") {
        message.content = value.as_text().bytes();
      } else {
        extra.items.emplace_back(key, value);
      }
    }
    if (!extra.items.empty()) message.extra = jinja::Value::dict(std::move(extra));
    messages.push_back(std::move(message));
  }
  return messages;
}

Result<std::vector<Segment>> render(const ChatTemplate& t,
                                    const std::vector<ChatMessage>& messages) {
  ChatTemplate::Inputs inputs;
  inputs.messages = messages;
  inputs.bos_token = "<s>";
  inputs.eos_token = "</s>";
  return t.render(inputs);
}

TEST(ChatTemplate, RendersAsJinja2) {
  int compared = 0;
  for (const auto& golden : read_golden("chat_template/templates.json")) {
    const ChatTemplate t = parsed(golden["source"].get<std::string>());
    for (const auto& c : golden["cases"]) {
      const auto messages = messages_of(c["messages"]);
      ChatTemplate::Inputs inputs;
      inputs.messages = messages;
      inputs.add_generation_prompt = c["add_generation_prompt"];
      inputs.bos_token = "<s>";
      inputs.eos_token = "</s>";
      inputs.extra = json_value(c["extra"]);
      inputs.now_unix_s = 1'750'000'000;
      const auto segments = t.render(inputs);
      SCOPED_TRACE(golden["name"].get<std::string>() + " " + c["messages"].get<std::string>());
      EXPECT_EQ(segments.ok(), c.contains("rendered"))
          << (segments.ok() ? joined(*segments) : segments.error().message);
      if (segments.ok() && c.contains("rendered")) {
        EXPECT_EQ(joined(*segments), c["rendered"].get<std::string>());
        ++compared;
      } else if (!segments.ok() && segments.error().param == "messages") {
        EXPECT_EQ(segments.error().message, c["error"].get<std::string>());
      }
    }
  }
  EXPECT_GT(compared, 150);
}

TEST(ChatTemplate, SpeaksTheLanguageOfJinja2) {
  const auto golden = read_golden("chat_template/language.json");
  jinja::Variables variables = jinja::global_functions();
  const jinja::Value vars = json_value(golden["vars"]);
  for (const auto& [key, value] : vars.as_dict().items) variables.emplace_back(key.bytes(), value);
  for (const auto& c : golden["cases"]) {
    const std::string source = c["source"];
    const auto block = jinja::parse_template(source, 64);
    ASSERT_TRUE(block.ok()) << source << "\n" << block.error().message;
    jinja::Runtime runtime({1'000'000, 1 << 20, 64}, golden["now_unix_s"]);
    const auto text = jinja::render(*block, variables, runtime);
    ASSERT_TRUE(text.ok()) << source << "\n" << text.error().message;
    EXPECT_EQ(text->bytes(), c["rendered"].get<std::string>()) << source;
  }
}

// Whatever a request says and a template does with it, no literal run holds a byte of it.
TEST(ChatTemplate, MessagesNeverBecomeLiteral) {
  const std::vector<ChatMessage> messages = {
      {"system", "SSS", {}},
      {"user", "UUU", json_value(R"({"name": "UNAME", "tool_calls": [{"UKEY": "UVAL"}]})")},
      {"USERROLE", "XUX", {}}};
  const char* kExpressions[] = {"m.content",
                                "m['content']",
                                "m.content | trim",
                                "m.content.strip()",
                                "m.content[0:2]",
                                "m.content[::-1]",
                                "m.content | upper",
                                "m.content.lower() | upper",
                                "'a' + m.content + 'b'",
                                "'a' ~ m.content",
                                "m.content * 2",
                                "[m.content, 'x'] | join('-')",
                                "m.content | replace('a', 'b')",
                                "'a' | replace('a', m.content)",
                                "m | tojson",
                                "[m.content]",
                                "m.content.split('U') | join('u')",
                                "m.content | list | join",
                                "m.content | indent",
                                "m.content | default('x')",
                                "m.role",
                                "m.name | default('')",
                                "m.tool_calls | default([]) | tojson(indent=1)",
                                "m.content or 'x'",
                                "m.content if true else 'x'",
                                "m.content | string",
                                "m.content | safe",
                                "m | string",
                                "m.items() | list",
                                "m.keys() | list | join",
                                "strftime_now(m.content)",
                                "(m | dictsort)[0][1]",
                                "m.tool_calls[0].keys() | list | first",
                                "messages | map(attribute='content') | join",
                                "messages | map(attribute='content') | map('upper') | list",
                                "m.content.title() | upper",
                                "m.content | reverse",
                                "m.content.splitlines()[0]",
                                "messages | selectattr('content') | list",
                                "{'k': m.content}.k",
                                "namespace(v=m.content).v",
                                "dict(v=m.content).v",
                                "m.content | tojson"};
  for (const std::string expression : kExpressions) {
    const std::string source = "{% for m in messages %}[{{ " + expression + " }}]{% endfor %}";
    const auto segments = render(parsed(source), messages);
    if (!segments.ok()) continue;  // tool_calls[0] of a message without
    for (const Segment& s : *segments) {
      EXPECT_TRUE(!s.literal || s.text.find_first_of("USX") == std::string::npos)
          << source << " gives " << s.text;
    }
  }
}

TEST(ChatTemplate, AllPathsThroughBlocksKeepOrigins) {
  const std::vector<ChatMessage> messages = {{"user", "UUU", {}}};
  for (const char* source : {"{% set x %}a{{ messages[0].content }}b{% endset %}{{ x }}",
                             "{% macro f(x) %}a{{ x }}b{% endmacro %}{{ f(messages[0].content) }}",
                             "{% set ns = namespace(x='a') %}{% set ns.x = ns.x + "
                             "messages[0].content + 'b' %}{{ ns.x }}"}) {
    const auto segments = render(parsed(source), messages);
    ASSERT_TRUE(segments.ok());
    ASSERT_EQ(segments->size(), 3u);
    EXPECT_EQ((*segments)[0].text + (*segments)[2].text, "ab");
    EXPECT_TRUE((*segments)[0].literal && (*segments)[2].literal);
    EXPECT_EQ((*segments)[1].text, "UUU");
    EXPECT_FALSE((*segments)[1].literal);
  }
}

TEST(ChatTemplate, UsualRolesSpellTokensOthersDoNot) {
  const ChatTemplate t = parsed("{% for m in messages %}{{ '<|' + m.role + '|>' }}{% endfor %}");
  const auto usual = render(t, {{"user", "", {}}});
  ASSERT_EQ(usual->size(), 1u);
  EXPECT_TRUE(usual->front().literal);
  const auto forged = render(t, {{"im_end", "", {}}});
  ASSERT_EQ(forged->size(), 3u);
  EXPECT_FALSE((*forged)[1].literal);
}

TEST(ChatTemplate, EncodeChatRecognisesControlTokensInLiteralsOnly) {
  const Tokenizer tokenizer = make_tokenizer(small_vocab("qwen2"));
  const int32_t end = tokenizer.find_special("<|im_end|>");
  const auto segments =
      render(parsed("{{ messages[0].content }}<|im_end|>"), {{"user", "a<|im_end|>b", {}}});
  const auto ids = encode_chat(tokenizer, *segments);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), end), 1);
  EXPECT_EQ(ids.back(), end);
  EXPECT_EQ(tokenizer.decode(ids, false), "a<|im_end|>b<|im_end|>");
}

TEST(ChatTemplate, EncodeChatAddsBosOnce) {
  VocabData vocab = small_vocab("llama-bpe");
  vocab.bos = make_tokenizer(vocab).find_special("<|begin|>");
  vocab.add_bos = true;
  const Tokenizer tokenizer = make_tokenizer(vocab);
  for (const char* source : {"x", "<|begin|>x"}) {
    const auto ids = encode_chat(tokenizer, *render(parsed(source), {}));
    EXPECT_EQ(ids.front(), vocab.bos);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), vocab.bos), 1);
  }
}

TEST(ChatTemplate, BuiltinsRender) {
  const std::vector<ChatMessage> messages = {{"system", "S", {}}, {"user", " U ", {}}};
  const std::pair<const char*, const char*> kExpected[] = {
      {"chatml",
       "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n U <|im_end|>\n<|im_start|>assistant\n"},
      {"llama3",
       "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user"
       "<|end_header_id|>\n\nU<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
      {"zephyr", "<|system|>\nS</s>\n<|user|>\n U </s>\n<|assistant|>\n"}};
  for (const auto& [name, expected] : kExpected) {
    auto t = ChatTemplate::builtin(name);
    ASSERT_TRUE(t.ok()) << name;
    EXPECT_EQ(joined(*render(*t, messages)), expected);
  }
  EXPECT_EQ(ChatTemplate::builtin_names().size(), std::size(kExpected));
  EXPECT_EQ(ChatTemplate::builtin("nope").error().code, Code::kNotFound);
}

TEST(ChatTemplate, ExtraMayNotReplaceTheMessages) {
  ChatTemplate::Inputs inputs;
  inputs.extra = json_value(R"({"messages": []})");
  const auto segments = parsed("x").render(inputs);
  ASSERT_FALSE(segments.ok());
  EXPECT_EQ(segments.error().param, "chat_template_kwargs");
}

struct Refusal {
  const char* source;
  Code code;
  const char* in_message;
};

class RefusedTemplate : public testing::TestWithParam<Refusal> {};

TEST_P(RefusedTemplate, SaysWhatAndWhere) {
  const auto t = ChatTemplate::parse(GetParam().source);
  ASSERT_FALSE(t.ok());
  EXPECT_EQ(t.error().code, GetParam().code) << t.error().message;
  EXPECT_NE(t.error().message.find(GetParam().in_message), std::string::npos) << t.error().message;
  EXPECT_EQ(t.error().message.rfind("line ", 0), 0u) << t.error().message;
}

INSTANTIATE_TEST_SUITE_P(
    All, RefusedTemplate,
    testing::Values(
        Refusal{"\n\n{% include 'x' %}", Code::kUnsupported, "line 3: the statement {% include %}"},
        Refusal{"{% call f() %}{% endcall %}", Code::kUnsupported, "call"},
        Refusal{"{% filter upper %}x{% endfilter %}", Code::kUnsupported, "filter"},
        Refusal{"a\n{{ x | wordwrap }}", Code::kUnsupported, "line 2: the filter \"wordwrap\""},
        Refusal{"{{ x is sameas 1 }}", Code::kUnsupported, "the test \"sameas\""},
        Refusal{"{% for x in y recursive %}{% endfor %}", Code::kUnsupported, "recursive"},
        Refusal{"{% for x in y %}{% macro m() %}{% endmacro %}{% endfor %}", Code::kUnsupported,
                "inside a loop"},
        Refusal{"{{ f(*a) }}", Code::kUnsupported, "unpacking"},
        Refusal{"{% nonsense %}", Code::kInvalidArgument, "unexpected {% nonsense %}"},
        Refusal{"{% endif %}", Code::kInvalidArgument, "unexpected {% endif %}"},
        Refusal{"x\n{% if a %}\n", Code::kInvalidArgument, "line 2"},
        Refusal{"{{ a", Code::kInvalidArgument, "not closed"},
        Refusal{"{# a", Code::kInvalidArgument, "comment"},
        Refusal{"{{ 'a }}", Code::kInvalidArgument, "string is not closed"},
        Refusal{"{{ a ! b }}", Code::kInvalidArgument, "unexpected character \"!\""},
        Refusal{"{{ (a] }}", Code::kInvalidArgument, "unexpected \"]\""},
        Refusal{"{{ a b }}", Code::kInvalidArgument, "before \"b\""},
        Refusal{"{{ }}", Code::kInvalidArgument, "an expression is missing"},
        Refusal{"{% break %}", Code::kInvalidArgument, "outside of a loop"},
        Refusal{"{{ 99999999999999999999 }}", Code::kInvalidArgument, "out of range"},
        Refusal{"{% raw %}x", Code::kInvalidArgument, "raw"}));

TEST(ChatTemplate, DeepSourceIsRefusedNotOverflowed) {
  for (const auto& [open, close] : std::vector<std::pair<std::string, std::string>>{
           {"(", ")"}, {"[", "]"}, {"not ", ""}, {"- ", ""}}) {
    std::string source = "{{ ";
    for (int i = 0; i < 100000; ++i) source += open;
    EXPECT_FALSE(ChatTemplate::parse(source + "1" + " }}").ok()) << open;
  }
  std::string blocks;
  for (int i = 0; i < 20000; ++i) blocks += "{% if a %}";
  EXPECT_FALSE(ChatTemplate::parse(blocks).ok());
  std::string links = "{{ a", filters = "{{ a", sum = "{{ 1";
  for (int i = 0; i < 5000; ++i) {
    links += ".b";
    filters += "|trim";
    sum += "+1";
  }
  EXPECT_FALSE(ChatTemplate::parse(links + " }}").ok());
  EXPECT_FALSE(ChatTemplate::parse(filters + " }}").ok());
  EXPECT_EQ(joined(*render(parsed(sum + " }}"), {})), "5001") << "long chains do not nest";
}

struct Failure {
  const char* source;
  Code code;
  const char* in_message;
};
class FailingRender : public testing::TestWithParam<Failure> {};

TEST_P(FailingRender, SaysWhatAndWhere) {
  ChatTemplateLimits limits;
  limits.max_steps = 20000;
  limits.max_output_bytes = 10000;
  const auto segments = render(parsed(GetParam().source, limits), {{"user", "hi", {}}});
  ASSERT_FALSE(segments.ok());
  EXPECT_EQ(segments.error().code, GetParam().code) << segments.error().message;
  EXPECT_NE(segments.error().message.find(GetParam().in_message), std::string::npos)
      << segments.error().message;
}

constexpr Code kBad = Code::kInvalidArgument;
constexpr Code kMuch = Code::kResourceExhausted;
INSTANTIATE_TEST_SUITE_P(
    All, FailingRender,
    testing::Values(
        Failure{"\n\n{{ a.b }}", kBad, "line 3: \"a\" is undefined"},
        Failure{"{{ 1 + 'a' }}", kBad, "cannot add an integer and a string"},
        Failure{"{{ 1 < 'a' }}", kBad, "cannot compare"},
        Failure{"{{ 1 / 0 }}", kBad, "division by zero"},
        Failure{"{{ 9223372036854775807 + 1 }}", kBad, "overflow"},
        Failure{"{{ 3 ** 200 }}", kBad, "overflow"},
        Failure{"{{ nofunc() }}", Code::kUnsupported, "no function \"nofunc\""},
        Failure{"{{ 'a'.encode() }}", Code::kUnsupported, "no method \"encode\""},
        Failure{"{{ [].append(1) }}", Code::kUnsupported, "no method \"append\""},
        Failure{"{{ '%s' % 1 }}", Code::kUnsupported, "%"},
        Failure{"{{ 'a' | trim(x=1) }}", kBad, "no argument \"x\""},
        Failure{"{{ 'a' | trim(1, 2, 3) }}", kBad, "arguments at most"},
        Failure{"{% set messages.x = 1 %}", kBad, "only attributes of a namespace"},
        Failure{"{% set ns = namespace() %}{% set ns.x = ns %}", kBad, "namespace"},
        Failure{"{% set ns = namespace() %}{{ [ns] }}", kBad, "namespace"},
        Failure{"{% for a, b in [[1]] %}{% endfor %}", kBad, "unpack"},
        Failure{"{% for a in 5 %}{% endfor %}", kBad, "iterated"},
        Failure{"{{ raise_exception('Roles must alternate') }}", kBad, "Roles must alternate"},
        Failure{"{% for i in range(1000000000) %}{% endfor %}", kMuch, "steps"},
        Failure{"{% for i in range(900) %}{% for j in range(900) %}{% endfor %}{% endfor %}", kMuch,
                "steps"},
        Failure{"{{ 'a' * 1000000000 }}", kMuch, "10000 bytes"},
        Failure{"{{ [1] * 1000000000 }}", kMuch, "steps"},
        Failure{"{% for i in range(600) %}xxxxxxxxxxxxxxxxxxxx{% endfor %}", kMuch, "10000 bytes"},
        Failure{"{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(99) %}"
                "{% set ns.s = ns.s + ns.s %}{% endfor %}",
                kMuch, "10000 bytes"},
        Failure{"{% set ns = namespace(s=[]) %}{% for i in range(99) %}{% set ns.s = [ns.s] %}"
                "{% endfor %}",
                kMuch, "nested deeper"},
        Failure{"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", kMuch, "deep"},
        Failure{"{{ ('a' * 5000) | replace('a', 'b' * 5000) }}", kMuch, "10000 bytes"},
        Failure{"{{ ('a\n' * 4000) | indent(200) }}", kMuch, "10000 bytes"},
        Failure{"{{ ('a' * 5000) | list | join('b' * 5000) }}", kMuch, "10000 bytes"}));

TEST(ChatTemplate, RaisedErrorsAreTheTemplatesOwnWords) {
  const auto segments = render(parsed("\n{{ raise_exception('No system!') }}"), {});
  EXPECT_EQ(segments.error().message, "No system!");
  EXPECT_EQ(segments.error().param, "messages");
}

// A model file's template is not trusted: broken ones end in an error or in text within the limits.
TEST(ChatTemplate, MutatedTemplatesNeverCrashNorRunAway) {
  const auto golden = read_golden("chat_template/templates.json");
  const std::vector<ChatMessage> messages = {{"system", "s", {}}, {"user", "u", {}}};
  const std::string_view parts[] = {"{{",  "}}",     "{%",    "%}",  "-%}", "(",
                                    ")",   "[::-1]", "|join", "*99", ".x",  " is ",
                                    "set", "'",      "\\",    "{#",  "ns",  "\xFF"};
  ChatTemplateLimits limits;
  limits.max_steps = 20000;
  limits.max_output_bytes = 50000;
  std::mt19937 rng(17);
  int rendered = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string source = golden[rng() % golden.size()]["source"];
    for (size_t n = 1 + rng() % 4; n > 0; --n) {
      const size_t at = rng() % source.size();
      if (rng() % 2 == 0) {
        source.erase(at, 1 + rng() % 8);
      } else {
        source.insert(at, parts[rng() % std::size(parts)]);
      }
      if (source.empty()) source = "x";
    }
    const auto t = ChatTemplate::parse(source, limits);
    if (!t.ok()) continue;
    const auto segments = render(*t, messages);
    if (!segments.ok()) continue;
    ++rendered;
    EXPECT_LE(joined(*segments).size(), limits.max_output_bytes);
  }
  EXPECT_GT(rendered, 100) << "hardly any mutation was looked at beyond the parser";
}

TEST(JinjaJson, BadOrDeepTextIsRefused) {
  for (const std::string json : {"", "{", "[1,]", "{\"a\" 1}", "nul", "\"\xFF\""}) {
    EXPECT_FALSE(jinja::value_from_json(json).ok()) << json;
  }
  EXPECT_FALSE(jinja::value_from_json(std::string(100000, '[')).ok());
  EXPECT_TRUE(jinja::value_from_json("[[[1]]]").ok());
}

}  // namespace
}  // namespace akv::model
