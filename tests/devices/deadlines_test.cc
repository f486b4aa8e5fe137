// SPDX-License-Identifier: Apache-2.0
// What the text of a deadline says where ranks have called operations on memory of different kinds.
#include <string>
#include <vector>

#include "devices/streams_support.h"

namespace weir::test {
namespace {

EnvironmentOf over(bool is_mapped) {
  return [is_mapped](int) {
    return is_mapped ? Environment() : Environment{{"WEIR_TRANSPORT", "tcp"}};
  };
}

TEST(DeviceDeadlines, ARankInACollectiveOnMemoryOfTheHostIsToldSo) {
  for (const bool is_mapped : {true, false}) {
    run_processes_on_device(
        3,
        [](weir_comm_t comm, int n, int rank) {
          expect_sum(comm, n, rank);
          EXPECT_WEIR(comm, weir_comm_set_timeout(comm, rank == 1 ? 20'000 : 1000));
          const DeviceArray<int> data(std::vector<int>(1000, 1));
          std::vector<int> of_host(1000, 1);
          int* const buffer = rank == 1 ? of_host.data() : data.data();
          EXPECT_NE(weir_all_reduce(comm, buffer, buffer, 1000, WEIR_INT32, WEIR_SUM, nullptr),
                    WEIR_OK);
          const std::string text = weir_last_error(comm);
          for (const char* word : {"rank 1 made no such call", "; rank 1 called all_reduce(int32",
                                   "on memory of the host"}) {
            EXPECT_NE(text.find(word), text.npos) << word << " on rank " << rank << ": " << text;
          }
        },
        over(is_mapped));
  }
}

// Rank 0 waits for a message of rank 1, in memory of the host, and rank 1 leaves it out.
void expect_the_missing_message_told(bool is_mapped, int hasty, const std::string& wanted) {
  run_processes_on_device(
      2,
      [&](weir_comm_t comm, int n, int rank) {
        expect_sum(comm, n, rank);
        EXPECT_WEIR(comm, weir_comm_set_timeout(comm, rank == hasty ? 1000 : 20'000));
        const DeviceArray<int> data(std::vector<int>(1000, 1));
        std::vector<int> of_host(1000, 1);
        EXPECT_NE(rank == 0 ? weir_recv(comm, of_host.data(), 1000, WEIR_INT32, 1, nullptr)
                            : weir_all_reduce(comm, data.data(), data.data(), 1000, WEIR_INT32,
                                              WEIR_SUM, nullptr),
                  WEIR_OK);
        const std::string text = weir_last_error(comm);
        EXPECT_NE(text.find(wanted), text.npos) << rank << ": " << text;
      },
      over(is_mapped));
}

TEST(DeviceDeadlines, AMessageOfTheHostThatIsMissingIsToldAtTheDeadlineOfACollective) {
  for (const bool is_mapped : {true, false}) {
    expect_the_missing_message_told(is_mapped, 1,
                                    "rank 0 made no such call on memory of a device; rank 0 waits "
                                    "for rank 1 in another operation, such as a message");
  }
}

TEST(DeviceDeadlines, ACollectiveOnADeviceIsToldAtTheDeadlineOfAMessageOfTheHost) {
  for (const bool is_mapped : {true, false}) {
    expect_the_missing_message_told(is_mapped, 0,
                                    "; rank 1 called all_reduce(int32, sum, count 1000) on memory "
                                    "of a device");
  }
}

TEST(DeviceDeadlines, ZeroElementsOnADeviceAreToldAtTheDeadlineOfMoreOnTheHost) {
  for (const bool is_mapped : {true, false}) {
    const SharedCounter here;
    run_processes_on_device(
        3,
        [&](weir_comm_t comm, int n, int rank) {
          expect_sum(comm, n, rank);
          EXPECT_WEIR(comm, weir_comm_set_timeout(comm, 1000));
          std::vector<int> of_host(1000, 1);
          const weir_result_t result =
              weir_all_reduce(comm, of_host.data(), of_host.data(), rank == 1 ? 0 : 1000,
                              WEIR_INT32, WEIR_SUM, nullptr);
          EXPECT_EQ(result, rank == 1 ? WEIR_OK : WEIR_ERROR_TIMEOUT);
          const std::string text = weir_last_error(comm);
          EXPECT_TRUE(rank == 1 ||
                      text.find("; rank 1 called all_reduce(int32, sum, count 0) on memory of a "
                                "device") != text.npos)
              << rank << ": " << text;
          here.meet(n);
        },
        over(is_mapped));
  }
}

}  // namespace
}  // namespace weir::test
