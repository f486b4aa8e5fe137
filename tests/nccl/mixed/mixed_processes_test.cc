// SPDX-License-Identifier: Apache-2.0
// Ranks on devices and ranks on the host in one communicator, as processes. Those on the host make
// no call to CUDA; those on devices share device 0.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>

#include "nccl/mixed/mixed_support.h"
#include "nccl/processes.h"
#include "support/shared_counter.h"

namespace weir::nccl::test {
namespace {

void run_ranks(std::string_view kinds, const MixedBody& body, bool ends_well = true) {
  EXPECT_EQ(run_processes(
                static_cast<int>(kinds.size()),
                [&](int rank, ncclComm_t comm) {
                  {
                    const MixedRank it(kinds, rank, comm);
                    body(it);
                  }
                  EXPECT_NCCL(ends_well ? ncclCommDestroy(comm) : ncclCommAbort(comm));
                },
                [&](int rank) {
                  if (MixedRank::is_on_device(kinds, rank)) use_device(0);
                }),
            std::vector<int>(kinds.size(), 0))
      << kinds;
}

TEST(NcclMixedProcesses, EveryCollectiveOfEverySize) {
  for (const char* kinds : {"dh", "hdh", "ddhh"}) run_ranks(kinds, every_collective);
}
TEST(NcclMixedProcesses, MessagesInGroupsAndAlone) {
  for (const char* kinds : {"dh", "hdh", "ddhh"}) run_ranks(kinds, messages);
}
TEST(NcclMixedProcesses, GroupsMeetCallsOneByOne) {
  for (const char* kinds : {"dh", "hdh", "ddhh"}) run_ranks(kinds, groups);
}
TEST(NcclMixedProcesses, GroupsOfCollectivesAndMessages) {
  for (const char* kinds : {"dh", "hdh", "ddhh"}) run_ranks(kinds, groups_of_both);
}
TEST(NcclMixedProcesses, DevicesAreFarAhead) {
  for (const char* kinds : {"dh", "ddhh"}) run_ranks(kinds, far_ahead);
}
TEST(NcclMixedProcesses, FactorsLieOnDevicesOrNot) {
  for (const char* kinds : {"dh", "hd", "ddhh"}) run_ranks(kinds, factors);
}
TEST(NcclMixedProcesses, ACommunicatorIsSplitByKind) { run_ranks("dhhd", splits); }
TEST(NcclMixedProcesses, DifferentCallsAreToldToAll) {
  for (const char* kinds : {"dh", "hd"}) run_ranks(kinds, different_calls, false);
}

// With the default deadline, which is half an hour.
TEST(NcclMixedProcesses, ARankThatDiesIsNamedToRanksOfBothKinds) {
  for (const char* kinds : {"dhdh", "hdhd"}) {
    const weir::test::SharedCounter seen;
    run_ranks(
        kinds,
        [&](const MixedRank& rank) {
          constexpr size_t kCount = 30011;
          const MixedArray data(rank, kCount);
          data.set(numbers(kCount, rank.rank(), 0));
          const auto sum = [&] {
            return ncclAllReduce(data.data(), data.data(), kCount, ncclInt, ncclSum, rank.comm(),
                                 rank.nccl_stream());
          };
          EXPECT_NCCL(sum());
          rank.synchronize();
          if (rank.rank() == 1) _exit(0);
          const auto begin = std::chrono::steady_clock::now();
          const ncclResult_t result = sum();
          rank.synchronize();
          EXPECT_EQ(rank.on_device() ? async_error(rank.comm()) : result, ncclRemoteError);
          EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
          const std::string text = ncclGetLastError(rank.comm());
          EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
          seen.meet(3);
        },
        false);
  }
}

}  // namespace
}  // namespace weir::nccl::test
