// SPDX-License-Identifier: Apache-2.0
// How many descriptors a rank of many holds over tcp: connections are made when they are needed,
// and where no descriptor is left the error says so.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "support/collective_checks.h"
#include "support/promises.h"
#include "support/ranks.h"

namespace weir::test {
namespace {

constexpr int kRanks = 12;
constexpr int kLanes = 5;

int count_sockets() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string what = std::filesystem::read_symlink(entry.path(), gone).string();
    if (what.rfind("socket:", 0) == 0) ++count;
  }
  return count;
}

// Those that have nothing to do with the ring: what the job needs besides, and lanes of a rank to
// itself.
constexpr int kOthers = 2 * kLanes + 12;

void expect_sockets(const std::string& lazy, int least, int most) {
  const int before = count_sockets();
  run_processes(
      kRanks,
      [&](int rank, weir_comm_t comm) {
        check_all_reduce(Bench(comm), 100'000, How::kOutOfPlace);
        const int count = count_sockets() - before;
        EXPECT_GE(count, least) << "rank " << rank;
        EXPECT_LE(count, most) << "rank " << rank;
        // All the others, too, when they are asked for.
        check_every_collective(comm, 1000);
      },
      {{"WEIR_TRANSPORT", "tcp"}, {"WEIR_TCP_LAZY", lazy}, {"WEIR_ALGORITHM", "all_reduce=ring"}});
}

TEST(LazyConnections, ARankOfManyHoldsDataConnectionsToItsNeighboursInTheRingOnly) {
  // Lanes to two of them.
  expect_sockets("auto", 2, 2 * kLanes + kOthers);
}

TEST(LazyConnections, WithoutLazinessItHoldsAll) {
  const int all = (kRanks - 1) * kLanes;
  static_assert(2 * kLanes + kOthers < (kRanks - 1) * kLanes);
  expect_sockets("0", all, all + kOthers);
}

// All connections that will be made are there after that.
void reduce_for_a_while(weir_comm_t comm) {
  constexpr double kSeconds = 2.5;
  int64_t goes_on = 1;
  for (const auto start = Clock::now(); goes_on != 0;) {
    goes_on = seconds_since(start) < kSeconds ? 1 : 0;
    ASSERT_EQ(weir_all_reduce(comm, &goes_on, &goes_on, 1, WEIR_INT64, WEIR_MIN, nullptr), WEIR_OK)
        << weir_last_error(comm);
  }
}

// Ranks that have nothing to send to each other have nothing to ask each other either.
TEST(LazyConnections, SoItDoesWithAnotherTransportThatStandsByAndSeveralRails) {
  constexpr int kRails = 8;
  constexpr int kToNeighbours = 2 * 2 * kRails * 2;  // of each transport two for each rail
  static_assert(kToNeighbours + kOthers < (kRanks - 1) * 2 * kRails);
  const int before = count_sockets();
  run_processes(kRanks,
                [&](int rank, weir_comm_t comm) {
                  reduce_for_a_while(comm);
                  const int count = count_sockets() - before;
                  EXPECT_GE(count, 2) << "rank " << rank;
                  EXPECT_LE(count, kToNeighbours + kOthers) << "rank " << rank;
                  check_every_collective(comm, 1000);
                },
                {{"WEIR_TRANSPORT", "tcp"},
                 {"WEIR_FAILOVER", "tcp"},
                 {"WEIR_TCP_CONNECTIONS", std::to_string(kRails)},
                 {"WEIR_ALGORITHM", "all_reduce=ring"}});
}

// Runs `body` on ranks that are threads of a process, which may have so many files open.
void run_threads_of_a_process(int count, rlim_t files, const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    rlimit limit{};
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = std::min(files, limit.rlim_max);
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    setenv("WEIR_TRANSPORT", "tcp", 1);
    setenv("WEIR_FAILOVER", "tcp", 1);
    setenv("WEIR_TCP_CONNECTIONS", "8", 1);
    weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
    config.timeout_ms = 60'000;
    run_threads(count, body, config);
    std::fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(LazyConnections, ManyRanksOfAProcessWithSeveralRailsMeet) {
  run_threads_of_a_process(24, 16384, [](int rank, weir_comm_t comm) {
    EXPECT_EQ(weir_barrier(comm, nullptr), WEIR_OK) << rank << ": " << weir_last_error(comm);
  });
}

// Their connections need more, whichever rank finds none.
TEST(LazyConnections, WhereNoDescriptorIsLeftTheErrorSaysSoAndNobodyIsCalledDead) {
  run_threads_of_a_process(24, 1024, [](int rank, weir_comm_t comm) {
    std::vector<int32_t> in(24, rank), out(24);
    const weir_result_t result =
        weir_all_to_all(comm, in.data(), out.data(), 1, WEIR_INT32, nullptr);
    const std::string text = weir_last_error(comm);
    EXPECT_EQ(result, WEIR_ERROR_SYSTEM) << text;
    EXPECT_NE(text.find("ulimit -n"), std::string::npos) << text;
    EXPECT_EQ(text.find("died"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace weir::test
