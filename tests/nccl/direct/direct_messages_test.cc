// SPDX-License-Identifier: Apache-2.0
// Messages between devices as work of streams alone: that each message meets its own whatever is
// grouped with what, and what goes wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "nccl/direct/direct_support.h"
#include "nccl/stream/graph_support.h"

namespace weir::nccl::test {
namespace {

class NcclDirectMessages : public DirectTest {
 protected:
  void SetUp() override {
    if (WEIR_TEST_HAS_KERNELS == 0) GTEST_SKIP() << "built without nvcc, so without kernels";
    DirectTest::SetUp();
  }
};
using NcclDirectMessageGraphs = NcclDirectMessages;
using NcclDirectMessageFaults = NcclDirectMessages;

// Of several lanes; of several pieces; of more than the slots of a pair hold.
constexpr size_t kCount = 30011;
constexpr size_t kLong = 12 * 16384 + 5;
constexpr size_t kHuge = size_t{2} << 20;

// One rank's memory for a message, sent or received.
struct Buffer {
  Buffer(MemoryKind kind, size_t size) : memory(kind, size) {
    memory.set(std::vector<int>(size, kUntouched));
  }
  Buffer(MemoryKind kind, const std::vector<int>& values) : memory(kind, values.size()) {
    memory.set(values);
  }
  Array memory;
};

ncclResult_t send(const StreamRanks& ranks, int from, int to, const Buffer& it) {
  return ncclSend(it.memory.data(), it.memory.size(), ncclInt, to, ranks.comm(from),
                  ranks.stream(from).nccl());
}
ncclResult_t receive(const StreamRanks& ranks, int at, int from, const Buffer& it) {
  return ncclRecv(it.memory.data(), it.memory.size(), ncclInt, from, ranks.comm(at),
                  ranks.stream(at).nccl());
}

TEST_F(NcclDirectMessages, DoNotPassThroughHostMemory) {
  WEIR_NEEDS_QUEUES(8);
  const StreamRanks ranks(3);
  std::vector<Buffer> out;
  std::vector<Buffer> in;
  for (int r = 0; r < 3; ++r) {
    use_device_of(r);
    out.emplace_back(MemoryKind::kDevice, numbers(kCount, r, 1));
    in.emplace_back(MemoryKind::kDevice, kCount);
  }
  use_device_of(0);
  const int before = host_copies();
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < 3; ++r) {
    EXPECT_NCCL(send(ranks, r, (r + 1) % 3, out[static_cast<size_t>(r)]));
    EXPECT_NCCL(receive(ranks, r, (r + 2) % 3, in[static_cast<size_t>(r)]));
  }
  ASSERT_NCCL(ncclGroupEnd());
  ranks.synchronize();
  EXPECT_EQ(host_copies(), before);
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(in[static_cast<size_t>(r)].memory.get(), numbers(kCount, (r + 2) % 3, 1));
  }
}

TEST_F(NcclDirectMessages, NeedNoGroupAndReturnBeforeTheirStreams) {
  WEIR_NEEDS_QUEUES(8);
  const StreamRanks ranks(2);
  const Buffer out(MemoryKind::kDevice, numbers(kCount, 0, 2));
  const Buffer in(MemoryKind::kDevice, kCount);
  Gate gate(ranks.stream(0));
  EXPECT_NCCL(send(ranks, 0, 1, out));
  EXPECT_NCCL(receive(ranks, 1, 0, in));
  EXPECT_FALSE(ranks.stream(0).idle());
  EXPECT_FALSE(ranks.stream(1).idle());
  gate.open();
  ranks.synchronize();
  EXPECT_EQ(in.memory.get(), numbers(kCount, 0, 2));
}

