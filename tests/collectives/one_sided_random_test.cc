// SPDX-License-Identifier: Apache-2.0
// Random programs of one-sided operations (support/one_sided_programs.h), over whatever transport
// the environment names. WEIR_TEST_SEED is the first seed, WEIR_TEST_ROUNDS how many; with
// WEIR_TEST_HOSTS=2 the processes are those of two hosts, in turns.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "support/one_sided_programs.h"
#include "support/ranks.h"

namespace weir::test {
namespace {

uint64_t number_from(const char* name, uint64_t otherwise) {
  const char* text = getenv(name);
  return text == nullptr ? otherwise : strtoull(text, nullptr, 10);
}

TEST(RandomPrograms, LeaveTheMemoryOfASequentialModel) {
  const uint64_t first = number_from("WEIR_TEST_SEED", 1);
  const uint64_t count = number_from("WEIR_TEST_ROUNDS", 30);
  std::printf("WEIR_TEST_SEED=%llu WEIR_TEST_ROUNDS=%llu\n", static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(count));
  const char* hosts = getenv("WEIR_TEST_HOSTS");
  for (uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    const OneSidedProgram program = make_one_sided_program(seed);
    const Body body = [&program, seed](int rank, weir_comm_t comm) {
      SCOPED_TRACE("rank " + std::to_string(rank) + " of seed " + std::to_string(seed));
      run_one_sided_program(program, rank, comm);
    };
    if (seed % 3 == 0 && hosts == nullptr) {
      run_threads(program.rank_count, body);
    } else {
      const std::vector<int> statuses = run_processes_each(program.rank_count, body, [&](int rank) {
        Environment own;
        if (hosts != nullptr) {
          own.emplace_back("WEIR_HOST_ID", "host " + std::to_string(rank % atoi(hosts)));
        }
        return own;
      });
      for (const int status : statuses) EXPECT_EQ(status, 0);
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace weir::test
