// SPDX-License-Identifier: Apache-2.0
// weir_register_symmetric between processes that share a device of the strict libcuda.
#include "devices/windows_cases.h"

namespace weir::test {
namespace {

TEST(DeviceWindowsOfProcesses, EveryCollectiveHoldsTheHostsResult) {
  for (const int n : {2, 3}) {
    run_processes_on_device(n, [](weir_comm_t comm, int ranks, int rank) {
      for (int round = 0; round < 2; ++round) {
        Registered memory(comm, ranks);
        expect_use(true, memory, comm, 0);
        every_collective_in(memory, comm, ranks, rank);
        memory.deregister();
        expect_use(false, memory, comm, 0);
      }
    });
  }
}

// With WEIR_EXPLAIN=1: the way of each kind of call, once.
TEST(DeviceWindowsOfProcesses, TheWayOfACallIsExplained) {
  if (!cuda::is_strict()) GTEST_SKIP() << "which way is the best depends on the device";
  run_processes_on_device(
      3,
      [](weir_comm_t comm, int n, int rank) {
        testing::internal::CaptureStderr();
        Registered memory(comm, n);
        const auto reduce = [&](size_t count) {
          EXPECT_WEIR(comm, weir_all_reduce(comm, memory.send(), memory.recv(), count, WEIR_INT32,
                                            WEIR_SUM, nullptr));
        };
        for (int i = 0; i < 2; ++i) {
          reduce(kWindowCount);
          reduce(100);
        }
        memory.deregister();
        reduce(kWindowCount + 1);
        const std::string told = testing::internal::GetCapturedStderr();
        const auto count_of = [&](const std::string& text) {
          size_t count = 0;
          for (size_t at = told.find(text); at != std::string::npos; at = told.find(text, at + 1)) {
            ++count;
          }
          return count;
        };
        const size_t once = rank == 0 ? 1 : 0;
        EXPECT_EQ(count_of("in two phases and 1 round, out of buffers in windows"), once) << told;
        EXPECT_EQ(count_of("in one phase and 1 round, through scratch"), once) << told;
        EXPECT_EQ(count_of("in two phases and 3 rounds, through scratch"), once) << told;
      },
      [](int) {
        return Environment{{"WEIR_EXPLAIN", "1"}};
      });
}

}  // namespace
}  // namespace weir::test
