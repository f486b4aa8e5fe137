// SPDX-License-Identifier: Apache-2.0
// Ranks of one host that have a device each: the links between the devices of the machine, which
// WEIR_TOPOLOGY_FILE names, decide whether trees are offered. WEIR_TEST_EXPECTED is the reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "hostcuda/cuda.h"
#include "support/collective_checks.h"
#include "support/ranks.h"

namespace weir::test {
namespace {

TEST(DeviceLinks, DecideWhetherTreesAreOffered) {
  const char* const expected = std::getenv("WEIR_TEST_EXPECTED");
  ASSERT_NE(expected, nullptr) << "run it with ctest";
  constexpr int kRanks = 8;
  const weir_unique_id_t id = make_id();
  testing::internal::CaptureStderr();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
      ASSERT_EQ(cudaFree(nullptr), cudaSuccess);
      const weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
      run_rank(
          kRanks, rank, id,
          [](int, weir_comm_t comm) {
            for (const size_t count : {size_t{1}, size_t{50'001}}) {
              check_every_collective(comm, count);
            }
          },
          config);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::ContainsRegex(expected));
}

}  // namespace
}  // namespace weir::test
