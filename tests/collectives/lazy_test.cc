// SPDX-License-Identifier: Apache-2.0
// How many descriptors a rank of many holds over tcp: connections are made when they are needed.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "support/collective_checks.h"
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

}  // namespace
}  // namespace weir::test