TEST_F(NcclDirectMessages, ToOneselfInAGroup) {
  WEIR_NEEDS_QUEUES(8);
  const StreamRanks ranks(2);
  const Buffer out(MemoryKind::kDevice, numbers(kCount, 0, 3));
  const Buffer in(MemoryKind::kDevice, kCount);
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_NCCL(send(ranks, 0, 0, out));
  EXPECT_NCCL(receive(ranks, 0, 0, in));
  ASSERT_NCCL(ncclGroupEnd());
  ranks.synchronize();
  EXPECT_EQ(in.memory.get(), numbers(kCount, 0, 3));
}

TEST_F(NcclDirectMessages, EachEndMayHaveMemoryOfAnyKind) {
  WEIR_NEEDS_QUEUES(8);
  const StreamRanks ranks(2);
  constexpr MemoryKind kKinds[] = {MemoryKind::kDevice, MemoryKind::kPinned, MemoryKind::kHost};
  int seed = 0;
  for (const MemoryKind sends : kKinds) {
    for (const MemoryKind receives : kKinds) {
      for (const size_t count : {size_t{0}, size_t{10}, kCount, kLong}) {
        const Buffer out(sends, numbers(count, 0, ++seed));
        const Buffer in(receives, count);
        EXPECT_NCCL(send(ranks, 0, 1, out));
        EXPECT_NCCL(receive(ranks, 1, 0, in));
        ranks.synchronize();
        EXPECT_EQ(in.memory.get(), numbers(count, 0, seed))
            << static_cast<int>(sends) << " to " << static_cast<int>(receives);
      }
    }
  }
}

// The k-th send to a peer meets its k-th receive, in a group or not.
TEST_F(NcclDirectMessages, SeveralOfOnePairKeepTheirOrderThoughOneEndGroupsThem) {
  WEIR_NEEDS_QUEUES(8);
  const StreamRanks ranks(2);
  for (const bool sender_groups : {true, false}) {
    for (const MemoryKind receives : {MemoryKind::kDevice, MemoryKind::kPinned}) {
      std::vector<Buffer> out;
      std::vector<Buffer> in;
      int seed = 0;
      for (const size_t count : {kLong, size_t{100}, kLong, kCount, kCount, size_t{7}, kLong}) {
        out.emplace_back(MemoryKind::kDevice, numbers(count, 0, ++seed));
        in.emplace_back(receives, count);
      }
      const auto call_all = [](bool grouped, const std::vector<Buffer>& buffers, const auto& one) {
        EXPECT_NCCL(grouped ? ncclGroupStart() : ncclSuccess);
        for (const Buffer& it : buffers) EXPECT_NCCL(one(it));
        EXPECT_NCCL(grouped ? ncclGroupEnd() : ncclSuccess);
      };
      call_all(sender_groups, out, [&](const Buffer& it) { return send(ranks, 0, 1, it); });
      call_all(!sender_groups, in, [&](const Buffer& it) { return receive(ranks, 1, 0, it); });
      ranks.synchronize();
      for (size_t i = 0; i < in.size(); ++i) {
        EXPECT_EQ(in[i].memory.get(), out[i].memory.get()) << i;
      }
    }
  }
}

// One rank has both in a group; the other sends only what it has received, and worked on.
TEST_F(NcclDirectMessages, ThoseOfAGroupDoNotWaitForEachOther) {
  WEIR_NEEDS_QUEUES(8);
  for (const char* forbidden : {"0", "1"}) {
    setenv("NCCL_P2P_DISABLE", forbidden, 1);
    const StreamRanks ranks(2);
    unsetenv("NCCL_P2P_DISABLE");
    const Buffer out(MemoryKind::kDevice, numbers(kLong, 0, 5));
    const Buffer there(MemoryKind::kDevice, kLong);
    const Buffer back(MemoryKind::kDevice, kLong);
    const Exchange sum(Kind::kAllReduce, 2, kLong, 0, 5, device);
    EXPECT_NCCL(receive(ranks, 1, 0, there));
    EXPECT_NCCL(send(ranks, 1, 0, there));
    EXPECT_NCCL(sum.call_on(1, ranks.comm(1), ranks.stream(1)));
    ASSERT_NCCL(ncclGroupStart());
    EXPECT_NCCL(sum.call_on(0, ranks.comm(0), ranks.stream(0)));
    EXPECT_NCCL(receive(ranks, 0, 1, back));
    EXPECT_NCCL(send(ranks, 0, 1, out));
    ASSERT_NCCL(ncclGroupEnd());
    ranks.synchronize();
    EXPECT_EQ(back.memory.get(), numbers(kLong, 0, 5)) << forbidden;
    sum.check();
  }
}

