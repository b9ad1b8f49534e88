#include "common/model/tokenizer.h"

#include <chrono>
#include <random>
#include <thread>

#include "common/model/pretokenizer.h"
#include "tests/model/text_fixture.h"

namespace akv::model {
namespace {

class TokenizerFamily : public testing::TestWithParam<const char*> {
 protected:
  nlohmann::json golden_ = read_golden(std::string("tokenizer/") + GetParam() + ".json");
  Tokenizer tokenizer_ = make_tokenizer(vocab_of(golden_));
};
INSTANTIATE_TEST_SUITE_P(All, TokenizerFamily,
                         testing::Values("gpt-2", "smollm", "llama-bpe", "qwen2"));

TEST_P(TokenizerFamily, IdsAreThoseOfHuggingFace) {
  for (const auto& c : golden_["cases"]) {
    const std::string text = c["text"];
    EXPECT_EQ(tokenizer_.encode(text, false, c["parse_special"]), c["ids"].get<std::vector<int>>())
        << c["text"];
  }
}

TEST_P(TokenizerFamily, PiecesAreThoseOfHuggingFace) {
  auto pretokenizer = Pretokenizer::create(GetParam());
  ASSERT_TRUE(pretokenizer.ok());
  for (const auto& c : golden_["splits"]) {
    std::vector<size_t> ends, expected;
    pretokenizer->split(c["text"].get<std::string>(), ends);
    size_t end = 0;
    for (const std::string piece : c["pieces"]) expected.push_back(end += piece.size());
    EXPECT_EQ(ends, expected) << c["text"];
  }
}

TEST_P(TokenizerFamily, AnyBytesComeBack) {
  ASSERT_TRUE(tokenizer_.covers_all_bytes());
  std::mt19937 rng(3);
  for (int round = 0; round < 400; ++round) {
    std::string bytes(rng() % 64, '\0');
    // Mostly the lead and continuation bytes, so that valid and broken sequences mix.
    for (char& b : bytes) b = static_cast<char>(rng() % 3 == 0 ? rng() : 0x80 + rng() % 0x80);
    const auto ids = tokenizer_.encode(bytes, false, round % 2 == 0);
    EXPECT_EQ(tokenizer_.decode(ids, false), bytes);
    EXPECT_LE(tokenizer_.fewest_tokens(bytes), static_cast<int64_t>(ids.size()));
  }
}

TEST_P(TokenizerFamily, TheFewestTokensAreNeverMoreThanThereAre) {
  for (const auto& c : golden_["cases"]) {
    const std::string text = c["text"];
    const auto count = static_cast<int64_t>(tokenizer_.encode(text, false, true).size());
    EXPECT_LE(tokenizer_.fewest_tokens(text), count) << c["text"];
  }
  EXPECT_EQ(tokenizer_.fewest_tokens(""), 0);
  EXPECT_EQ(tokenizer_.fewest_tokens("a"), 1);
  EXPECT_GT(tokenizer_.fewest_tokens(std::string(1 << 20, 'a')), 1000);
}

// Around broken bytes the text is cut as around a symbol; the broken byte is one piece of its own.
TEST_P(TokenizerFamily, BrokenBytesLeaveTheTextAroundThemAlone) {
  const auto hello = tokenizer_.encode("Hello", false, false);
  auto ids = tokenizer_.encode("Hello\xFF", false, false);
  ASSERT_EQ(ids.size(), hello.size() + 1);
  EXPECT_EQ(tokenizer_.piece(ids.back()), "\xFF");
  ids.pop_back();
  EXPECT_EQ(ids, hello);
}

TEST_P(TokenizerFamily, ConcurrentCallsAgree) {
  std::string text;
  for (const auto& c : golden_["cases"]) text += c["text"].get<std::string>();
  const auto expected = tokenizer_.encode(text, true, true);
  std::vector<std::thread> threads;
  std::atomic<int> differing = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) differing += tokenizer_.encode(text, true, true) != expected;
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(differing, 0);
}

// A quadratic merge of 256 KiB takes minutes; so does a pattern that backtracks.
TEST_P(TokenizerFamily, LongMonotonousTextTakesLinearTime) {
  const auto start = std::chrono::steady_clock::now();
  for (const std::string unit :
       {"a", "ab", " ", "\n", "!", "1", "\xE6\xBC\xA2", "\xFF", "<|im_", " a"}) {
    std::string text;
    const size_t size = unit == "ab" ? 1 << 20 : 1 << 18;
    while (text.size() < size) text += unit;
    text += "x";
    EXPECT_EQ(tokenizer_.decode(tokenizer_.encode(text, false, true), false), text) << unit;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST(Tokenizer, ControlTokensNeedPermission) {
  const Tokenizer t = make_tokenizer(small_vocab("gpt-2"));
  const int32_t end = t.find_special("<|im_end|>");
  ASSERT_GE(end, 0);
  EXPECT_TRUE(t.is_control(end));
  EXPECT_TRUE(t.is_end(end));
  EXPECT_EQ(t.eot(), end);
  EXPECT_EQ(t.encode("<|im_end|>", false, true), std::vector<int32_t>{end});
  for (const int32_t id : t.encode("<|im_end|>", false, false)) EXPECT_FALSE(t.is_control(id));
  const int32_t tool = t.find_special("[tool]");
  EXPECT_FALSE(t.is_control(tool));
  EXPECT_EQ(t.encode("[tool]", false, false), std::vector<int32_t>{tool});
  EXPECT_EQ(t.decode(std::vector<int32_t>{end, tool}, true), "[tool]");
  EXPECT_EQ(t.decode(std::vector<int32_t>{end, tool}, false), "<|im_end|>[tool]");
}

TEST(Tokenizer, BosAndEosAsTheFileSays) {
  VocabData vocab = small_vocab("llama-bpe");
  vocab.bos = make_tokenizer(vocab).find_special("<|begin|>");
  vocab.eos = make_tokenizer(vocab).find_special("<|im_end|>");
  const auto plain = make_tokenizer(vocab).encode("Hello", false, false);
  EXPECT_EQ(make_tokenizer(vocab).encode("Hello", true, false), plain) << "add_bos is false";

  vocab.add_bos.reset();  // the family's default is true
  vocab.add_eos = true;
  auto expected = plain;
  expected.insert(expected.begin(), vocab.bos);
  expected.push_back(vocab.eos);
  const Tokenizer t = make_tokenizer(vocab);
  EXPECT_EQ(t.encode("Hello", true, false), expected);
  EXPECT_EQ(t.encode("Hello", false, false), plain);
}

TEST(Tokenizer, OutOfRangeIdsHaveNoPiece) {
  const Tokenizer t = make_tokenizer(small_vocab("gpt-2"));
  EXPECT_EQ(t.piece(-1), "");
  EXPECT_EQ(t.piece(t.vocab_size()), "");
  EXPECT_FALSE(t.is_control(-1));
  EXPECT_FALSE(t.is_end(1 << 30));
}

TEST(Tokenizer, MissingBytesYieldNothingAndDoNotJoinTheirNeighbours) {
  VocabData vocab = small_vocab("gpt-2");
  for (auto& piece : vocab.pieces) {
    if (piece == "\xC4\x84") piece.clear();  // byte 0x04, spelled U+0104
  }
  const Tokenizer t = make_tokenizer(vocab);
  EXPECT_FALSE(t.covers_all_bytes());
  auto expected = t.encode("!", false, false);
  expected.push_back(expected[0]);
  EXPECT_EQ(t.encode("!\x04!", false, false), expected);
}

TEST(Tokenizer, HashCoversWhatDecidesIds) {
  const VocabData vocab = small_vocab("gpt-2");
  const auto hash = make_tokenizer(vocab).hash();
  EXPECT_EQ(make_tokenizer(vocab).hash(), hash);
  VocabData other = vocab;
  other.pre = "smollm";
  EXPECT_NE(make_tokenizer(other).hash(), hash);
  other = vocab;
  std::swap(other.merges[3], other.merges[4]);
  EXPECT_NE(make_tokenizer(other).hash(), hash);
  other = vocab;
  other.pieces.push_back("new");
  other.types.push_back(4);
  EXPECT_NE(make_tokenizer(other).hash(), hash);
  other = vocab;
  other.types[10] = 4;
  EXPECT_NE(make_tokenizer(other).hash(), hash);
  other = vocab;
  other.bos = 1;
  other.add_bos = true;
  EXPECT_NE(make_tokenizer(other).hash(), hash);
}

struct BadVocab {
  const char* what;
  void (*spoil)(VocabData&);
  Code code;
  const char* param;
  const char* in_message;
};

class RefusedVocab : public testing::TestWithParam<BadVocab> {};

TEST_P(RefusedVocab, NamesTheKey) {
  VocabData vocab = small_vocab("gpt-2");
  GetParam().spoil(vocab);
  const auto tokenizer = Tokenizer::create(vocab);
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.error().code, GetParam().code);
  EXPECT_EQ(tokenizer.error().param, GetParam().param);
  EXPECT_NE(tokenizer.error().message.find(GetParam().in_message), std::string::npos)
      << tokenizer.error().message;
}

INSTANTIATE_TEST_SUITE_P(
    All, RefusedVocab,
    testing::Values(BadVocab{"model", [](VocabData& v) { v.model = "llama"; }, Code::kUnsupported,
                             "tokenizer.ggml.model", "\"llama\""},
                    BadVocab{"pre", [](VocabData& v) { v.pre = "deepseek-v3"; }, Code::kUnsupported,
                             "tokenizer.ggml.pre", "\"deepseek-v3\""},
                    BadVocab{"no_pre", [](VocabData& v) { v.pre = ""; }, Code::kUnsupported,
                             "tokenizer.ggml.pre", "qwen2"},
                    BadVocab{"no_pieces", [](VocabData& v) { v.pieces.clear(); },
                             Code::kInvalidArgument, "tokenizer.ggml.tokens", "0 pieces"},
                    BadVocab{"duplicate", [](VocabData& v) { v.pieces[7] = v.pieces[9]; },
                             Code::kInvalidArgument, "tokenizer.ggml.tokens", "pieces 7 and 9"},
                    BadVocab{"types", [](VocabData& v) { v.types.pop_back(); },
                             Code::kInvalidArgument, "tokenizer.ggml.token_type", "types for"},
                    BadVocab{"type", [](VocabData& v) { v.types[5] = 9; }, Code::kInvalidArgument,
                             "tokenizer.ggml.token_type", "piece 5 has type 9"},
                    BadVocab{"merge_side", [](VocabData& v) { v.merges[2] = "ab"; },
                             Code::kInvalidArgument, "tokenizer.ggml.merges", "one side"},
                    BadVocab{"merge_unknown", [](VocabData& v) { v.merges[2] = "qq zz"; },
                             Code::kInvalidArgument, "tokenizer.ggml.merges", "unknown side"},
                    BadVocab{"merge_result", [](VocabData& v) { v.merges[2] = "~ ~"; },
                             Code::kInvalidArgument, "tokenizer.ggml.merges", "unknown piece"},
                    BadVocab{"bos", [](VocabData& v) { v.bos = 100000; }, Code::kInvalidArgument,
                             "tokenizer.ggml.bos_token_id", "100000"},
                    BadVocab{"eos", [](VocabData& v) { v.eos = -7; }, Code::kInvalidArgument,
                             "tokenizer.ggml.eos_token_id", "-7"}),
    [](const auto& c) { return std::string(c.param.what); });

}  // namespace
}  // namespace akv::model
