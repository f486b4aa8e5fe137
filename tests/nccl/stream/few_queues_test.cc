// SPDX-License-Identifier: Apache-2.0
// Ranks of one process that share a device and its single hardware queue: what is submitted
// together runs, and what is not is refused with the remedy.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "nccl/stream/graph_support.h"

namespace weir::nccl::test {
namespace {

// Read at the first calls.
const bool kEnvironment = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1) == 0 &&
                          setenv("WEIR_NCCL_CHUNK_BYTES", "4KiB", 1) == 0 &&
                          setenv("WEIR_TIMEOUT_MS", "3000", 1) == 0;

class NcclFewQueues : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(kEnvironment);
    use_device(0);
  }
};

void expect_refused(const std::string& text) {
  for (const char* part : {"ncclAllReduce, rank ", "share a device and its one hardware queue",
                           "CUDA_DEVICE_MAX_CONNECTIONS to at least 2", "into one group"}) {
    EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
  }
}

TEST_F(NcclFewQueues, CallsOfThreadsAreRefusedAndNoStreamWaits) {
  WEIR_NEEDS_HARDWARE_QUEUES();
  std::barrier ended(2);
  std::atomic<int> refused{0};
  run_threads(2, [&](int rank, ncclComm_t comm) {
    use_device(0);
    const Stream stream;
    const Array data(MemoryKind::kDevice, 3000);
    data.set(numbers(3000, rank, 1));
    const ncclResult_t result =
        ncclAllReduce(data.data(), data.data(), 3000, ncclInt, ncclSum, comm, stream.nccl());
    // The other rank's refusal may have ended the communicator before.
    if (result == ncclInvalidUsage) {
      ++refused;
      expect_refused(ncclGetLastError(comm));
    }
    EXPECT_NE(result, ncclSuccess);
    EXPECT_NE(async_error(comm), ncclSuccess);
    stream.synchronize();
    ended.arrive_and_wait();
  });
  EXPECT_GE(refused, 1);
}

// The first rank waits in its stream when the second one's call is refused.
TEST_F(NcclFewQueues, AStreamThatWaitsAlreadyIsReleased) {
  WEIR_NEEDS_HARDWARE_QUEUES();
  const StreamRanks ranks(2);
  const Array data(MemoryKind::kDevice, 3000);
  data.set(numbers(3000, 0, 1));
  const auto call_on = [&](int rank) {
    return ncclAllReduce(data.data(), data.data(), 3000, ncclInt, ncclSum, ranks.comm(rank),
                         ranks.stream(rank).nccl());
  };
  EXPECT_NCCL(call_on(0));
  EXPECT_EQ(call_on(1), ncclInvalidUsage);
  expect_refused(ncclGetLastError(ranks.comm(1)));
  ranks.synchronize();
  EXPECT_NE(async_error(ranks.comm(0)), ncclSuccess);
}

TEST_F(NcclFewQueues, AGroupOfAllRanksRunsInOneQueue) {
  const StreamRanks ranks(3);
  for (const size_t count : {size_t{1}, size_t{5001}, size_t{40007}}) {
    std::vector<Exchange> exchanges;
    for (const Kind kind : kKinds) exchanges.emplace_back(kind, 3, count, 1, 7, device);
    ASSERT_NCCL(ncclGroupStart());
    for (int r = 0; r < 3; ++r) {
      for (const Exchange& it : exchanges) {
        EXPECT_NCCL(it.call_on(r, ranks.comm(r), ranks.stream(r)));
      }
    }
    ASSERT_NCCL(ncclGroupEnd());
    ranks.synchronize();
    for (const Exchange& it : exchanges) it.check();
  }
}

TEST_F(NcclFewQueues, MessagesAreRefusedOnlyBetweenRanksThatAreNotInTheGroup) {
  WEIR_NEEDS_HARDWARE_QUEUES();
  const StreamRanks ranks(3);
  const Array out(MemoryKind::kDevice, 9000);
  const Array in(MemoryKind::kDevice, 9000);
  out.set(numbers(9000, 0, 5));
  const auto send = [&](int from, int to) {
    return ncclSend(out.data(), 9000, ncclInt, to, ranks.comm(from), ranks.stream(from).nccl());
  };
  const auto receive = [&](int from, int to) {
    return ncclRecv(in.data(), 9000, ncclInt, from, ranks.comm(to), ranks.stream(to).nccl());
  };
  for (const int to : {0, 1}) {  // rank 2 is not needed
    in.set(std::vector<int>(9000, kUntouched));
    ASSERT_NCCL(ncclGroupStart());
    EXPECT_NCCL(send(0, to));
    EXPECT_NCCL(receive(0, to));
    EXPECT_NCCL(ncclGroupEnd());
    ranks.synchronize();
    EXPECT_EQ(in.get(), out.get());
  }
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(async_error(ranks.comm(rank)), ncclSuccess);
  ASSERT_NCCL(ncclGroupStart());  // so that it is known where each rank has its stream
  for (int rank = 0; rank < 3; ++rank) EXPECT_NCCL(send(rank, rank));
  for (int rank = 0; rank < 3; ++rank) EXPECT_NCCL(receive(rank, rank));
  EXPECT_NCCL(ncclGroupEnd());
  ranks.synchronize();
  EXPECT_EQ(send(0, 1), ncclInvalidUsage);
  expect_error_with({"ncclSend, rank 0 of 3", "ranks 0-2 of this process"});
}

