// SPDX-License-Identifier: Apache-2.0
// The log is set up once per process, so each case runs in a child of its own.
#include "core/base/log.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/settings.h"

namespace weir {
namespace {

std::string read_file(const std::string& name) {
  std::ifstream file(name);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string temporary_directory() {
  std::string name = ::testing::TempDir() + "weir_log_XXXXXX";
  EXPECT_NE(mkdtemp(name.data()), nullptr);
  return name;
}

// What `body` writes to standard error under `environment`.
std::string run_child(const std::vector<std::pair<std::string, std::string>>& environment,
                      const std::function<void()>& body) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    unsetenv("WEIR_LOG");
    unsetenv("WEIR_LOG_FILE");
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    body();
    std::fflush(nullptr);
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << text;
  return text;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

size_t line_count(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

void say_everything() {
  log(LogLevel::kError, "one error");
  log(LogLevel::kWarn, "one warning");
  log(LogLevel::kInfo, "one note");
  log(LogLevel::kDebug, "one detail");
  log(LogLevel::kTrace, "one step");
}

TEST(Log, WritesWarningsAndErrorsByDefault) {
  const std::string text = run_child({}, say_everything);
  EXPECT_EQ(line_count(text), 2u) << text;
  EXPECT_TRUE(contains(text, "one error"));
  EXPECT_TRUE(contains(text, "one warning"));
}

TEST(Log, EachLevelIncludesTheOnesBefore) {
  const std::pair<const char*, size_t> kCases[] = {
      {"error", 1}, {"warn", 2}, {"info", 3}, {"debug", 4}, {"trace", 5}};
  for (const auto& [level, lines] : kCases) {
    const std::string text = run_child({{"WEIR_LOG", level}}, say_everything);
    EXPECT_EQ(line_count(text), lines) << level << ":\n" << text;
  }
}

TEST(Log, EnabledAgreesWithWhatIsWritten) {
  run_child({{"WEIR_LOG", "info"}}, [] {
    if (!log_enabled(LogLevel::kInfo) || log_enabled(LogLevel::kDebug)) _exit(1);
  });
}

TEST(Log, BracesAreText) {
  EXPECT_TRUE(contains(run_child({}, [] { log_error("{} {0} %s"); }), "{} {0} %s"));
}

TEST(Log, GoesToTheEndOfTheFileThatIsNamed) {
  const std::string directory = temporary_directory();
  const std::string name = directory + "/log";
  std::ofstream(name) << "before\n";
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(run_child({{"WEIR_LOG_FILE", name}}, [] { log_error("to the file"); }), "");
  }
  const std::string text = read_file(name);
  EXPECT_TRUE(text.starts_with("before\n"));
  EXPECT_EQ(line_count(text), 3u);
  unlink(name.c_str());
  rmdir(directory.c_str());
}

TEST(Log, FileNameHoldsTheProcessNumber) {
  const std::string directory = temporary_directory();
  std::string name;
  const std::string text = run_child({{"WEIR_LOG_FILE", directory + "/%%-%p"}}, [] {
    log_error("to the file");
    std::fprintf(stderr, "%d", getpid());
  });
  name = directory + "/%-" + text;
  EXPECT_TRUE(contains(read_file(name), "to the file")) << name;
  unlink(name.c_str());
  rmdir(directory.c_str());
}

TEST(Log, AFileThatCannotBeWrittenIsReportedOnStandardError) {
  const std::string text =
      run_child({{"WEIR_LOG_FILE", "/proc/no/such/file"}}, [] { log_error("still here"); });
  EXPECT_TRUE(contains(text, "WEIR_LOG_FILE=\"/proc/no/such/file\"")) << text;
  EXPECT_TRUE(contains(text, "still here")) << text;
}

TEST(Log, ThatIsReportedOnceByThreadsThatBeginTogether) {
  for (int time = 0; time < 20; ++time) {
    const std::string text = run_child({{"WEIR_LOG_FILE", "/proc/no/such/file"}}, [] {
      (void)process_settings();
      std::atomic<int> ready{0};
      std::vector<std::thread> threads;
      for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
          for (++ready; ready < 4;) std::this_thread::yield();
          log_error("here");
        });
      }
      for (std::thread& thread : threads) thread.join();
    });
    EXPECT_EQ(line_count(text), 5u) << text;
  }
}

TEST(Log, UnknownVariablesAreReportedOnceWhenSettingsAreFirstRead) {
  const std::string text = run_child({{"WEIR_TIMEOUTMS", "5"}}, [] {
    if (!process_settings().ok() || !process_settings().ok()) _exit(1);
    log_error("afterwards");
  });
  EXPECT_EQ(line_count(text), 2u) << text;
  EXPECT_TRUE(contains(text, "WEIR_TIMEOUTMS is set")) << text;
}

TEST(Log, BadSettingsDoNotSilenceIt) {
  const std::string text = run_child({{"WEIR_LOG", "loud"}}, [] {
    if (process_settings().ok()) _exit(1);
    log_warn("still here");
  });
  EXPECT_TRUE(contains(text, "still here")) << text;
}

TEST(Log, LinesOfSeveralThreadsStayWhole) {
  const std::string text = run_child({}, [] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([] {
        for (int i = 0; i < 50; ++i) log_error("abcdefghijklmnopqrstuvwxyz");
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  std::istringstream lines(text);
  size_t whole = 0;
  for (std::string line; std::getline(lines, line);) {
    whole += line.ends_with(": abcdefghijklmnopqrstuvwxyz") ? 1 : 0;
  }
  EXPECT_EQ(whole, 200u);
  EXPECT_EQ(line_count(text), 200u);
}

TEST(Log, AForkedChildDoesNotWaitForALineThatAnotherThreadWrites) {
  run_child({}, [] {
    int ends[2];
    if (pipe(ends) != 0) _exit(1);
    // More than the pipe holds: the thread stands in the middle of its line until it is read.
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    std::thread writer([] {
      log_error(std::string(1 << 20, 'x'));
      close(STDERR_FILENO);
    });
    char text[4096];
    if (read(ends[0], text, 1) != 1) _exit(1);
    const pid_t child = fork();
    if (child == 0) {
      alarm(30);
      close(STDERR_FILENO);
      log_error("nobody reads this");
      _exit(0);
    }
    int status = -1;
    const bool ended = waitpid(child, &status, 0) == child && status == 0;
    while (read(ends[0], text, sizeof text) > 0) {
    }
    writer.join();
    if (!ended) _exit(1);
  });
}

TEST(Log, AnUnknownNameIsReportedWhoeverReadsTheEnvironmentFirst) {
  for (const bool log_first : {false, true}) {
    const std::string text = run_child({{"WEIR_TIMEOUT_MSS", "1"}}, [&] {
      if (!log_first) (void)process_settings();
      log_warn("a line");
    });
    EXPECT_NE(text.find("WEIR_TIMEOUT_MSS"), std::string::npos) << text;
    EXPECT_NE(text.find("a line"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace weir
