// SPDX-License-Identifier: Apache-2.0
// offload_perf as a user runs it: what it prints and writes, its exit status, and that it leaves
// nothing behind, however it ends.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "perf/command.h"

namespace weir::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// A new directory below the working directory, which is on a disk, and two in it.
class OffloadPerf : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = fs::current_path() / "offload_perf_test.XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    root_ = path;
    first_ = root_ / "first";
    second_ = root_ / "second";
    fs::create_directory(first_);
    fs::create_directory(second_);
  }
  void TearDown() override { fs::remove_all(root_); }

  CommandResult run(std::vector<std::string> arguments) {
    const std::vector<std::string> small = {"-n", "200000", "--chunk",    "64K", "-r", "2",
                                            "-s", "2",      "--probe-ms", "40",  "-t", "2"};
    arguments.insert(arguments.begin(), small.begin(), small.end());
    return run_tool("offload_perf", arguments);
  }
  json json_of(const fs::path& path) {
    std::ifstream file(path);
    return json::parse(file, nullptr, false);
  }
  bool nothing_is_left() const { return fs::is_empty(first_) && fs::is_empty(second_); }

  fs::path root_, first_, second_;
};

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

std::string content_of(const fs::path& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST_F(OffloadPerf, EveryFormatTakesTheStepsOfTheSameRunInMemory) {
  for (const char* format : {"f32", "half", "half8"}) {
    const fs::path file = root_ / (std::string(format) + ".json");
    const CommandResult result =
        run({"-d", first_.string(), "--format", format, "--check", "--json", file.string()});
    ASSERT_EQ(result.status, 0) << result.out << result.err;
    EXPECT_NE(result.out.find("bit for bit those"), std::string::npos) << result.out;
    const json j = json_of(file);
    ASSERT_TRUE(j.is_object());
    EXPECT_EQ(j["program"], "offload_perf");
    EXPECT_EQ(j["format"], format);
    EXPECT_EQ(j["parameters"], 200000);
    EXPECT_EQ(j["check"], true);
    ASSERT_EQ(j["rounds"].size(), 2u);
    for (const json& round : j["rounds"]) {
      ASSERT_EQ(round["steps"].size(), 2u);
      for (const json& step : round["steps"]) {
        EXPECT_EQ(step["committed"], true);
        EXPECT_GT(step["seconds"].get<double>(), 0);
        const double hidden = step["compute_hidden"];
        EXPECT_TRUE(hidden >= 0 && hidden <= 1) << hidden;
      }
      EXPECT_GT(round["probe"]["gbs"].get<double>(), 0);
      EXPECT_NEAR(round["ratio"].get<double>(),
                  round["gbs"].get<double>() / round["probe"]["gbs"].get<double>(), 1e-6);
    }
    EXPECT_TRUE(nothing_is_left());
  }
}

// 12, 6 and 4 bytes of state a parameter each way, and with half formats 2 more written.
TEST_F(OffloadPerf, StepsMoveTheBytesOfTheirFormat) {
  struct Expected {
    const char* format;
    double read, written;
  };
  for (const Expected& expected :
       {Expected{"f32", 12, 12}, Expected{"half", 6, 8}, Expected{"half8", 4, 6}}) {
    const fs::path file = root_ / "bytes.json";
    const CommandResult result = run({"-d", first_.string(), "--format", expected.format,
                                      "--probe-ms", "0", "--json", file.string(), "-n", "1M"});
    ASSERT_EQ(result.status, 0) << result.out << result.err;
    const json j = json_of(file);
    double read = 0, written = 0;
    for (const json& round : j["rounds"]) {
      for (const json& step : round["steps"]) {
        read += step["read_bytes"].get<double>();
        written += step["written_bytes"].get<double>();
      }
    }
    const double parameters = 4.0 * (1 << 20);
    // Less is read where the end of a sweep is still in memory; trailers and padding are more.
    EXPECT_LT(read / parameters, expected.read * 1.08) << expected.format;
    EXPECT_GT(read / parameters, expected.read * 0.5) << expected.format;
    EXPECT_NEAR(written / parameters, expected.written, expected.written * 0.1) << expected.format;
  }
}

TEST_F(OffloadPerf, OnlyEverySoManiethStepIsCommitted) {
  const fs::path file = root_ / "durable.json";
  const CommandResult result = run({"-d", first_.string(), "--durable-every", "3", "-s", "3", "-r",
                                    "2", "--json", file.string()});
  ASSERT_EQ(result.status, 0) << result.out << result.err;
  const json report = json_of(file);
  for (const json& round : report["rounds"]) {
    std::vector<bool> committed;
    for (const json& step : round["steps"]) committed.push_back(step["committed"]);
    EXPECT_EQ(committed, (std::vector<bool>{false, false, true}));
  }
}

TEST_F(OffloadPerf, SeveralDirectoriesMethodsAndWaysToTheNormWork) {
  const std::string both = first_.string() + "," + second_.string();
  const std::vector<std::vector<std::string>> runs = {
      {"--method", "adam", "--norm", "given"},
      {"--method", "sgd", "--norm", "hold", "--output", "none"},
      {"--method", "adagrad", "--gradient", "float", "--output", "half", "--stochastic"},
      {"--method", "lion", "--gradient", "half", "--output", "float"}};
  for (std::vector<std::string> arguments : runs) {
    arguments.insert(arguments.end(), {"-d", both, "--check", "--probe-ms", "0"});
    const CommandResult result = run(arguments);
    EXPECT_EQ(result.status, 0) << arguments[1] << ": " << result.out << result.err;
    EXPECT_TRUE(nothing_is_left());
  }
}

TEST_F(OffloadPerf, PictureAndTraceAreWritten) {
  const fs::path svg = root_ / "run.svg";
  const fs::path trace = root_ / "trace.json";
  const CommandResult result =
      run({"-d", first_.string(), "--plot", svg.string(), "--trace", trace.string()});
  ASSERT_EQ(result.status, 0) << result.out << result.err;
  const std::string picture = content_of(svg);
  EXPECT_EQ(count_of(picture, "</svg>"), 1u);
  EXPECT_EQ(count_of(picture, "<circle"), 4u * 4u);  // four lines of four steps
  EXPECT_EQ(count_of(picture, "nan"), 0u);
  EXPECT_FALSE(json_of(trace).is_discarded());
  EXPECT_TRUE(nothing_is_left());
}

TEST_F(OffloadPerf, InMemoryThereIsNoProbeAndNoRatio) {
  const fs::path file = root_ / "memory.json";
  const CommandResult result = run({"--json", file.string()});
  ASSERT_EQ(result.status, 0) << result.out << result.err;
  const json j = json_of(file);
  EXPECT_TRUE(j["ratio_median"].is_null());
  EXPECT_GT(j["parameters_per_second_best"].get<double>(), 0);
}

TEST_F(OffloadPerf, WrongUsageIsStatusTwoAndSaysWhatIsWrong) {
  const std::vector<std::vector<std::string>> wrong = {
      {"--parameters", "none"}, {"--parameters", "0"},    {"--method", "newton"},
      {"--format", "f16"},      {"--gradient", "int8"},   {"--output", "double"},
      {"--norm", "never"},      {"--durable-every", "0"}, {"--rounds", "-1"},
      {"--trace", "t.json"},    {"--no-such-flag"}};
  for (const std::vector<std::string>& arguments : wrong) {
    const CommandResult result = run_tool("offload_perf", arguments);
    EXPECT_EQ(result.status, 2) << arguments[0] << ": " << result.out << result.err;
    EXPECT_NE((result.out + result.err).find(arguments[0]), std::string::npos)
        << result.out << result.err;
  }
  EXPECT_EQ(run_tool("offload_perf", {"--help"}).status, 0);
}

TEST_F(OffloadPerf, ErrorsOfTheSystemAreStatusThree) {
  const CommandResult missing = run({"-d", first_.string() + "," + (root_ / "missing").string()});
  EXPECT_EQ(missing.status, 3);
  EXPECT_NE(missing.err.find("missing"), std::string::npos) << missing.err;
  const CommandResult budget = run({"-d", first_.string(), "--memory", "4K"});
  EXPECT_EQ(budget.status, 3) << budget.out;
  EXPECT_NE(budget.err.find("offload_perf: "), std::string::npos) << budget.err;
  const CommandResult unwritable = run({"--json", (root_ / "missing" / "file.json").string()});
  EXPECT_EQ(unwritable.status, 3);
  EXPECT_NE(unwritable.err.find("file.json"), std::string::npos) << unwritable.err;
  EXPECT_TRUE(nothing_is_left());
}

TEST_F(OffloadPerf, NothingIsLeftOfARunThatIsInterrupted) {
  for (const int signal : {SIGINT, SIGTERM, SIGKILL}) {
    const std::string program = std::string(WEIR_PERF_FOLDER) + "/offload_perf";
    const std::string directory = first_.string();
    const char* argv[] = {program.c_str(),   "-n",         "200000", "-d",
                          directory.c_str(), "--chunk",    "64K",    "-r",
                          "100000",          "--probe-ms", "0",      nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", 1, 0);
    // Whoever started this test may ignore some signals.
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t signals;
    sigfillset(&signals);
    posix_spawnattr_setsigdefault(&attributes, &signals);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    pid_t pid = 0;
    ASSERT_EQ(posix_spawn(&pid, program.c_str(), &actions, &attributes, const_cast<char**>(argv),
                          environ),
              0);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(10)); };
    // Until it is in the middle of things: its store exists.
    while (std::chrono::steady_clock::now() < until) {
      bool begun = false;
      for (const auto& made : fs::directory_iterator(first_)) begun = !fs::is_empty(made.path());
      if (begun) break;
      pause();
    }
    ASSERT_FALSE(fs::is_empty(first_));
    kill(pid, signal);
    int state = 0;
    ASSERT_EQ(waitpid(pid, &state, 0), pid);
    EXPECT_TRUE(WIFSIGNALED(state) && WTERMSIG(state) == signal) << state;
    while (!nothing_is_left() && std::chrono::steady_clock::now() < until) pause();
    EXPECT_TRUE(nothing_is_left()) << "after signal " << signal;
  }
}

}  // namespace
}  // namespace weir::test
