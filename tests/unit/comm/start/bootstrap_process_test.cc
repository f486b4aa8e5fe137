// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes: forked, executed, and killed at the worst moments.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>

#include "core/base/clock.h"
#include "unit/comm/start/bootstrap_support.h"

namespace weir::comm {
namespace {

using testing::HasSubstr;

// A child that runs `body` and sends home what it returns.
class Child {
 public:
  explicit Child(const std::function<std::string()>& body) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      const std::string text = body();
      const ssize_t written = write(ends[1], text.data(), text.size());
      _exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
    }
    close(ends[1]);
    read_end_ = ends[0];
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(read_end_);
  }
  Child(const Child&) = delete;

  pid_t pid() const { return pid_; }
  // "" when it was killed.
  std::string text() {
    std::string text;
    char buffer[4096];
    for (ssize_t got; (got = read(read_end_, buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<size_t>(got));
    }
    return text;
  }

 private:
  pid_t pid_ = 0;
  int read_end_ = -1;
};

std::string summary(const Outcome& outcome) {
  return std::string(name_of(outcome.status.code())) + "|" + outcome.status.text();
}

// Kills `victim` after a while, from a process of its own.
Child killer(pid_t victim, uint64_t after_ms) {
  return Child([=] {
    sleep_ns(after_ms * 1'000'000, UINT64_MAX);
    kill(victim, SIGKILL);
    return std::string();
  });
}

TEST(BootstrapProcesses, SixtyFourGatherOverATree) {
  const Secret secret = fresh_secret();
  constexpr Rank kCount = 64;
  std::vector<std::unique_ptr<Child>> children;
  for (Rank rank = 0; rank < kCount; ++rank) {
    children.push_back(std::make_unique<Child>([&secret, rank] {
      const Outcome outcome = play(secret, {rank, kCount}, 3, 2000);
      return summary(outcome) + (outcome.blobs == expected_blobs(kCount, 3, 2000) ? "good" : "bad");
    }));
  }
  for (const auto& child : children) EXPECT_EQ(child->text(), "ok|good");
}

TEST(BootstrapProcesses, ARankKilledDeepInTheTreeIsNamedByAll) {
  const Secret secret = fresh_secret();
  constexpr Rank kCount = 40;
  std::vector<std::unique_ptr<Child>> children;
  // Every rank joins; the last of them, which has no room at the root, dies before the gather.
  for (Rank rank = 0; rank < kCount - 1; ++rank) {
    children.push_back(std::make_unique<Child>([&secret, rank] {
      return summary(play(secret, {rank, kCount}));
    }));
  }
  sleep_ns(300'000'000, UINT64_MAX);
  Child last([&secret] {
    auto joined = Bootstrap::join(secret, kCount - 1, kCount, deadline_in_ms(20'000));
    raise(SIGKILL);
    return std::string();
  });
  const std::string expected = "peer lost|rank 39 of 40 (process " + std::to_string(last.pid()) +
                               ") ended, or gave up, before all_gather 1 was complete";
  for (const auto& child : children) EXPECT_EQ(child->text(), expected);
}

TEST(BootstrapProcesses, ForkedRanksGather) {
  const Secret secret = fresh_secret();
  const auto body = [&secret](Rank rank) {
    const Outcome outcome = play(secret, {rank, 3}, 5, 300'000);
    return summary(outcome) + (outcome.blobs == expected_blobs(3, 5, 300'000) ? "good" : "bad");
  };
  Child one([&] { return body(1); });
  Child two([&] { return body(2); });
  EXPECT_EQ(body(0), "ok|good");
  EXPECT_EQ(one.text(), "ok|good");
  EXPECT_EQ(two.text(), "ok|good");
}

TEST(BootstrapProcesses, ARankKilledWhileOthersAreAwaitedIsNamedAtOnce) {
  const Secret secret = fresh_secret();
  Child one([&] { return summary(play(secret, {1, 4})); });
  Child two([&] { return summary(play(secret, {2, 4})); });
  Child end = killer(two.pid(), 200);
  const Outcome outcome = play(secret, {0, 4});  // rank 3 never comes
  EXPECT_EQ(outcome.status.code(), Code::kPeerLost);
  EXPECT_EQ(outcome.status.text(), "rank 2 of 4 (process " + std::to_string(two.pid()) +
                                       ") ended, or gave up, before all ranks had joined");
  EXPECT_EQ(one.text(), summary(outcome));
  EXPECT_LT(outcome.seconds, kAtOnceSeconds);
}

// One that has not come when the others fail hears of it when it comes.
TEST(BootstrapProcesses, ARankKilledIsNamedToThoseThatComeLater) {
  for (const Rank killed : {2u, 0u}) {
    SCOPED_TRACE(killed == 0 ? "the root is killed" : "a child is killed");
    const Secret secret = fresh_secret();
    Child zero([&] { return summary(play(secret, {0, 5})); });
    await_root(secret);
    Child two([&] { return summary(play(secret, {2, 5})); });
    Child one([&] { return summary(play(secret, {1, 5})); });
    sleep_ns(200'000'000, UINT64_MAX);
    const pid_t pid = (killed == 0 ? zero : two).pid();
    kill(pid, SIGKILL);
    sleep_ns(300'000'000, UINT64_MAX);
    Child three([&] { return summary(play(secret, {3, 5})); });
    const Outcome outcome = play(secret, {4, 5});
    const std::string expected = "peer lost|rank " + std::to_string(killed) + " of 5 (process " +
                                 std::to_string(pid) +
                                 ") ended, or gave up, before all ranks had joined";
    EXPECT_EQ(summary(outcome), expected);
    EXPECT_LT(outcome.seconds, kAtOnceSeconds);
    EXPECT_EQ(one.text(), expected);
    EXPECT_EQ(three.text(), expected);
    EXPECT_EQ((killed == 0 ? two : zero).text(), expected);
  }
}

TEST(BootstrapProcesses, ARankKilledBeforeAGatherIsNamedAtOnce) {
  const Secret secret = fresh_secret();
  Child one([&] { return summary(play(secret, {1, 3}, 2)); });
  Child two([&] {
    auto joined = Bootstrap::join(secret, 2, 3, deadline_in_ms(20'000));
    if (joined.ok()) (void)joined.value()->all_gather("2:1:", deadline_in_ms(20'000));
    raise(SIGKILL);
    return std::string();
  });
  const Outcome outcome = play(secret, {0, 3}, 2);
  EXPECT_EQ(outcome.status.code(), Code::kPeerLost);
  EXPECT_EQ(outcome.status.text(), "rank 2 of 3 (process " + std::to_string(two.pid()) +
                                       ") ended, or gave up, before all_gather 2 was complete");
  EXPECT_EQ(one.text(), summary(outcome));
  EXPECT_LT(outcome.seconds, kAtOnceSeconds);
}

TEST(BootstrapProcesses, ARankKilledInTheMiddleOfItsBlobIsNamedAtOnce) {
  const Secret secret = fresh_secret();
  Child one([&] { return summary(play(secret, {1, 3}, 1)); });
  Child two([&] {
    Stranger self(secret);
    if (shake_hands(&self, secret, 2, 3).empty()) return std::string("not welcome");
    if (!self.receive()) return std::string("not ready");
    self.send(give(1, record(2, std::string(100'000, 'x'))).substr(0, 50'000));
    raise(SIGKILL);
    return std::string();
  });
  const Outcome outcome = play(secret, {0, 3}, 1);
  EXPECT_EQ(outcome.status.code(), Code::kPeerLost);
  EXPECT_THAT(outcome.status.text(), HasSubstr("rank 2 of 3"));
  EXPECT_EQ(one.text(), summary(outcome));
}

TEST(BootstrapProcesses, ARankKilledBeforeItTakesTheResultIsALossOfTheNextRound) {
  const Secret secret = fresh_secret();
  constexpr size_t kBytes = 900'000;  // more than the socket holds
  const auto die = [&] {
    Stranger self(secret);
    if (shake_hands(&self, secret, 2, 3).empty()) return std::string("not welcome");
    if (!self.receive()) return std::string("not ready");
    self.send(give(1, record(2, "2")));
    if (!self.receive()) return std::string("no result");
    raise(SIGKILL);
    return std::string();
  };
  for (const int rounds : {1, 2}) {
    Child one([&] { return summary(play(secret, {1, 3}, rounds, kBytes)); });
    Child two(die);
    const Outcome outcome = play(secret, {0, 3}, rounds, kBytes);
    if (rounds == 1) {
      EXPECT_EQ(summary(outcome), "ok|");
    } else {
      EXPECT_EQ(summary(outcome), "peer lost|rank 2 of 3 (process " + std::to_string(two.pid()) +
                                      ") ended, or gave up, before all_gather 2 was complete");
    }
    EXPECT_EQ(one.text(), summary(outcome));
  }
}

TEST(BootstrapProcesses, Rank0KilledIsNamedByTheOthersAtOnce) {
  const Secret secret = fresh_secret();
  Child zero([&] { return summary(play(secret, {0, 3})); });
  Child end = killer(zero.pid(), 200);
  const Outcome outcome = play(secret, {1, 3});  // rank 2 never comes
  EXPECT_EQ(outcome.status.code(), Code::kPeerLost);
  EXPECT_THAT(outcome.status.text(),
              HasSubstr("rank 0 of 3 (process " + std::to_string(zero.pid()) + ") ended"));
  EXPECT_LT(outcome.seconds, kAtOnceSeconds);
}

TEST(BootstrapProcesses, AStoppedRank0TimesOutAndIsNamed) {
  const Secret secret = fresh_secret();
  Child zero([&] { return summary(play(secret, {0, 3})); });
  await_root(secret);
  kill(zero.pid(), SIGSTOP);
  const Outcome outcome = play(secret, {1, 3, 300});
  EXPECT_EQ(outcome.status.code(), Code::kTimeout);
  EXPECT_THAT(outcome.status.text(), HasSubstr("process " + std::to_string(zero.pid())));
  EXPECT_LT(outcome.seconds, kAtOnceSeconds);
}

TEST(BootstrapProcesses, TooFewDescriptorsOnTheRootAreToldWithTheRemedy) {
  const Secret secret = fresh_secret();
  Child zero([&] {
    rlimit few{};
    getrlimit(RLIMIT_NOFILE, &few);
    few.rlim_cur = open_descriptor_count() + 8;
    setrlimit(RLIMIT_NOFILE, &few);
    return summary(play(secret, {0, 32, 2'000}));
  });
  await_root(secret);
  std::vector<Player> guests = all_ranks(32, 1'000);
  guests.erase(guests.begin());
  const auto outcomes = play_all(secret, guests);
  const std::string text = zero.text();
  EXPECT_THAT(text, HasSubstr("raise `ulimit -n`"));
  size_t told_count = 0;
  for (const Outcome& outcome : outcomes) {
    EXPECT_FALSE(outcome.status.ok());
    EXPECT_LT(outcome.seconds, kAtOnceSeconds) << summary(outcome);
    if (summary(outcome) == text) ++told_count;
  }
  EXPECT_GE(told_count, 1u);  // those who were in by then
}

TEST(BootstrapProcesses, AForkedCopyOfASocketDoesNotKeepTheConnectionOpen) {
  const Secret secret = fresh_secret();
  auto child = std::unique_ptr<Child>();
  Child one([&] {
    auto joined = Bootstrap::join(secret, 1, 2, deadline_in_ms(20'000));
    if (!joined.ok()) return joined.status().text();
    auto gathered = joined.value()->all_gather("", deadline_in_ms(20'000));
    return gathered.ok() ? "gathered" : gathered.status().text();
  });
  {
    auto joined = Bootstrap::join(secret, 0, 2, deadline_in_ms(20'000));
    ASSERT_TRUE(joined.ok());
    child = std::make_unique<Child>([] {
      pause();
      return std::string();
    });
  }
  EXPECT_THAT(one.text(), HasSubstr("rank 0"));
}

// Not a test of its own: what the next one executes.
TEST(BootstrapProcesses, DISABLED_ExecutedRank) {
  const char* id = getenv("WEIR_TEST_ID");
  ASSERT_NE(id, nullptr);
  const Rank rank = static_cast<Rank>(atoi(getenv("WEIR_TEST_RANK")));
  const Outcome outcome = play(secret_from_text(id), {rank, 3}, 2);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.text();
  EXPECT_EQ(outcome.blobs, expected_blobs(3, 2, 0));
}

TEST(BootstrapProcesses, RanksMeetAcrossExec) {
  const std::string id =
      "exec test of process " + std::to_string(getpid()) + " at " + std::to_string(now_ns());
  std::vector<pid_t> pids;
  for (const char* rank : {"0", "1", "2"}) {
    const pid_t pid = fork();
    if (pid == 0) {
      setenv("WEIR_TEST_ID", id.c_str(), 1);
      setenv("WEIR_TEST_RANK", rank, 1);
      execl("/proc/self/exe", "bootstrap_test", "--gtest_also_run_disabled_tests",
            "--gtest_brief=1", "--gtest_filter=BootstrapProcesses.DISABLED_ExecutedRank",
            static_cast<const char*>(nullptr));
      _exit(127);
    }
    pids.push_back(pid);
  }
  for (const pid_t pid : pids) {
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
}

}  // namespace
}  // namespace weir::comm
