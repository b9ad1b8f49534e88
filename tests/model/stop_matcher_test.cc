#include "common/model/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace akv::model {
namespace {

using Stops = std::vector<std::string>;

TEST(StopMatcher, FindsAStopAcrossPieces) {
  StopMatcher matcher({"STOP"}, false);
  EXPECT_EQ(matcher.push("abcS").text, "abc");
  EXPECT_EQ(matcher.push("TO").text, "");
  const auto step = matcher.push("P and more");
  EXPECT_TRUE(step.stopped);
  EXPECT_EQ(step.text, "");
  EXPECT_EQ(step.stop_index, 0);
  EXPECT_EQ(matcher.push("later").text, "");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, ReleasesWhatTurnsOutHarmless) {
  StopMatcher matcher({"</s>"}, false);
  EXPECT_EQ(matcher.push("a </").text, "a ");
  EXPECT_EQ(matcher.push("b>").text, "</b>");
  EXPECT_EQ(matcher.push("<<").text, "<") << "the longest suffix that may begin a stop";
  EXPECT_EQ(matcher.finish(), "<");
}

TEST(StopMatcher, IncludesTheStopIfAsked) {
  StopMatcher matcher({"\n\n"}, true);
  EXPECT_EQ(matcher.push("x\n").text, "x");
  EXPECT_EQ(matcher.push("\ny").text, "\n\n");
}

TEST(StopMatcher, TheStopThatEndsFirstWins) {
  StopMatcher overlapping({"bcd", "c"}, false);
  const auto step = overlapping.push("abcd");
  EXPECT_EQ(step.stop_index, 1);
  EXPECT_EQ(step.text, "ab");
  StopMatcher nested({"c", "abc"}, false);
  EXPECT_EQ(nested.push("xabc").stop_index, 1) << "of those ending together the longest";
}

TEST(StopMatcher, WithoutStopsNothingIsHeld) {
  StopMatcher matcher({"", ""}, false);
  EXPECT_EQ(matcher.push("anything").text, "anything");
}

TEST(StopMatcher, MinTokensLetsTextPass) {
  StopMatcher matcher({"ab"}, false);
  EXPECT_EQ(matcher.push("a").text, "");
  EXPECT_EQ(matcher.push("bab", false).text, "abab");
  EXPECT_TRUE(matcher.push("xab").stopped);
}

// Against a search in the whole text, over small alphabets where prefixes overlap a lot.
TEST(StopMatcher, AgreesWithSearchForRandomTextsAndCuts) {
  std::mt19937 rng(9);
  const auto random_text = [&](size_t n) {
    std::string s(n, '\0');
    for (char& c : s) c = static_cast<char>('a' + rng() % 2);
    return s;
  };
  for (int round = 0; round < 3000; ++round) {
    Stops stops;
    for (size_t i = 0; i < 1 + rng() % 3; ++i) stops.push_back(random_text(1 + rng() % 5));
    const std::string text = random_text(rng() % 20);
    size_t end = std::string::npos, length = 0;
    for (const auto& s : stops) {
      const size_t at = text.find(s);
      if (at == std::string::npos) continue;
      if (at + s.size() < end || (at + s.size() == end && s.size() > length)) {
        end = at + s.size();
        length = s.size();
      }
    }
    StopMatcher matcher(stops, false);
    std::string out;
    bool stopped = false;
    for (size_t at = 0; at < text.size() && !stopped;) {
      const size_t n = std::min<size_t>(1 + rng() % 4, text.size() - at);
      const auto step = matcher.push(std::string_view(text).substr(at, n));
      out += step.text;
      stopped = step.stopped;
      at += n;
    }
    if (!stopped) out += matcher.finish();
    EXPECT_EQ(stopped, end != std::string::npos);
    EXPECT_EQ(out, stopped ? text.substr(0, end - length) : text);
  }
}

}  // namespace
}  // namespace akv::model
