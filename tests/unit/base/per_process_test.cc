// SPDX-License-Identifier: Apache-2.0
// What a child made by fork or clone finds of the state of its parent.
#include "core/base/per_process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/process_generation.h"

namespace weir {
namespace {

constexpr int kWays = 2;  // fork, and clone without its handlers

void run_child(int way, const std::function<void()>& body) {
  const pid_t child =
      way == 0 ? fork() : static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
  if (child == 0) {
    alarm(60);
    body();
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << way << ": " << status;
}

TEST(ProcessGeneration, IsTheSameForAllThreadsOfAProcess) {
  std::vector<uint64_t> seen(8);
  std::vector<std::thread> threads;
  for (uint64_t& one : seen) threads.emplace_back([&one] { one = process_generation(); });
  for (std::thread& thread : threads) thread.join();
  for (const uint64_t one : seen) EXPECT_EQ(one, process_generation());
  EXPECT_NE(process_generation(), 0u);
  EXPECT_EQ(process_generation_if_known(), process_generation());
}

TEST(ProcessGeneration, IsAnotherInEveryDescendant) {
  const MakingProcess parent;
  EXPECT_TRUE(parent.is_this());
  for (int way = 0; way < kWays; ++way) {
    run_child(way, [&] {
      EXPECT_FALSE(parent.is_this());
      const MakingProcess child;
      EXPECT_TRUE(child.is_this());
      EXPECT_FALSE(parent.is_this());
      for (int next = 0; next < kWays; ++next) {
        run_child(next, [&] {
          // Before and after somebody has asked here.
          for (int i = 0; i < 2; ++i) {
            EXPECT_FALSE(parent.is_this());
            EXPECT_FALSE(child.is_this());
            EXPECT_TRUE(MakingProcess().is_this());
          }
        });
      }
    });
    EXPECT_TRUE(parent.is_this());
  }
}

TEST(ProcessGeneration, OfAChildWithThreadsIsTheSameForThem) {
  const uint64_t parent = process_generation();
  for (int way = 0; way < kWays; ++way) {
    run_child(way, [&] {
      std::vector<uint64_t> seen(8);
      std::vector<std::thread> threads;
      for (uint64_t& one : seen) threads.emplace_back([&one] { one = process_generation(); });
      for (std::thread& thread : threads) thread.join();
      for (const uint64_t one : seen) EXPECT_EQ(one, seen[0]);
      EXPECT_GT(seen[0], parent);
    });
  }
}

TEST(ProcessGeneration, StaysWhereAChildSharesTheMemory) {
  const MakingProcess parent;
  const pid_t child = vfork();
  if (child == 0) _exit(0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(parent.is_this());
}

TEST(ProcessGeneration, TheRefusalNamesBothProcesses) {
  const MakingProcess parent;
  const std::string made_by = "this thing was made by process " + std::to_string(getpid());
  run_child(0, [&] {
    const std::string text = parent.refusal("thing");
    EXPECT_EQ(text.find(made_by), 0u) << text;
    EXPECT_NE(text.find("its child " + std::to_string(getpid())), std::string::npos) << text;
  });
}

TEST(PerProcess, IsMadeOnceByAllThreads) {
  static constinit PerProcess<std::atomic<int>> state;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([] { state->fetch_add(1); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(state->load(), 8);
}

TEST(PerProcess, IsNewInAChildAlsoWhereItIsLocked) {
  static constinit PerProcess<std::mutex> lock;
  static constinit PerProcess<int> number;
  number.get() = 7;
  const std::lock_guard held(lock.get());
  for (int way = 0; way < kWays; ++way) {
    run_child(way, [] {
      const std::lock_guard own(lock.get());
      EXPECT_EQ(number.get(), 0);
      number.get() = 8;
    });
    EXPECT_EQ(number.get(), 7);
  }
}

TEST(InheritedState, IsInheritedUnlessAThreadWasAtIt) {
  static constinit InheritedState<std::set<int>> state;
  state.use()->insert(1);
  for (int way = 0; way < kWays; ++way) {
    run_child(way, [] { EXPECT_EQ(state.use()->size(), 1u); });
  }
  std::atomic<bool> is_held{false};
  std::atomic<bool> stop{false};
  std::thread holder([&] {
    const auto access = state.use();
    is_held = true;
    while (!stop) std::this_thread::yield();
  });
  while (!is_held) std::this_thread::yield();
  for (int way = 0; way < kWays; ++way) {
    run_child(way, [] {
      EXPECT_TRUE(state.use()->empty());
      state.use()->insert(2);
      EXPECT_EQ(state.use()->count(2), 1u);
    });
  }
  stop = true;
  holder.join();
  EXPECT_EQ(state.use()->count(1), 1u);
}

}  // namespace
}  // namespace weir