TEST_F(NcclDirectMessages, BetweenDifferentDevicesOfOneProcess) {
  WEIR_NEEDS_DEVICES(2);
  WEIR_NEEDS_QUEUES_OF_A_DEVICE(8);
  run_threads(2, [](int rank, ncclComm_t comm) {
    use_device(rank);
    const Stream stream;
    const Array mine(MemoryKind::kDevice, kCount);
    const Array theirs(MemoryKind::kDevice, kCount);
    mine.set(numbers(kCount, rank, 1));
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclSend(mine.data(), kCount, ncclInt, 1 - rank, comm, stream.nccl()));
    EXPECT_NCCL(ncclRecv(theirs.data(), kCount, ncclInt, 1 - rank, comm, stream.nccl()));
    EXPECT_NCCL(ncclGroupEnd());
    stream.synchronize();
    EXPECT_EQ(theirs.get(), numbers(kCount, 1 - rank, 1));
  });
}

TEST_F(NcclDirectMessageGraphs, EveryLaunchOfAGraphSendsAgain) {
  WEIR_NEEDS_QUEUES(8);
  run_device_threads(2, [](int rank, ncclComm_t comm) {
    const Stream stream;
    const Array mine(MemoryKind::kDevice, kCount);
    const Array theirs(MemoryKind::kDevice, kCount);
    launch_again_and_again(
        stream, mine, rank,
        [&] {
          EXPECT_NCCL(ncclGroupStart());
          EXPECT_NCCL(ncclSend(mine.data(), kCount, ncclInt, 1 - rank, comm, stream.nccl()));
          EXPECT_NCCL(ncclRecv(theirs.data(), kCount, ncclInt, 1 - rank, comm, stream.nccl()));
          EXPECT_NCCL(ncclGroupEnd());
        },
        [&](int round) { EXPECT_EQ(theirs.get(), numbers(kCount, 1 - rank, round)) << round; });
  });
}

// ---- What goes wrong ----------------------------------------------------------------------------

// A sender whose message fits into the slots of the pair has ended; it learns it from the receiver.
TEST_F(NcclDirectMessages, OfDifferentLengthsAreToldToBothRanks) {
  WEIR_NEEDS_QUEUES(8);
  for (const size_t count : {size_t{1000}, kCount, kHuge}) {
    for (const size_t received : {size_t{0}, size_t{10}, count + 1}) {
      const StreamRanks ranks(2);
      const Buffer out(MemoryKind::kDevice, numbers(count, 0, 1));
      use_device_of(1);
      const Buffer in(MemoryKind::kDevice, std::max(received, size_t{1}));
      use_device_of(0);
      EXPECT_NCCL(send(ranks, 0, 1, out));
      EXPECT_NCCL(
          ncclRecv(in.memory.data(), received, ncclInt, 0, ranks.comm(1), ranks.stream(1).nccl()));
      ranks.synchronize();
      for (int r = 1; r >= (count == kHuge ? 0 : 1); --r) {
        EXPECT_NE(async_error(ranks.comm(r)), ncclSuccess);
        const std::string text = ncclGetLastError(ranks.comm(r));
        for (const std::string& part :
             {"rank " + std::to_string(r) + " of 2: ", "rank 0 sends " + std::to_string(4 * count) +
                                                           " bytes, rank 1 receives " +
                                                           std::to_string(4 * received) + ":"}) {
          EXPECT_NE(text.find(part), std::string::npos) << text;
        }
      }
      EXPECT_EQ(in.memory.get(), std::vector<int>(in.memory.size(), kUntouched));
    }
  }
}

