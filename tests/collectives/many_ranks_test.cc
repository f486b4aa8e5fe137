// SPDX-License-Identifier: Apache-2.0
// More ranks on one host than have cores, than a listener lets in without proof at a time, or than
// a process may have open files: they start, they outlive a death, and where a limit is in the way
// its text names it. Everything is as a user has it: the start-up probe is on, all interfaces are
// allowed.
//
// WEIR_TEST_RANKS and WEIR_TEST_ROUNDS: how many ranks, how often; WEIR_TEST_LOAD: threads that are
// busy beside.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <string>
#include <vector>

#include "support/promises.h"
#include "support/ranks.h"
#include "support/shared_counter.h"

namespace weir::test {
namespace {

int number_from(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text != nullptr ? atoi(text) : otherwise;
}

bool connects() {
  const char* transport = getenv("WEIR_TRANSPORT");
  return transport != nullptr && std::string(transport) != "shm";
}

// As many open files as may be had: many ranks in one process need more than the usual 1024.
void allow_files() {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

weir_comm_config_t with_timeout(int64_t timeout_ms) {
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.timeout_ms = timeout_ms;
  return config;
}

// Threads that take the cores from the ranks, as another program would.
class Load {
 public:
  explicit Load(int count) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this] {
        while (!stop_.load(std::memory_order_relaxed)) ++turns_;
      });
    }
  }
  ~Load() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_ = false;
  std::atomic<uint64_t> turns_ = 0;
  std::vector<std::thread> threads_;
};

void expect_sum(int count, weir_comm_t comm) {
  int64_t value = 1;
  EXPECT_EQ(weir_all_reduce(comm, &value, &value, 1, WEIR_INT64, WEIR_SUM, nullptr), WEIR_OK)
      << weir_last_error(comm);
  EXPECT_EQ(value, count);
}

void say(const char* what, int count, int round, Clock::time_point start) {
  std::printf("%s: %d ranks, round %d: %.2f s\n", what, count, round, seconds_since(start));
  std::fflush(stdout);
}

