#include "common/app/application.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>

#include "common/app/notify.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace akv {
namespace {

using testing::ChildProcess;
using ::testing::HasSubstr;
using testing::TempDir;
using Args = std::vector<std::string>;

Args toy(const Args& flags) {
  Args argv = {AKV_TOY_DAEMON};
  argv.insert(argv.end(), flags.begin(), flags.end());
  return argv;
}

// Runs to the end; status and both streams.
struct Ended {
  int status = -1;
  std::string out;
  std::string err;
};
Ended run_toy(const Args& flags, const ChildProcess::Variables& variables = {}) {
  ChildProcess child(toy(flags), variables);
  const std::optional<int> status = child.wait_exit();
  return {status.value_or(-1), child.stdout_text(), child.stderr_text()};
}

TEST(Application, ReadyLineThenSigtermIsAClean0) {
  ChildProcess child(toy({}));
  const auto line = child.wait_stdout("ready ");
  ASSERT_TRUE(line) << child.stderr_text();
  EXPECT_EQ(*line, R"(ready {"http":"127.0.0.1:8080","control":"127.0.0.1:5"})");
  child.signal(SIGTERM);
  EXPECT_EQ(child.wait_exit(), 0);
  EXPECT_EQ(child.stdout_text(), *line + "\n");
  EXPECT_THAT(child.stderr_text(), HasSubstr("\"drain\":\"drained\""));
  EXPECT_THAT(child.stderr_text(), HasSubstr("toy stopped"));
}

TEST(Application, SigtermWaitsForWorkAndASecondOneDoesNot) {
  ChildProcess child(toy({"--busy-ms", "-1"}));
  ASSERT_TRUE(child.wait_stdout("ready "));
  child.signal(SIGTERM);
  ASSERT_TRUE(child.wait_stderr("draining"));
  EXPECT_FALSE(child.wait_exit(200)) << "did not wait for its work";
  child.signal(SIGTERM);
  EXPECT_EQ(child.wait_exit(), 0);
  EXPECT_THAT(child.stderr_text(), HasSubstr("second signal"));
}

TEST(Application, DrainingEndsWithTheWork) {
  ChildProcess child(toy({"--busy-ms", "150"}));
  ASSERT_TRUE(child.wait_stdout("ready "));
  const auto begin = std::chrono::steady_clock::now();
  child.signal(SIGINT);
  EXPECT_EQ(child.wait_exit(), 0);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(150));
  EXPECT_THAT(child.stderr_text(), HasSubstr("\"drain\":\"drained\""));
}

TEST(Application, DrainingEndsAtItsDeadline) {
  ChildProcess child(toy({"--busy-ms", "-1", "--drain-timeout-ms", "100"}));
  ASSERT_TRUE(child.wait_stdout("ready "));
  child.signal(SIGTERM);
  EXPECT_EQ(child.wait_exit(), 0);
  EXPECT_THAT(child.stderr_text(), HasSubstr("\"drain\":\"deadline\""));
}

TEST(Application, SigtermWhileLoadingEndsAtOnce) {
  ChildProcess child(toy({"--load-ms", "30000"}));
  // Nothing is printed while it loads: give it time to be there.
  EXPECT_FALSE(child.wait_exit(300));
  child.signal(SIGTERM);
  EXPECT_EQ(child.wait_exit(3000), 0);
  EXPECT_THAT(child.stderr_text(), HasSubstr("ended while starting"));
}

TEST(Application, SighupReloadsLevelAndPeersAndKeepsTheOldOnError) {
  const TempDir dir;
  const std::string file = dir.write("c.json", R"({"log-level": "info", "peers": "old"})");
  ChildProcess child(toy({"--config", file}));
  ASSERT_TRUE(child.wait_stdout("ready "));
  dir.write("c.json", R"({"log-level": "debug", "peers": "new"})");
  child.signal(SIGHUP);
  EXPECT_TRUE(child.wait_stderr("\"peers\":\"new\"")) << child.stderr_text();
  dir.write("c.json", R"({"log-level": "silent"})");
  child.signal(SIGHUP);
  EXPECT_TRUE(child.wait_stderr("configuration not reloaded"));
  EXPECT_FALSE(child.wait_exit(100));
  child.signal(SIGTERM);
  EXPECT_EQ(child.wait_exit(), 0);
}