TEST_F(NcclDirectMessages, AbortReleasesBothEnds) {
  for (const bool sends : {true, false}) {
    for (const int aborts : {0, 1}) {
      ncclComm_t comms[2] = {};
      ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
      const Stream stream;
      const Array data(MemoryKind::kDevice, kHuge);
      EXPECT_NCCL(sends ? ncclSend(data.data(), kHuge, ncclInt, 1, comms[0], stream.nccl())
                        : ncclRecv(data.data(), kHuge, ncclInt, 1, comms[0], stream.nccl()));
      EXPECT_NCCL(ncclCommAbort(comms[aborts]));
      stream.synchronize();
      if (aborts == 1) {
        EXPECT_EQ(async_error(comms[0]), ncclRemoteError);
      }
      EXPECT_NCCL(ncclCommAbort(comms[1 - aborts]));
    }
  }
}

TEST_F(NcclDirectMessages, AReceiverThatComesAfterTheDeadlineIsRefused) {
  WEIR_NEEDS_QUEUES(8);
  const std::vector<Stream> streams = streams_of_ranks(2);
  ncclComm_t comms[2] = {};
  setenv("WEIR_TIMEOUT_MS", "1000", 1);
  ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
  unsetenv("WEIR_TIMEOUT_MS");
  const Buffer out(MemoryKind::kDevice, numbers(kHuge, 0, 1));
  use_device_of(1);
  const Buffer in(MemoryKind::kDevice, kHuge);
  use_device_of(0);
  EXPECT_NCCL(ncclSend(out.memory.data(), kHuge, ncclInt, 1, comms[0], streams[0].nccl()));
  streams[0].synchronize();
  EXPECT_EQ(async_error(comms[0]), ncclRemoteError);
  const std::string text = ncclGetLastError(comms[0]);
  EXPECT_EQ(text.find("ncclSend, rank 0 of 2: nothing has moved for 1000 ms, the deadline; rank 1 "
                      "did not receive what this rank sends"),
            0U)
      << text;
  const ncclResult_t late =
      ncclRecv(in.memory.data(), kHuge, ncclInt, 0, comms[1], streams[1].nccl());
  streams[1].synchronize();
  EXPECT_TRUE(late == ncclRemoteError || async_error(comms[1]) == ncclRemoteError);
  for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommAbort(comm));
}

// Which the strict libcuda brings about.
TEST_F(NcclDirectMessageFaults, AKernelThatCudaRefusesIsToldByItsRankAndToTheOther) {
  WEIR_NEEDS_STRICT_CUDA();
  WEIR_NEEDS_QUEUES(8);
  ncclComm_t comms[2] = {};
  ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
  const std::vector<Stream> streams = streams_of_ranks(2);
  const Buffer out(MemoryKind::kDevice, numbers(kCount, 0, 1));
  use_device_of(1);
  const Buffer in(MemoryKind::kDevice, kCount);
  use_device_of(0);
  EXPECT_NCCL(ncclRecv(in.memory.data(), kCount, ncclInt, 0, comms[1], streams[1].nccl()));
  strict_cuda_fail("cuLaunchKernel", 0);
  EXPECT_EQ(ncclSend(out.memory.data(), kCount, ncclInt, 1, comms[0], streams[0].nccl()),
            ncclUnhandledCudaError);
  for (const Stream& stream : streams) stream.synchronize();
  EXPECT_EQ(async_error(comms[0]), ncclUnhandledCudaError);
  EXPECT_NE(std::string(ncclGetLastError(comms[0])).find("cuLaunchKernel"), std::string::npos);
  EXPECT_EQ(async_error(comms[1]), ncclRemoteError);
  for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommAbort(comm));
}

}  // namespace
}  // namespace weir::nccl::test