// Rank 1 is in the group, but does not send what rank 0 waits for.
TEST_F(NcclFewQueues, ADeadlineTellsOfTheQueuesThatRanksShare) {
  WEIR_NEEDS_HARDWARE_QUEUES();
  const StreamRanks ranks(2);
  const Array in(MemoryKind::kDevice, 100);
  const Array own(MemoryKind::kDevice, 100);
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclRecv(in.data(), 100, ncclInt, 1, ranks.comm(0), ranks.stream(0).nccl()));
  EXPECT_NCCL(ncclSend(own.data(), 100, ncclInt, 1, ranks.comm(1), ranks.stream(1).nccl()));
  EXPECT_NCCL(ncclRecv(own.data(), 100, ncclInt, 1, ranks.comm(1), ranks.stream(1).nccl()));
  EXPECT_NCCL(ncclGroupEnd());
  ranks.synchronize();
  EXPECT_NE(async_error(ranks.comm(0)), ncclSuccess);
  const std::string text = ncclGetLastError(ranks.comm(0));
  EXPECT_NE(text.find("ranks 0, 1 of this process share a device and its one hardware queue "
                      "(CUDA_DEVICE_MAX_CONNECTIONS)"),
            std::string::npos)
      << text;
}

TEST_F(NcclFewQueues, RanksThatHaveADeviceEachMayCallOneByOne) {
  WEIR_NEEDS_DEVICES(2);
  std::vector<Array> data;
  const AllRanks ranks(2);
  std::vector<Stream> streams;
  for (int r = 0; r < 2; ++r) {
    use_device(r);
    streams.emplace_back();
    data.emplace_back(MemoryKind::kDevice, 30000);
    data.back().set(std::vector<int>(30000, r + 1));
  }
  for (int round = 0; round < 3; ++round) {
    for (int r = 0; r < 2; ++r) {
      use_device(r);
      int* at = data[static_cast<size_t>(r)].data();
      EXPECT_NCCL(ncclAllReduce(at, at, 30000, ncclInt, ncclSum, ranks[r],
                                streams[static_cast<size_t>(r)].nccl()));
    }
  }
  for (int r = 0; r < 2; ++r) {
    use_device(r);
    streams[static_cast<size_t>(r)].synchronize();
    EXPECT_EQ(data[static_cast<size_t>(r)].get(), std::vector<int>(30000, 12));
  }
}

TEST_F(NcclFewQueues, GroupsAreCapturedIntoOneGraphAndNotIntoSeveral) {
  WEIR_NEEDS_HARDWARE_QUEUES();
  const StreamRanks ranks(2);
  std::vector<Array> data;
  for (int r = 0; r < 2; ++r) data.emplace_back(MemoryKind::kDevice, 3000);
  const auto call_all = [&] {
    ncclResult_t result = ncclSuccess;
    EXPECT_NCCL(ncclGroupStart());
    for (size_t r = 0; r < 2; ++r) {
      const int rank = static_cast<int>(r);
      EXPECT_NCCL(ncclAllReduce(data[r].data(), data[r].data(), 3000, ncclInt, ncclSum,
                                ranks.comm(rank), ranks.stream(rank).nccl()));
    }
    result = ncclGroupEnd();
    return result;
  };
  // The second stream joins the first one's capture by an event, and comes back.
  const LaunchEvent begins;
  const LaunchEvent ends;
  const Graph graph(ranks.stream(0), [&] {
    EXPECT_CUDA(cuEventRecord(begins.get(), ranks.stream(0).get()));
    EXPECT_CUDA(cuStreamWaitEvent(ranks.stream(1).get(), begins.get(), 0));
    EXPECT_NCCL(call_all());
    EXPECT_CUDA(cuEventRecord(ends.get(), ranks.stream(1).get()));
    EXPECT_CUDA(cuStreamWaitEvent(ranks.stream(0).get(), ends.get(), 0));
  });
  for (int round = 0; round < 3; ++round) {
    for (size_t r = 0; r < 2; ++r) {
      data[r].set(std::vector<int>(3000, static_cast<int>(r) + round));
    }
    graph.launch(ranks.stream(0));
    ranks.stream(0).synchronize();
    for (const Array& it : data) EXPECT_EQ(it.get(), std::vector<int>(3000, 1 + 2 * round));
  }
  const Graph first(ranks.stream(0), [&] {
    const Graph second(ranks.stream(1), [&] { EXPECT_EQ(call_all(), ncclInvalidUsage); });
  });
  expect_error_with({"CUDA_DEVICE_MAX_CONNECTIONS", "captured into one graph"});
}

}  // namespace
}  // namespace weir::nccl::test