TEST(Application, ExitStatusesSayWhatWasWrong) {
  EXPECT_EQ(run_toy({"--nonsense"}).status, 2);
  EXPECT_EQ(run_toy({"--low", "3"}).status, 2);
  EXPECT_EQ(run_toy({"--fail-in", "create"}).status, 2);
  EXPECT_EQ(run_toy({"--fail-in", "port"}).status, 3);
  EXPECT_EQ(run_toy({"--fail-in", "start"}).status, 1);
  EXPECT_EQ(run_toy({"--fail-in", "throw"}).status, 1);
  EXPECT_EQ(run_toy({"--check"}).status, 0);
  EXPECT_EQ(run_toy({"--check", "--fail-in", "check"}).status, 2);
}

TEST(Application, MessagesNameTheKey) {
  EXPECT_EQ(run_toy({}, {{"AKV_BUSY_MS", "soon"}}).err,
            "toy_daemon: AKV_BUSY_MS: got \"soon\", takes an integer in [-1, 60000] (ms)\n");
  EXPECT_EQ(run_toy({"--low", "3"}).err, "toy_daemon: --low: got more than --high\n");
  EXPECT_EQ(run_toy({"--fail-in", "throw"}).err, "toy_daemon: thrown while starting\n");
}

TEST(Application, AFailureWhileRunningStopsInOrder) {
  const Ended ended = run_toy({"--fail-in", "run"});
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.err, HasSubstr("a component died"));
  EXPECT_THAT(ended.err, ::testing::Not(HasSubstr("second one")));
  EXPECT_THAT(ended.err, HasSubstr("toy stopped"));
}

TEST(Application, ActionsPrintAndExit) {
  const Ended help = run_toy({"--help"});
  EXPECT_EQ(help.status, 0);
  for (const char* text : {"--log-level", "--busy-ms N", "--config FILE", "Exit status"}) {
    EXPECT_THAT(help.out, HasSubstr(text));
  }
  EXPECT_EQ(run_toy({"--version"}).out, "toy_daemon " + std::string(project_version()) + "\n");
  const Ended dump = run_toy({"--dump-config", "--busy-ms", "7"}, {{"AKV_LOG_LEVEL", "warn"}});
  EXPECT_EQ(dump.status, 0);
  const auto json = nlohmann::json::parse(dump.out);
  EXPECT_EQ(json["busy-ms"], 7);
  EXPECT_EQ(json["log-level"], "warn");
  EXPECT_EQ(json["drain-timeout-ms"], 180000);
}

TEST(Application, LogLinesAreJsonOfTheNode) {
  ChildProcess child(toy({"--node-name", "n1"}));
  ASSERT_TRUE(child.wait_stdout("ready "));
  const auto line = child.wait_stderr("\"ready\"");
  ASSERT_TRUE(line);
  EXPECT_EQ(nlohmann::json::parse(*line)["node"], "n1");
}

TEST(Application, TellsTheServiceManager) {
  const TempDir dir;
  const std::string path = dir.path() + "/notify";
  const int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  const timeval timeout{10, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  const auto receive = [fd] {
    std::array<char, 64> buffer{};
    const ssize_t n = recv(fd, buffer.data(), buffer.size(), 0);
    return std::string(buffer.data(), n > 0 ? static_cast<size_t>(n) : 0);
  };
  ChildProcess child(toy({}), {{"NOTIFY_SOCKET", path}});
  EXPECT_EQ(receive(), "READY=1");
  child.signal(SIGTERM);
  EXPECT_EQ(receive(), "STOPPING=1");
  EXPECT_EQ(child.wait_exit(), 0);
  close(fd);
}

}  // namespace
}  // namespace akv
