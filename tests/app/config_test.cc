#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "common/config/load.h"
#include "common/config/schema.h"
#include "tests/support/temp_dir.h"

namespace akv {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

enum class Codec { kAnchorKv, kNone };

// One item of each type, as a daemon declares them.
struct Config {
  std::string model;
  int threads = 2;
  int64_t heartbeat_ms = 1000;
  double share = 0.5;
  uint64_t outbox_bytes = 64 << 20;
  bool insecure = false;
  HostPort control{"127.0.0.1", 0};
  std::optional<HostPort> advertise;
  std::vector<HostPort> prefill;
  std::vector<std::string> options;
  Codec codec = Codec::kAnchorKv;
  double theta = 0;  // 0: auto

  void declare(Schema& s) {
    s.section("Model");
    s.text("model", model, "FILE").doc("GGUF file").required();
    s.integer("threads", threads).range(1, 1024).doc("worker threads").default_note("CPUs");
    s.integer("heartbeat-ms", heartbeat_ms).unit("ms").range(10, 60'000).doc("heartbeat interval");
    s.real("share", share).range(0, 1).doc("share");
    s.bytes("outbox-bytes", outbox_bytes).range(1024, 1e15).doc("bytes kept").reloadable();
    s.flag("insecure", insecure).doc("no CURVE");
    s.address("control", control).doc("ZeroMQ");
    s.address("advertise-control", advertise).doc("told to peers");
    s.addresses("prefill", prefill).doc("peers");
    s.list("codec-option", options, "OPTION=VALUE").doc("codec options");
    s.choice<Codec>("codec", codec, {{"anchorkv", Codec::kAnchorKv}, {"none", Codec::kNone}})
        .doc("codec");
    s.custom(
         "theta", "auto|X", "auto or a number in (0, 1]",
         [this](std::string_view text) -> Status {
           if (text == "auto") {
             theta = 0;
             return {};
           }
           theta = std::atof(std::string(text).c_str());
           if (theta > 0 && theta <= 1) return {};
           return make_error(Code::kInvalidArgument, "out of range");
         },
         [this] { return theta == 0 ? std::string("auto") : std::to_string(theta); })
        .doc("share of bytes kept");
  }
};

class ConfigTest : public ::testing::Test {
 protected:
  ConfigTest() { config_.declare(schema_); }

  Status load(std::vector<const char*> args) {
    Result<CommandLine> line = parse_command_line(schema_, args);
    if (!line.ok()) return line.error();
    return apply_configuration(schema_, *line, [this](const char* name) -> const char* {
      const auto it = environment_.find(name);
      return it == environment_.end() ? nullptr : it->second.c_str();
    });
  }
  std::string message(std::vector<const char*> args) {
    const Status status = load(std::move(args));
    return status.ok() ? "" : status.error().message;
  }

