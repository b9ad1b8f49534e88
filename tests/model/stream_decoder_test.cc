#include "common/model/stream_decoder.h"

#include <random>

#include "tests/model/text_fixture.h"

namespace akv::model {
namespace {

std::string assemble(std::string_view bytes) {
  std::string out;
  Utf8Assembler assembler;
  assembler.push(bytes, out);
  assembler.finish(out);
  return out;
}

constexpr char kFffd[] = "\xEF\xBF\xBD";

TEST(Utf8Assembler, HoldsBackUntilTheCharacterIsWhole) {
  Utf8Assembler assembler;
  std::string out;
  for (const char* part : {"a\xF0", "\x9F", "\x99"}) assembler.push(part, out);
  EXPECT_EQ(out, "a");
  EXPECT_TRUE(assembler.pending());
  assembler.push("\x82!", out);
  EXPECT_EQ(out, "a\xF0\x9F\x99\x82!");
  EXPECT_FALSE(assembler.pending());
}

// The table of Unicode 15, section 3.9, "U+FFFD substitution of maximal subparts".
TEST(Utf8Assembler, ReplacesMaximalSubparts) {
  const std::string r = kFffd;
  EXPECT_EQ(assemble("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a" + r + r + r + "b" + r + "c" + r + r + "d");
  EXPECT_EQ(assemble("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(assemble("\xED\xA0\x80"), r + r + r) << "a surrogate";
  EXPECT_EQ(assemble("\xF4\x90\x80\x80"), r + r + r + r) << "above U+10FFFF";
  EXPECT_EQ(assemble("x\xE2\x82"), "x" + r) << "cut off at the end";
}

TEST(Utf8Assembler, CutsDoNotMatter) {
  std::mt19937 rng(5);
  for (int round = 0; round < 500; ++round) {
    std::string bytes(rng() % 24, '\0');
    for (char& b : bytes) b = static_cast<char>(rng() % 4 ? 0x80 + rng() % 0x80 : rng());
    std::string out;
    Utf8Assembler assembler;
    for (size_t at = 0; at < bytes.size();) {
      const size_t n = std::min<size_t>(1 + rng() % 4, bytes.size() - at);
      assembler.push(std::string_view(bytes).substr(at, n), out);
      at += n;
    }
    assembler.finish(out);
    EXPECT_EQ(out, assemble(bytes));
    EXPECT_EQ(assemble(out), out) << "the output is valid UTF-8";
  }
}

TEST(StreamDecoder, OneTokenAtATimeGivesTheText) {
  const Tokenizer t = make_tokenizer(small_vocab("qwen2"));
  const std::string text = "Hi \U0001F642\U0001F469\u200D\U0001F467 \u6F22!";
  StreamDecoder decoder(t, true);
  std::string out;
  bool held = false;
  for (const int32_t id : t.encode(text, false, false)) {
    const std::string delta = decoder.push(id);
    EXPECT_EQ(assemble(delta), delta);
    held |= delta.empty();
    out += delta;
  }
  EXPECT_TRUE(held) << "no character was split over tokens: the text does not test the hold-back";
  EXPECT_EQ(out + decoder.finish(), text);
}

TEST(StreamDecoder, ShowsControlTokensOnlyIfAsked) {
  const Tokenizer t = make_tokenizer(small_vocab("qwen2"));
  const int32_t end = t.find_special("<|im_end|>");
  EXPECT_EQ(StreamDecoder(t, true).push(end), "");
  EXPECT_EQ(StreamDecoder(t, false).push(end), "<|im_end|>");
}

}  // namespace
}  // namespace akv::model
