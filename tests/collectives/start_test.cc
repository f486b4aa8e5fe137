// SPDX-License-Identifier: Apache-2.0
// The start of a communicator with nothing set but its transport, where a rank is stopped for
// longer than the start takes, and where others keep the cores: it works afterwards.
// WEIR_TEST_TRANSPORT names the transport; over one for several hosts each rank is on a host of its
// own.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "support/promises.h"
#include "support/ranks.h"

namespace weir::test {
namespace {

// Costs are measured anew in each job: their cache is empty.
class Folder {
 public:
  Folder() {
    std::string name = testing::TempDir() + "weir-start-XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The environment of a rank's process.
void set_up_rank(const Folder& folder, int rank) {
  setenv("WEIR_CACHE_DIR", folder.path().c_str(), 1);
  const char* transport = getenv("WEIR_TEST_TRANSPORT");
  if (transport == nullptr) return;
  setenv("WEIR_TRANSPORT", transport, 1);
  setenv("WEIR_HOST_ID", std::to_string(rank).c_str(), 1);
}

void use(int rank, weir_comm_t comm) {
  for (const size_t count : {size_t{1}, size_t{1000}, size_t{100'000}}) {
    std::vector<int32_t> data(count);
    std::iota(data.begin(), data.end(), rank * 1000);
    ASSERT_EQ(weir_all_reduce(comm, data.data(), data.data(), count, WEIR_INT32, WEIR_SUM, nullptr),
              WEIR_OK)
        << weir_last_error(comm);
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(data[i], static_cast<int32_t>(2 * i) + 1000) << "element " << i << " of " << count;
    }
    // Messages go by what the probe has used.
    std::vector<int32_t> other(count);
    const int peer = 1 - rank;
    weir_request_t send = nullptr, recv = nullptr;
    ASSERT_EQ(weir_recv(comm, other.data(), count, WEIR_INT32, peer, &recv), WEIR_OK);
    ASSERT_EQ(weir_send(comm, data.data(), count, WEIR_INT32, peer, &send), WEIR_OK);
    ASSERT_EQ(weir_wait(&send), WEIR_OK) << weir_last_error(comm);
    ASSERT_EQ(weir_wait(&recv), WEIR_OK) << weir_last_error(comm);
    ASSERT_EQ(other, data);
  }
}

// Two ranks as processes.
class Job {
 public:
  // With a timeout the ranks may fail, by an error that names the other one.
  explicit Job(int64_t timeout_ms = 0) : timeout_ms_(timeout_ms) {
    const weir_unique_id_t id = make_id();
    std::fflush(nullptr);
    for (int rank = 0; rank < 2; ++rank) {
      const pid_t pid = fork();
      if (pid == 0) be_rank(rank, id);
      pids_[static_cast<size_t>(rank)] = pid;
    }
  }
  pid_t pid(int rank) const { return pids_[static_cast<size_t>(rank)]; }
  void expect_success() {
    for (size_t rank = 0; rank < pids_.size(); ++rank) {
      int status = 0;
      ASSERT_EQ(waitpid(pids_[rank], &status, 0), pids_[rank]);
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
          << "rank " << rank << ": status " << status;
    }
  }
  // Well or with an error that was looked for, and not only when the test ends.
  void expect_end(int rank, Clock::time_point since) {
    int status = 0;
    ASSERT_EQ(waitpid(pid(rank), &status, 0), pid(rank));
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << "rank " << rank << ": status " << status;
    EXPECT_LT(seconds_since(since), 60);
  }

 private:
  [[noreturn]] void be_rank(int rank, const weir_unique_id_t& id) const {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    set_up_rank(folder_, rank);
    if (timeout_ms_ == 0) {
      run_rank(2, rank, id, use, WEIR_COMM_CONFIG_INIT);
    } else {
      run_bounded(rank, id);
    }
    std::fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }

  void run_bounded(int rank, const weir_unique_id_t& id) const {
    weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
    config.timeout_ms = timeout_ms_;
    weir_comm_t comm = nullptr;
    weir_result_t result = weir_comm_create(&comm, 2, &id, rank, &config);
    for (int i = 0; i < 100 && result == WEIR_OK; ++i) {
      int32_t value = 1;
      result = weir_all_reduce(comm, &value, &value, 1, WEIR_INT32, WEIR_SUM, nullptr);
    }
    if (result != WEIR_OK) {
      const std::string text = weir_last_error(comm);
      EXPECT_TRUE(result == WEIR_ERROR_TIMEOUT || result == WEIR_ERROR_PEER_LOST) << text;
      // What rank 0 has said of it rank 1 hears, too.
      EXPECT_TRUE(text.find("rank 1") != std::string::npos ||
                  (rank == 1 && text.find("rank 0") != std::string::npos))
          << text;
    }
    if (comm != nullptr) {
      EXPECT_EQ(weir_comm_destroy(comm), WEIR_OK);
    }
  }

  const int64_t timeout_ms_;
  const Folder folder_;
  std::array<pid_t, 2> pids_{};
};

TEST(Start, ARankThatIsStoppedAtAnyMomentOfItOnlyDelays) {
  const auto begin = Clock::now();
  Job().expect_success();
  const double whole_s = seconds_since(begin);
  constexpr int kMoments = 6;
  std::vector<std::unique_ptr<Job>> jobs;
  std::vector<std::thread> threads;
  for (int moment = 0; moment < kMoments; ++moment) {
    jobs.push_back(std::make_unique<Job>());
    // So many at once take longer: the moments are spread over more than one start takes alone.
    const auto after_us = static_cast<useconds_t>(1e6 * 2 * whole_s * moment / kMoments);
    const pid_t pid = jobs.back()->pid(moment % 2);
    threads.emplace_back([=] {
      usleep(after_us);
      kill(pid, SIGSTOP);
      usleep(6'500'000);
      kill(pid, SIGCONT);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int moment = 0; moment < kMoments; ++moment) {
    SCOPED_TRACE(testing::Message() << "moment " << moment << " of " << kMoments
                                    << ", a start took " << whole_s << " s");
    jobs[static_cast<size_t>(moment)]->expect_success();
  }
}

// There is no communicator then, or the first call fails; the rank that goes on in the end has an
// error, too.
TEST(Start, ARankThatStaysStoppedIsNamedToTheOtherOneInTime) {
  const auto begin = Clock::now();
  Job().expect_success();
  const double whole_s = seconds_since(begin);
  constexpr int kMoments = 4;
  std::vector<std::unique_ptr<Job>> jobs;
  std::vector<std::thread> threads;
  for (int moment = 0; moment < kMoments; ++moment) {
    jobs.push_back(std::make_unique<Job>(4000));
    const auto after_us = static_cast<useconds_t>(1e6 * 2 * whole_s * moment / kMoments);
    Job& job = *jobs.back();
    threads.emplace_back([&job, after_us] {
      usleep(after_us);
      kill(job.pid(1), SIGSTOP);
      job.expect_end(0, Clock::now());
      kill(job.pid(1), SIGCONT);
      job.expect_end(1, Clock::now());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Its survivors name it, whichever part of the start they are in and whoever finds the death.
TEST(Start, ARankThatIsKilledAtAnyMomentOfItIsNamedByAll) {
  constexpr int kRanks = 4, kRounds = 32;
  const Folder folder;
  double whole_s = 0;
  for (int round = -1; round < kRounds && !testing::Test::HasFailure(); ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round << ", a start takes " << whole_s << " s");
    const auto begin = Clock::now();
    const weir_unique_id_t id = make_id();
    std::array<pid_t, kRanks> pids{};
    std::fflush(nullptr);
    for (int rank = 0; rank < kRanks; ++rank) {
      const pid_t pid = fork();
      if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        set_up_rank(folder, rank);
        weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
        config.timeout_ms = 5000;
        weir_comm_t comm = nullptr;
        weir_result_t result = weir_comm_create(&comm, kRanks, &id, rank, &config);
        if (round < 0) _exit(result == WEIR_OK ? 0 : 1);
        while (result == WEIR_OK) {
          int32_t value = 1;
          result = weir_all_reduce(comm, &value, &value, 1, WEIR_INT32, WEIR_SUM, nullptr);
        }
        const std::string text = weir_last_error(comm);
        // One that was killed before it came has only not come.
        EXPECT_TRUE(result == WEIR_ERROR_PEER_LOST || result == WEIR_ERROR_TIMEOUT)
            << "rank " << rank << ", " << result << ": " << text;
        EXPECT_NE(text.find("rank 3"), std::string::npos) << text;
        std::fflush(nullptr);
        _exit(testing::Test::HasFailure() ? 1 : 0);
      }
      pids[static_cast<size_t>(rank)] = pid;
    }
    if (round >= 0) {
      usleep(static_cast<useconds_t>(1e6 * whole_s * (round + 1) / kRounds));
      kill(pids[kRanks - 1], SIGKILL);
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      int status = 0;
      ASSERT_EQ(waitpid(pids[static_cast<size_t>(rank)], &status, 0),
                pids[static_cast<size_t>(rank)]);
      if (round >= 0 && rank == kRanks - 1) continue;
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
          << "rank " << rank << ": status " << status;
    }
    if (round < 0) whole_s = seconds_since(begin);
  }
}

TEST(Start, OnABusyMachineWorksEachTime) {
  std::atomic<bool> ends{false};
  std::vector<std::thread> busy;
  for (int i = 0; i < 4; ++i) {
    busy.emplace_back([&] {
      for (volatile uint64_t turns = 0; !ends.load(std::memory_order_relaxed);) turns = turns + 1;
    });
  }
  for (int i = 0; i < 8 && !testing::Test::HasFailure(); ++i) Job().expect_success();
  ends = true;
  for (std::thread& thread : busy) thread.join();
}

}  // namespace
}  // namespace weir::test