TEST(ManyRanks, AsThreadsStart) {
  if (connects()) GTEST_SKIP() << "the connections of all ranks would be in one process";
  allow_files();
  const int count = number_from("WEIR_TEST_RANKS", 130);
  const Load load(number_from("WEIR_TEST_LOAD", 0));
  for (int round = 0; round < number_from("WEIR_TEST_ROUNDS", 1) && !HasFailure(); ++round) {
    const auto start = Clock::now();
    run_threads(
        count, [&](int, weir_comm_t comm) { expect_sum(count, comm); }, with_timeout(100'000));
    say("threads", count, round, start);
  }
}

TEST(ManyRanks, AsProcessesStart) {
  allow_files();
  const int count = number_from("WEIR_TEST_RANKS", 130);
  const Load load(number_from("WEIR_TEST_LOAD", 0));
  for (int round = 0; round < number_from("WEIR_TEST_ROUNDS", 1) && !HasFailure(); ++round) {
    const auto start = Clock::now();
    run_processes(
        count, [&](int, weir_comm_t comm) { expect_sum(count, comm); }, {}, with_timeout(100'000));
    say("processes", count, round, start);
  }
}

TEST(ManyRanks, OutliveTheDeathOfSome) {
  allow_files();
  const int count = 128;
  const std::vector<int> victims = {5, 64, 127};
  const auto is_victim = [&](int rank) {
    return std::find(victims.begin(), victims.end(), rank) != victims.end();
  };
  const SharedCounter finished;
  finished.get() = 0;
  const std::vector<int> statuses = run_processes_status(
      count,
      [&](int rank, weir_comm_t comm) {
        expect_sum(count, comm);
        ++finished.get();
        if (is_victim(rank)) {
          finished.wait_for(count);
          raise(SIGKILL);
        }
        weir_result_t result = WEIR_OK;
        int64_t value = 1;
        while (result == WEIR_OK) {
          result = weir_all_reduce(comm, &value, &value, 1, WEIR_INT64, WEIR_SUM, nullptr);
        }
        EXPECT_EQ(result, WEIR_ERROR_PEER_LOST) << weir_last_error(comm);
        // They die one after the other: each is seen sooner or later, by all.
        std::vector<int> lost(static_cast<size_t>(count));
        int lost_count = 0;
        for (int i = 0; i < 6'000 && lost_count < static_cast<int>(victims.size()); ++i) {
          ASSERT_EQ(weir_comm_lost_ranks(comm, lost.data(), count, &lost_count), WEIR_OK);
          if (lost_count < static_cast<int>(victims.size())) usleep(10'000);
        }
        lost.resize(static_cast<size_t>(lost_count));
        ASSERT_EQ(lost, victims) << weir_last_error(comm);
        weir_comm_t smaller = nullptr;
        ASSERT_EQ(weir_comm_shrink(comm, lost.data(), lost_count, nullptr, &smaller), WEIR_OK)
            << weir_last_error(comm);
        expect_sum(count - lost_count, smaller);
        EXPECT_EQ(weir_comm_destroy(smaller), WEIR_OK);
      },
      {}, with_timeout(100'000));
  for (int rank = 0; rank < count; ++rank) {
    EXPECT_EQ(statuses[static_cast<size_t>(rank)], is_victim(rank) ? 128 + SIGKILL : 0) << rank;
  }
}

// In a process of its own, whose limits are its own, too.
// Rank 0 waits for the last rank, which waits for the one before it, which is stopped.
TEST(ManyRanks, AChainOfWaitingRanksIsFollowedToItsEnd) {
  const int count = 80;
  const int last = count - 1;
  const std::vector<int> statuses = run_processes_status(
      count,
      [&](int rank, weir_comm_t comm) {
        int64_t value = 0;
        if (rank == last - 1) {
          const pid_t self = getpid();
          if (fork() == 0) {  // so that the test can collect it
            usleep(6'000'000);
            kill(self, SIGKILL);
            _exit(0);
          }
          raise(SIGSTOP);
        } else if (rank == last) {
          EXPECT_NE(weir_recv(comm, &value, 1, WEIR_INT64, last - 1, nullptr), WEIR_OK);
        } else if (rank == 0) {
          ASSERT_EQ(weir_comm_set_timeout(comm, 2000), WEIR_OK);
          EXPECT_EQ(weir_recv(comm, &value, 1, WEIR_INT64, last, nullptr), WEIR_ERROR_TIMEOUT);
          const std::string text = weir_last_error(comm);
          const std::string whom = "waiting for rank " + std::to_string(last - 1);
          EXPECT_NE(text.find(whom), std::string::npos) << text;
        }
      },
      {}, with_timeout(60'000));
  for (int rank = 0; rank < count; ++rank) {
    EXPECT_EQ(statuses[static_cast<size_t>(rank)], rank == last - 1 ? 128 + SIGKILL : 0) << rank;
  }
}

TEST(ManyRanks, TooFewOpenFilesAreSaidAndHowToGetMore) {
  const pid_t pid = fork();
  if (pid == 0) {
    const rlimit limit{100, 100};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) _exit(2);
    const weir_unique_id_t id = make_id();
    const weir_comm_config_t config = with_timeout(5'000);
    constexpr int kCount = 130;
    std::atomic<int> made = 0, told = 0;
    std::mutex lock;
    std::string texts;
    const auto start = Clock::now();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kCount; ++rank) {
      threads.emplace_back([&, rank] {
        weir_comm_t comm = nullptr;
        if (weir_comm_create(&comm, kCount, &id, rank, &config) == WEIR_OK) {
          ++made;
          return;
        }
        const std::string text = weir_last_error(nullptr);
        if (text.find("ulimit -n") != std::string::npos) ++told;
        const std::lock_guard guard(lock);
        texts += text + "\n";
      });
    }
    for (std::thread& thread : threads) thread.join();
    const bool good = made == 0 && told > 0 && seconds_since(start) < 60;
    if (!good) {
      std::printf("%d made, %d told, %.1f s\n%s", made.load(), told.load(), seconds_since(start),
                  texts.c_str());
    }
    std::fflush(nullptr);
    _exit(good ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace weir::test
