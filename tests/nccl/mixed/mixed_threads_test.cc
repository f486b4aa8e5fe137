// SPDX-License-Identifier: Apache-2.0
// Ranks on devices and ranks on the host in one communicator, as threads of one process.
#include <gtest/gtest.h>

#include "nccl/mixed/mixed_support.h"
#include "nccl/stream/graph_support.h"

namespace weir::nccl::test {
namespace {

// Each rank on a device has one of its own, and not number 0: that one is of the threads which have
// chosen none.
void run_ranks(std::string_view kinds, const MixedBody& body, bool ends_well = true,
               int first_device = 1) {
  WEIR_NEEDS_DEVICES(first_device + static_cast<int>(kinds.find_last_of('d')) + 1);
  const ncclUniqueId id = make_id();
  const auto n = static_cast<int>(kinds.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      if (MixedRank::is_on_device(kinds, rank)) use_device(first_device + rank);
      ncclComm_t comm = nullptr;
      ASSERT_NCCL(ncclCommInitRank(&comm, n, id, rank));
      {
        const MixedRank it(kinds, rank, comm);
        body(it);
      }
      EXPECT_NCCL(ends_well ? ncclCommDestroy(comm) : ncclCommAbort(comm));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(NcclMixedThreads, EveryCollectiveOfEverySize) {
  for (const char* kinds : {"dh", "hdh", "ddhh"}) run_ranks(kinds, every_collective);
}
TEST(NcclMixedThreads, MessagesInGroupsAndAlone) {
  for (const char* kinds : {"dh", "hdh", "ddhh"}) run_ranks(kinds, messages);
}
TEST(NcclMixedThreads, GroupsMeetCallsOneByOne) {
  for (const char* kinds : {"dh", "hdh", "ddhh"}) run_ranks(kinds, groups);
}
TEST(NcclMixedThreads, GroupsOfCollectivesAndMessages) {
  for (const char* kinds : {"dh", "hdh", "ddhh"}) run_ranks(kinds, groups_of_both);
}
TEST(NcclMixedThreads, DevicesAreFarAhead) {
  for (const char* kinds : {"dh", "ddhh"}) run_ranks(kinds, far_ahead);
}
TEST(NcclMixedThreads, FactorsLieOnDevicesOrNot) {
  for (const char* kinds : {"dh", "hd", "ddhh"}) run_ranks(kinds, factors);
}
TEST(NcclMixedThreads, ACommunicatorIsSplitByKind) { run_ranks("dhhd", splits); }
TEST(NcclMixedThreads, DifferentCallsAreToldToAll) {
  for (const char* kinds : {"dh", "hd"}) run_ranks(kinds, different_calls, false);
}

// With one hardware queue, too: the rank on the host is none that shares it. On the stand-in these
// two ranks would be direct, and so share device 0.
TEST(NcclMixedThreadsStaged, ARankWithoutADeviceDoesNotCountForDeviceZero) {
  WEIR_NEEDS_DEVICE_MEMORY();
  run_ranks("dh", far_ahead, true, 0);
}

TEST(NcclMixedThreadsGraphs, AGraphMeetsCalls) {
  run_ranks("dhd", [](const MixedRank& rank) {
    constexpr size_t kCount = 300001;
    const MixedArray data(rank, kCount);
    const auto sum = [&] {
      EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), kCount, ncclInt, ncclSum, rank.comm(),
                                rank.nccl_stream()));
    };
    std::optional<Graph> graph;
    if (rank.on_device()) graph.emplace(rank.stream(), sum);
    for (int round = 0; round < 5; ++round) {
      data.set(numbers(kCount, rank.rank(), round));
      if (rank.on_device()) {
        graph->launch(rank.stream());
      } else {
        sum();
      }
      rank.synchronize();
      std::vector<int> wanted(kCount);
      for (int r = 0; r < rank.size(); ++r) {
        const auto of_rank = numbers(kCount, r, round);
        for (size_t i = 0; i < kCount; ++i) wanted[i] += of_rank[i];
      }
      EXPECT_TRUE(data.get() == wanted);
    }
  });
}

}  // namespace
}  // namespace weir::nccl::test