  Config config_;
  Schema schema_;
  std::map<std::string, std::string> environment_;
  testing::TempDir dir_;
};

TEST_F(ConfigTest, FlagsOfEveryType) {
  ASSERT_TRUE(load({"--model",
                    "m.gguf",
                    "--threads=8",
                    "--heartbeat-ms",
                    "250",
                    "--share",
                    "0.25",
                    "--outbox-bytes",
                    "2G",
                    "--insecure",
                    "--control",
                    "[::1]:7",
                    "--advertise-control",
                    "h:9",
                    "--prefill",
                    "a:1,b:2",
                    "--prefill",
                    "c:3",
                    "--codec",
                    "none",
                    "--theta",
                    "0.05",
                    "--codec-option",
                    "scale=lsq"})
                  .ok());
  EXPECT_EQ(config_.model, "m.gguf");
  EXPECT_EQ(config_.threads, 8);
  EXPECT_EQ(config_.heartbeat_ms, 250);
  EXPECT_EQ(config_.share, 0.25);
  EXPECT_EQ(config_.outbox_bytes, 2ull << 30);
  EXPECT_TRUE(config_.insecure);
  EXPECT_EQ(config_.control, (HostPort{"::1", 7}));
  EXPECT_EQ(config_.advertise, (HostPort{"h", 9}));
  EXPECT_THAT(config_.prefill, ElementsAre(HostPort{"a", 1}, HostPort{"b", 2}, HostPort{"c", 3}));
  EXPECT_EQ(config_.codec, Codec::kNone);
  EXPECT_EQ(config_.theta, 0.05);
  EXPECT_THAT(config_.options, ElementsAre("scale=lsq"));
  EXPECT_TRUE(schema_.given("model"));
  EXPECT_TRUE(schema_.check_required().ok());
}

TEST_F(ConfigTest, FlagBeatsEnvironmentBeatsFileBeatsDefault) {
  const std::string file = dir_.write("c.json", R"({"threads": 3, "heartbeat-ms": 300,
      "share": 0.3, "prefill": ["f:1", "f:2"], "insecure": true})");
  environment_ = {{"AKV_HEARTBEAT_MS", "400"}, {"AKV_SHARE", "0.4"}, {"AKV_PREFILL", "e:1"}};
  ASSERT_TRUE(load({"--config", file.c_str(), "--share", "0.5", "--no-insecure"}).ok());
  EXPECT_EQ(config_.threads, 3);
  EXPECT_EQ(config_.heartbeat_ms, 400);
  EXPECT_EQ(config_.share, 0.5);
  EXPECT_THAT(config_.prefill, ElementsAre(HostPort{"e", 1}));  // replaced, not appended to
  EXPECT_FALSE(config_.insecure);
  EXPECT_EQ(config_.outbox_bytes, 64u << 20);
}

TEST_F(ConfigTest, EnvironmentNamesTheFile) {
  environment_ = {{"AKV_CONFIG", dir_.write("c.json", R"({"threads": "5"})")}};
  ASSERT_TRUE(load({}).ok());
  EXPECT_EQ(config_.threads, 5);
}

TEST_F(ConfigTest, DumpIsAFileThatGivesTheSameConfiguration) {
  ASSERT_TRUE(load({"--model", "m", "--threads", "7", "--prefill", "a:1,b:2", "--theta", "0.25",
                    "--outbox-bytes", "3K", "--insecure", "--codec", "none"})
                  .ok());
  const std::string dump = schema_.dump_json();
  EXPECT_EQ(nlohmann::json::parse(dump)["threads"], 7);
  Config other;
  Schema schema;
  other.declare(schema);
  const std::string file = dir_.write("dump.json", dump);
  CommandLine line;
  line.config_file = file;
  const Status status =
      apply_configuration(schema, line, [](const char*) -> const char* { return nullptr; });
  ASSERT_TRUE(status.ok()) << status.error().message;
  EXPECT_EQ(schema.dump_json(), dump);
}

TEST_F(ConfigTest, AMessageSaysKeyGotAndTakes) {
  EXPECT_EQ(message({"--threads", "0"}), "--threads: got \"0\", takes an integer in [1, 1024]");
  EXPECT_EQ(message({"--threads", "x"}), "--threads: got \"x\", takes an integer in [1, 1024]");
  EXPECT_EQ(message({"--heartbeat-ms", "1.5"}),
            "--heartbeat-ms: got \"1.5\", takes an integer in [10, 60000] (ms)");
  EXPECT_EQ(message({"--codec", "zip"}), "--codec: got \"zip\", takes one of anchorkv|none");
  EXPECT_THAT(message({"--control", "nowhere"}), HasSubstr("--control: got \"nowhere\", takes"));
  EXPECT_THAT(message({"--outbox-bytes", "12Q"}), HasSubstr("got \"12Q\", takes bytes"));
  EXPECT_THAT(message({"--share", "nan"}), HasSubstr("takes a number in [0, 1]"));
  EXPECT_THAT(message({"--theta", "2"}), HasSubstr("takes auto or a number in (0, 1]: out of"));
  environment_ = {{"AKV_THREADS", "many"}};
  EXPECT_EQ(message({}), "AKV_THREADS: got \"many\", takes an integer in [1, 1024]");
}

TEST_F(ConfigTest, UnknownNamesGetTheNearestOne) {
  EXPECT_THAT(message({"--thread", "3"}), HasSubstr("did you mean threads?"));
  EXPECT_THAT(message({"--xyzzy"}), ::testing::Not(HasSubstr("did you mean")));
  EXPECT_THAT(message({"stray"}), HasSubstr("\"stray\": not a flag"));
  EXPECT_THAT(message({"--threads"}), HasSubstr("got nothing"));
  EXPECT_THAT(message({"--no-threads"}), HasSubstr("no such flag"));
}

TEST_F(ConfigTest, BadFilesAreNamedWithTheirFault) {
  const auto from = [&](const std::string& text) {
    return message({"--config", dir_.write("c.json", text).c_str()});
  };
  EXPECT_THAT(from("{"), HasSubstr("not JSON at byte"));
  EXPECT_THAT(from("[]"), HasSubstr("takes a JSON object"));
  EXPECT_THAT(from(R"({"threds": 1})"), HasSubstr("no such key \"threds\"; did you mean threads?"));
  EXPECT_THAT(from(R"({"threads": 1, "threads": 2})"), HasSubstr("stands there twice"));
  EXPECT_THAT(from(R"({"threads": [1]})"), HasSubstr("key \"threads\": got \"[1]\""));
  EXPECT_THAT(from(R"({"threads": null})"), HasSubstr("got \"null\""));
  EXPECT_THAT(from(R"({"prefill": [{"a": 1}]})"), HasSubstr("key \"prefill\": got"));
  EXPECT_THAT(message({"--config", "/nowhere/c.json"}), HasSubstr("cannot read"));
  EXPECT_THAT(from(std::string(2 << 20, ' ')), HasSubstr("larger than"));
}

TEST_F(ConfigTest, RequiredItemsAreAskedFor) {
  ASSERT_TRUE(load({}).ok());
  const Status status = schema_.check_required();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("--model: got nothing, takes FILE (GGUF file)"));
  EXPECT_EQ(status.error().param, "model");
}

TEST_F(ConfigTest, HelpShowsDefaultsAndUnits) {
  const std::string help = schema_.help();
  EXPECT_THAT(help, HasSubstr("--heartbeat-ms N"));
  EXPECT_THAT(help, HasSubstr("heartbeat interval, ms [1000]"));
  EXPECT_THAT(help, HasSubstr("worker threads [CPUs]"));
  EXPECT_THAT(help, HasSubstr("bytes kept [64M] (SIGHUP)"));
  EXPECT_THAT(help, HasSubstr("GGUF file (required)"));
  EXPECT_THAT(help, HasSubstr("\nModel\n"));
}

TEST_F(ConfigTest, ActionsOfTheCommandLine) {
  for (const auto& [flag, action] : {std::pair{"--help", Action::kHelp},
                                     {"-h", Action::kHelp},
                                     {"--check", Action::kCheck},
                                     {"--version", Action::kVersion},
                                     {"--dump-config", Action::kDumpConfig}}) {
    const std::vector<const char*> args = {flag};
    EXPECT_EQ(parse_command_line(schema_, args)->action, action) << flag;
  }
}

TEST(EnvironmentName, IsUpperCaseWithUnderscores) {
  EXPECT_EQ(environment_name("advertise-control"), "AKV_ADVERTISE_CONTROL");
}

}  // namespace
}  // namespace akv
