#include "common/log/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

namespace akv {
namespace {

using nlohmann::json;

// Lines as they would reach stderr.
class LogTest : public ::testing::Test {
 protected:
  Logger make(LogFormat format, LogLevel level = LogLevel::kInfo) {
    return Logger::to_writer([this](std::string_view line) { lines_.emplace_back(line); }, level,
                             format);
  }
  json only_line() {
    EXPECT_EQ(lines_.size(), 1u);
    EXPECT_EQ(lines_.at(0).back(), '\n');
    return json::parse(lines_.at(0));
  }
  std::vector<std::string> lines_;
};

TEST_F(LogTest, JsonKeepsTypesOfFields) {
  make(LogFormat::kJson)
      .info("prefill done", {{"tokens", 7500},
                             {"bytes", uint64_t{1} << 63},
                             {"delta", int64_t{-3}},
                             {"prefill_ms", 12.5},
                             {"ok", true},
                             {"peer", std::string("a:1")}});
  const json line = only_line();
  EXPECT_EQ(line["event"], "prefill done");
  EXPECT_EQ(line["level"], "info");
  EXPECT_EQ(line["tokens"], 7500);
  EXPECT_EQ(line["bytes"], uint64_t{1} << 63);
  EXPECT_EQ(line["delta"], -3);
  EXPECT_EQ(line["prefill_ms"], 12.5);
  EXPECT_EQ(line["ok"], true);
  EXPECT_EQ(line["peer"], "a:1");
  EXPECT_THAT(line["ts"].get<std::string>(), ::testing::MatchesRegex("....-..-..T..:..:..\\....Z"));
}

TEST_F(LogTest, BoundFieldsComeWithEveryLineOfTheHandle) {
  const Logger root = make(LogFormat::kJson);
  root.set_node("10.0.0.1:5");
  root.component("engine").request("req-1").info("step");
  const json line = only_line();
  EXPECT_EQ(line["node"], "10.0.0.1:5");
  EXPECT_EQ(line["component"], "engine");
  EXPECT_EQ(line["request_id"], "req-1");
}

TEST_F(LogTest, HostileTextStaysOneValidLine) {
  const std::string text = "a\"b\\c\nd\te\x01\xff\xc3(\xed\xa0\x80\xf4\x90\x80\x80 \xe2\x82\xac";
  make(LogFormat::kJson).request(text).info("x", {{"value", text}});
  const json line = only_line();
  EXPECT_EQ(std::count(lines_[0].begin(), lines_[0].end(), '\n'), 1);
  EXPECT_THAT(line["value"].get<std::string>(), ::testing::StartsWith("a\"b\\c\nd\te\x01"));
  EXPECT_THAT(line["value"].get<std::string>(), ::testing::EndsWith(" \xe2\x82\xac"));
  EXPECT_EQ(line["value"], line["request_id"]);
}

TEST_F(LogTest, LongValuesAreCutBetweenCharacters) {
  std::string text;
  while (text.size() < 2 * Logger::kMaxValueBytes) text += "\xe2\x82\xac";
  make(LogFormat::kJson).info("x", {{"value", text}});
  const std::string value = only_line()["value"];
  EXPECT_LE(value.size(), Logger::kMaxValueBytes + 3);
  EXPECT_THAT(value, ::testing::EndsWith("\xe2\x80\xa6"));
  EXPECT_EQ(value.find("\xef\xbf\xbd"), std::string::npos);
}

TEST_F(LogTest, NumbersThatJsonLacksAreNull) {
  make(LogFormat::kJson).info("x", {{"nan", std::numeric_limits<double>::quiet_NaN()}});
  EXPECT_TRUE(only_line()["nan"].is_null());
}

TEST_F(LogTest, TextQuotesOnlyWhatNeedsIt) {
  make(LogFormat::kText).info("peer lost", {{"peer", "a:1"}, {"why", "no heartbeat"}, {"n", 3}});
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_THAT(lines_[0],
              ::testing::EndsWith("Z info \"peer lost\" peer=a:1 why=\"no heartbeat\" n=3\n"));
}

TEST_F(LogTest, LevelChangesForAllCopiesAtOnce) {
  const Logger root = make(LogFormat::kJson);
  const Logger copy = root.component("c");
  copy.debug("unseen");
  root.set_level(LogLevel::kDebug);
  copy.debug("seen");
  root.set_level(LogLevel::kOff);
  copy.error("unseen");
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_EQ(json::parse(lines_[0])["event"], "seen");
}

TEST_F(LogTest, ErrorsCarryCodeAndParam) {
  make(LogFormat::kJson)
      .error("refused", make_error(Code::kMismatch, "another model", "model_fingerprint"));
  const json line = only_line();
  EXPECT_EQ(line["code"], code_name(Code::kMismatch));
  EXPECT_EQ(line["error"], "another model");
  EXPECT_EQ(line["param"], "model_fingerprint");
}

TEST(LogLevelTest, ParsesItsOwnNamesOnly) {
  for (const LogLevel level :
       {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarn, LogLevel::kError, LogLevel::kOff}) {
    EXPECT_EQ(*parse_log_level(log_level_name(level)), level);
  }
  EXPECT_FALSE(parse_log_level("INFO").ok());
  EXPECT_FALSE(parse_log_level("").ok());
}

TEST(LogFdTest, LinesOfManyThreadsNeverMix) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  constexpr int kThreads = 4;
  constexpr int kLines = 200;
  const Logger log = Logger::to_fd(ends[1], LogLevel::kInfo, LogFormat::kJson);
  std::string read_back;
  std::thread reader([&] {
    std::array<char, 4096> buffer{};
    for (ssize_t n = 0; (n = read(ends[0], buffer.data(), buffer.size())) > 0;) {
      read_back.append(buffer.data(), static_cast<size_t>(n));
    }
  });
  std::vector<std::thread> writers;
  for (int t = 0; t < kThreads; ++t) {
    writers.emplace_back([&, t] {
      const Logger mine = log.with({"thread", t});
      for (int i = 0; i < kLines; ++i) mine.info("line", {{"text", std::string(1500, 'x')}});
    });
  }
  for (std::thread& writer : writers) writer.join();
  close(ends[1]);
  reader.join();
  close(ends[0]);
  std::istringstream in(read_back);
  int count = 0;
  for (std::string line; std::getline(in, line); ++count) {
    ASSERT_EQ(json::parse(line)["text"].get<std::string>().size(), 1500u);
  }
  EXPECT_EQ(count, kThreads * kLines);
}

TEST(LogFdTest, AFullPipeDropsLinesAndSaysSo) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_NONBLOCK), 0);
  const Logger log = Logger::to_fd(ends[1], LogLevel::kInfo, LogFormat::kJson);
  // 64 KiB fill the pipe: most of these lines find no room, and none of them blocks.
  for (int i = 0; i < 200; ++i) log.info("fill", {{"text", std::string(1000, 'x')}});
  std::array<char, 1 << 17> buffer{};
  ASSERT_GT(read(ends[0], buffer.data(), buffer.size()), 0);
  log.info("after");
  const ssize_t n = read(ends[0], buffer.data(), buffer.size());
  ASSERT_GT(n, 0);
  const json line = json::parse(std::string_view(buffer.data(), static_cast<size_t>(n)));
  EXPECT_GE(line["lines_dropped_before"].get<int>(), 100);
  close(ends[0]);
  close(ends[1]);
}

TEST(LogNullTest, ADefaultLoggerDiscards) {
  const Logger none;
  none.request("r").component("c").error("x");
  none.set_level(LogLevel::kDebug);
  EXPECT_FALSE(none.enabled(LogLevel::kError));
}

}  // namespace
}  // namespace akv
