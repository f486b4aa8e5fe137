// SPDX-License-Identifier: Apache-2.0
// Operations of libnccl.so.2 in stream order: on a CUDA whose streams run by themselves and whose
// device memory no host can touch.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "nccl/stream/stream_support.h"

namespace weir::nccl::test {
namespace {

// Small pieces, so that there are many; settings are read at the first call.
const int kEnvironment = setenv("WEIR_NCCL_CHUNK_BYTES", "4KiB", 1);

class NcclStreams : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(kEnvironment, 0);
    use_device(0);
  }
};

// Sizes of nothing, one piece, and many pieces with a rest: a piece has 4 KiB here.
constexpr size_t kCounts[] = {0, 1, 1000, 5001};

TEST_F(NcclStreams, EveryCollectiveMovesDeviceMemory) {
  const StreamRanks ranks(3);
  int seed = 0;
  for (const Kind kind : kKinds) {
    for (const size_t count : kCounts) {
      const Exchange it(kind, 3, count, seed % 3, seed, device);
      ++seed;
      ASSERT_NCCL(ncclGroupStart());
      for (int r = 0; r < 3; ++r) EXPECT_NCCL(it.call_on(r, ranks.comm(r), ranks.stream(r)));
      ASSERT_NCCL(ncclGroupEnd());
      ranks.synchronize();
      it.check();
    }
  }
}

// Whoever waits for the event waits for all that is before the call, and for no other rank.
TEST_F(NcclStreams, ALaunchEventIsRecordedWhenTheStreamHasReachedTheCall) {
  WEIR_NEEDS_QUEUES_OF_A_DEVICE(8);
  const StreamRanks ranks(2);
  const Stream after;
  for (const MemoryKind kind : {MemoryKind::kDevice, MemoryKind::kPinned}) {
    for (const size_t count : {size_t{1}, size_t{1000}, size_t{50001}}) {
      std::vector<Array> data;
      for (int r = 0; r < 2; ++r) {
        data.emplace_back(kind, count);
        data.back().set(numbers(count, r, 1));
      }
      const LaunchEvent event;
      Gate gate(ranks.stream(0));
      ASSERT_NCCL(event.sum(data[0], ranks.comm(0), ranks.stream(0)));
      EXPECT_CUDA(cuStreamWaitEvent(after.get(), event.get(), 0));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_FALSE(after.idle()) << "the stream has not reached the call";
      gate.open();
      after.synchronize();
      EXPECT_FALSE(ranks.stream(0).idle()) << "rank 1 has not called";
      ASSERT_NCCL(ncclAllReduce(data[1].data(), data[1].data(), count, ncclInt, ncclSum,
                                ranks.comm(1), ranks.stream(1).nccl()));
      ranks.synchronize();
      std::vector<int> sum = numbers(count, 0, 1);
      const std::vector<int> other = numbers(count, 1, 1);
      for (size_t i = 0; i < count; ++i) sum[i] += other[i];
      for (const Array& it : data) EXPECT_EQ(it.get(), sum);
    }
  }
}

TEST_F(NcclStreams, AGroupTakesOneLaunchEventOfEachCommunicator) {
  const StreamRanks ranks(2);
  const Array data[2] = {{MemoryKind::kDevice, 3000}, {MemoryKind::kDevice, 3000}};
  const LaunchEvent events[2];
  const auto call_all = [&](bool twice) {
    for (const Array& it : data) it.set(std::vector<int>(3000, 5));
    ASSERT_NCCL(ncclGroupStart());
    for (int r = 0; r < 2; ++r) {
      EXPECT_NCCL(events[r].sum(data[r], ranks.comm(r), ranks.stream(r)));
    }
    if (twice) {
      EXPECT_EQ(events[1].sum(data[0], ranks.comm(0), ranks.stream(0)), ncclInvalidUsage);
      expect_error_with({"launchCompletionEvent", "rank 0 of 2", "only one"});
    }
    EXPECT_EQ(ncclGroupEnd(), twice ? ncclInvalidUsage : ncclSuccess);
    const Stream after;
    for (const LaunchEvent& it : events) EXPECT_CUDA(cuStreamWaitEvent(after.get(), it.get(), 0));
    after.synchronize();
    ranks.synchronize();
    for (const Array& it : data) EXPECT_EQ(it.get(), std::vector<int>(3000, twice ? 5 : 10));
  };
  call_all(true);
  call_all(false);
}

TEST_F(NcclStreams, RanksMayUseDifferentKindsOfMemoryInOneCall) {
  const StreamRanks ranks(3);
  int seed = 0;
  for (const Kind kind : kKinds) {
    for (const size_t count : {size_t{17}, size_t{4001}}) {
      const Exchange it(kind, 3, count, seed % 3, seed,
                        [&](int i) { return static_cast<MemoryKind>((i * i + seed) % 3); });
      ++seed;
      ASSERT_NCCL(ncclGroupStart());
      for (int r = 0; r < 3; ++r) EXPECT_NCCL(it.call_on(r, ranks.comm(r), ranks.stream(r)));
      ASSERT_NCCL(ncclGroupEnd());
      ranks.synchronize();
      it.check();
    }
  }
}

TEST_F(NcclStreams, OperationsInPlaceOnDeviceMemory) {
  constexpr size_t kCount = 5000;
  const StreamRanks ranks(3);
  std::vector<Array> sums;
  std::vector<Array> gathered;
  std::vector<Array> scattered;
  std::vector<std::vector<int>> values;
  for (int r = 0; r < 3; ++r) {
    values.push_back(numbers(3 * kCount, r, 5));
    for (auto* arrays : {&sums, &gathered, &scattered}) {
      arrays->emplace_back(MemoryKind::kDevice, 3 * kCount);
      arrays->back().set(values.back());
    }
  }
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < 3; ++r) {
    const auto i = static_cast<size_t>(r);
    const cudaStream_t stream = ranks.stream(r).nccl();
    EXPECT_NCCL(ncclAllReduce(sums[i].data(), sums[i].data(), 3 * kCount, ncclInt, ncclSum,
                              ranks.comm(r), stream));
    EXPECT_NCCL(ncclAllGather(gathered[i].data() + i * kCount, gathered[i].data(), kCount, ncclInt,
                              ranks.comm(r), stream));
    EXPECT_NCCL(ncclReduceScatter(scattered[i].data(), scattered[i].data() + i * kCount, kCount,
                                  ncclInt, ncclSum, ranks.comm(r), stream));
  }
  ASSERT_NCCL(ncclGroupEnd());
  ranks.synchronize();
  const auto sum = expected(Kind::kAllReduce, values, 0, 3 * kCount, 0);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(sums[i].get(), sum);
    const auto all = gathered[i].get();
    for (size_t k = 0; k < 3 * kCount; ++k) ASSERT_EQ(all[k], values[k / kCount][k]);
    const auto mine = scattered[i].get();
    for (size_t k = i * kCount; k < (i + 1) * kCount; ++k) ASSERT_EQ(mine[k], sum[k]);
  }
}

TEST_F(NcclStreams, MessagesOfAGroupCrossWithManyPieces) {
  constexpr size_t kCount = 6000;
  const StreamRanks ranks(3);
  std::vector<Array> sends;
  std::vector<Array> recvs;
  std::vector<std::vector<int>> values;
  for (int r = 0; r < 3; ++r) {
    values.push_back(numbers(3 * kCount, r, 1));
    sends.emplace_back(MemoryKind::kDevice, 3 * kCount);
    recvs.emplace_back(MemoryKind::kDevice, 3 * kCount);
    sends.back().set(values.back());
  }
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < 3; ++r) {
    const auto i = static_cast<size_t>(r);
    for (int peer = 0; peer < 3; ++peer) {
      const size_t at = static_cast<size_t>(peer) * kCount;
      // Itself too, and with a length of its own for each pair.
      const size_t out = kCount - static_cast<size_t>(100 * r + 10 * peer);
      const size_t in = kCount - static_cast<size_t>(100 * peer + 10 * r);
      EXPECT_NCCL(ncclSend(sends[i].data() + at, out, ncclInt, peer, ranks.comm(r),
                           ranks.stream(r).nccl()));
      EXPECT_NCCL(
          ncclRecv(recvs[i].data() + at, in, ncclInt, peer, ranks.comm(r), ranks.stream(r).nccl()));
    }
  }
  ASSERT_NCCL(ncclGroupEnd());
  ranks.synchronize();
  for (size_t r = 0; r < 3; ++r) {
    const auto got = recvs[r].get();
    for (size_t peer = 0; peer < 3; ++peer) {
      for (size_t k = 0; k < kCount - (100 * peer + 10 * r); ++k) {
        ASSERT_EQ(got[peer * kCount + k], values[peer][r * kCount + k]);
      }
    }
  }
}

// ---- Order --------------------------------------------------------------------------------------

TEST_F(NcclStreams, ACallReturnsBeforeItsStreamHasComeToIt) {
  WEIR_NEEDS_QUEUES_OF_A_DEVICE(8);
  const StreamRanks ranks(2);
  const Exchange it(Kind::kAllReduce, 2, 3000, 0, 1, device);
  Gate gate(ranks.stream(0));
  // One after the other, and not in a group: the first would wait for the second.
  EXPECT_NCCL(it.call_on(0, ranks.comm(0), ranks.stream(0)));
  EXPECT_NCCL(it.call_on(1, ranks.comm(1), ranks.stream(1)));
  EXPECT_FALSE(ranks.stream(0).idle());
  EXPECT_FALSE(ranks.stream(1).idle());
  EXPECT_EQ(it.recvs[1].get()[0], kUntouched);
  gate.open();
  ranks.synchronize();
  it.check();
}

TEST_F(NcclStreams, ARankMayWorkForItsPeersBetweenItsCallAndTheWait) {
  WEIR_NEEDS_QUEUES(8);
  std::atomic<bool> told{false};
  run_device_threads(2, [&](int rank, ncclComm_t comm) {
    const Stream stream;
    const Array data(MemoryKind::kDevice, 100);
    data.set(numbers(100, rank, 3), stream);
    if (rank == 1) {
      while (!told) std::this_thread::yield();
    }
    EXPECT_NCCL(
        ncclAllReduce(data.data(), data.data(), 100, ncclInt, ncclSum, comm, stream.nccl()));
    if (rank == 0) told = true;
    stream.synchronize();
    EXPECT_EQ(data.get(stream),
              expected(Kind::kAllReduce, {numbers(100, 0, 3), numbers(100, 1, 3)}, rank, 100, 0));
  });
}

TEST_F(NcclStreams, AnEventLetsAnotherStreamUseTheResult) {
  WEIR_NEEDS_QUEUES(8);
  const StreamRanks ranks(2);
  const Stream other;
  const Exchange it(Kind::kAllGather, 2, 4000, 0, 9, device);
  Gate gate(ranks.stream(0));
  for (int r = 0; r < 2; ++r) EXPECT_NCCL(it.call_on(r, ranks.comm(r), ranks.stream(r)));
  cuda::Event event = nullptr;
  EXPECT_CUDA(cuEventCreate(&event, 0));
  EXPECT_CUDA(cuEventRecord(event, ranks.stream(1).get()));
  EXPECT_CUDA(cuStreamWaitEvent(other.get(), event, 0));
  const Array got(MemoryKind::kPinned, it.recvs[1].size());
  got.copy_of(it.recvs[1], other);
  EXPECT_FALSE(other.idle());
  gate.open();
  other.synchronize();
  EXPECT_EQ(got.get(), expected(Kind::kAllGather, it.values, 1, 4000, 0));
  ranks.synchronize();
  EXPECT_CUDA(cuEventDestroy_v2(event));
}

TEST_F(NcclStreams, AGroupOverSeveralStreamsWaitsForAllAndReleasesThemTogether) {
  WEIR_NEEDS_QUEUES_OF_A_DEVICE(8);
  const StreamRanks ranks(2);
  const Stream first;
  const Stream second;
  const Exchange on_first(Kind::kAllReduce, 2, 100, 0, 1, device);
  const Exchange on_second(Kind::kAllGather, 2, 3000, 0, 2, device);
  Gate gate(second);
  Stream peers;
  for (const int r : {0, 1}) {
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(on_first.call_on(r, ranks.comm(r), r == 0 ? first : peers));
    EXPECT_NCCL(on_second.call_on(r, ranks.comm(r), r == 0 ? second : peers));
    EXPECT_NCCL(ncclGroupEnd());
  }
  // Neither may start while the second stream has not come.
  EXPECT_EQ(on_first.recvs[1].get()[0], kUntouched);
  EXPECT_FALSE(first.idle());
  gate.open();
  first.synchronize();
  // The first is released after all of the group: the second's result is there.
  EXPECT_EQ(on_second.recvs[0].get(), expected(Kind::kAllGather, on_second.values, 0, 3000, 0));
  second.synchronize();
  peers.synchronize();
  on_first.check();
  on_second.check();
}

TEST_F(NcclStreams, CallsOnDifferentStreamsOfACommunicatorKeepTheirOrder) {
  WEIR_NEEDS_QUEUES(8);
  const StreamRanks ranks(2);
  const std::vector<Stream> others = streams_of_ranks(2);
  const Exchange early(Kind::kAllReduce, 2, 2500, 0, 1, device);
  const Exchange late(Kind::kReduceScatter, 2, 2500, 0, 2, device);
  Gate gate(ranks.stream(0));
  for (int r = 0; r < 2; ++r) {
    EXPECT_NCCL(early.call_on(r, ranks.comm(r), ranks.stream(r)));
    EXPECT_NCCL(late.call_on(r, ranks.comm(r), others[static_cast<size_t>(r)]));
  }
  gate.open();
  others[0].synchronize();
  early.check();  // it came before
  others[1].synchronize();
  late.check();
  ranks.synchronize();
}

TEST_F(NcclStreams, TheDefaultStreamIsAStream) {
  WEIR_NEEDS_QUEUES(8);
  const StreamRanks ranks(2);
  const Exchange it(Kind::kBroadcast, 2, 3000, 1, 4, device);
  EXPECT_NCCL(ncclBroadcast(it.sends[0].data(), it.recvs[0].data(), it.count, ncclInt, it.root,
                            ranks.comm(0), nullptr));
  EXPECT_NCCL(it.call_on(1, ranks.comm(1), ranks.stream(1)));
  EXPECT_CUDA(cuStreamSynchronize(nullptr));
  ranks.synchronize();
  it.check();
}

TEST_F(NcclStreams, RanksOfOneGroupMayShareAStream) {
  const AllRanks ranks(3);
  const Stream stream;
  const Stream other;
  for (const size_t count : {size_t{10}, size_t{4000}}) {
    const Exchange sum(Kind::kAllReduce, 3, count, 0, 1, device);
    const Exchange all(Kind::kAllGather, 3, count, 0, 2, device);
    ASSERT_NCCL(ncclGroupStart());
    for (int r = 0; r < 3; ++r) {
      EXPECT_NCCL(sum.call_on(r, ranks[r], stream));
      EXPECT_NCCL(all.call_on(r, ranks[r], r == 1 ? other : stream));
    }
    ASSERT_NCCL(ncclGroupEnd());
    stream.synchronize();
    other.synchronize();
    sum.check();
    all.check();
  }
}

TEST_F(NcclStreams, SignalsAndWaitsKeepTheOrderOfTheStream) {
  WEIR_NEEDS_QUEUES(8);
  run_device_threads(2, [](int rank, ncclComm_t comm) {
    const Stream stream;
    const Array shown(MemoryKind::kPinned, 1024);
    void* memory = shown.data();
    auto* numbers_there = shown.data();
    numbers_there[0] = 0;
    ncclWindow_t window = nullptr;
    ASSERT_NCCL(ncclCommWindowRegister(comm, memory, 4096, &window, NCCL_WIN_COLL_SYMMETRIC));
    const Array sent(MemoryKind::kPinned, 1);
    const Array late(MemoryKind::kDevice, 1);
    late.set({70 + rank});
    ncclWaitSignalDesc_t one = {1, 1 - rank, 0, 0};
    sent.set({-1});
    Gate gate(stream);
    // What is put is what the stream has written before.
    sent.copy_of(late, stream);
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(
        ncclPutSignal(sent.data(), 1, ncclInt, 1 - rank, window, 0, 0, 0, 0, comm, stream.nccl()));
    EXPECT_NCCL(ncclWaitSignal(1, &one, comm, stream.nccl()));
    EXPECT_NCCL(ncclGroupEnd());
    gate.open();
    stream.synchronize();
    // By the host: a copy from memory that is not pinned may take its bytes before the stream
    // comes.
    EXPECT_EQ(numbers_there[0], 70 + 1 - rank);
    EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
  });
}

// Numbers in memory of ncclMemAlloc.
class AllocatedInts {
 public:
  explicit AllocatedInts(size_t count) : count_(count) {
    EXPECT_NCCL(ncclMemAlloc(&memory_, count * sizeof(int)));
  }
  ~AllocatedInts() { EXPECT_NCCL(ncclMemFree(memory_)); }
  AllocatedInts(const AllocatedInts&) = delete;
  AllocatedInts& operator=(const AllocatedInts&) = delete;

  int* data() const { return static_cast<int*>(memory_); }
  size_t bytes() const { return count_ * sizeof(int); }
  cuda::DevicePointer address() const { return reinterpret_cast<uintptr_t>(memory_); }
  void set(const std::vector<int>& values, const Stream& stream) const {
    EXPECT_CUDA(cuMemcpyAsync(address(), reinterpret_cast<uintptr_t>(values.data()), bytes(),
                              stream.get()));
    stream.synchronize();
  }
  std::vector<int> get(const Stream& stream) const {
    std::vector<int> values(count_);
    EXPECT_CUDA(cuMemcpyAsync(reinterpret_cast<uintptr_t>(values.data()), address(), bytes(),
                              stream.get()));
    stream.synchronize();
    return values;
  }

 private:
  size_t count_;
  void* memory_ = nullptr;
};

TEST_F(NcclStreams, MemAllocGivesMemoryOfTheThreadsDevice) {
  WEIR_NEEDS_DEVICES(2);
  use_device(1);
  const Stream stream;
  const AllocatedInts memory(1000);
  unsigned type = 0;
  int device = -1;
  int attributes[] = {cuda::kAttributeMemoryType, cuda::kAttributeDeviceOrdinal};
  void* values[] = {&type, &device};
  EXPECT_CUDA(cuPointerGetAttributes(2, attributes, values, memory.address()));
  EXPECT_EQ(type, cuda::kMemoryDevice);
  EXPECT_EQ(device, 1);
  memory.set(numbers(1000, 3, 1), stream);
  EXPECT_EQ(memory.get(stream), numbers(1000, 3, 1));
  void* freed = nullptr;
  ASSERT_NCCL(ncclMemAlloc(&freed, 1));
  EXPECT_NCCL(ncclMemFree(freed));
  EXPECT_EQ(ncclMemFree(freed), ncclInvalidArgument);
  expect_error_with({"ncclMemFree", "freed already"});
  use_device(0);
}

TEST_F(NcclStreams, CollectivesRunOnWindowsOfMemAlloc) {
  WEIR_NEEDS_QUEUES(8);
  for (const size_t count : {size_t{1000}, size_t{50001}}) {
    run_device_threads(2, [&](int rank, ncclComm_t comm) {
      const Stream stream;
      const AllocatedInts memory(count);
      ncclWindow_t window = nullptr;
      ASSERT_NCCL(ncclCommWindowRegister(comm, memory.data(), memory.bytes(), &window,
                                         NCCL_WIN_COLL_SYMMETRIC));
      void* of_window = nullptr;
      EXPECT_NCCL(ncclWinGetUserPtr(comm, window, &of_window));
      EXPECT_EQ(of_window, memory.data());
      memory.set(numbers(count, rank, 1), stream);
      EXPECT_NCCL(ncclAllReduce(memory.data(), memory.data(), count, ncclInt, ncclSum, comm,
                                stream.nccl()));
      std::vector<int> sum = numbers(count, 0, 1);
      const std::vector<int> other = numbers(count, 1, 1);
      for (size_t i = 0; i < count; ++i) sum[i] += other[i];
      EXPECT_EQ(memory.get(stream), sum);
      EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
    });
  }
}

TEST_F(NcclStreams, ManyCallsAreEnqueuedBeforeTheFirstRuns) {
  WEIR_NEEDS_QUEUES(8);
  const StreamRanks ranks(2);
  std::vector<Array> data;
  for (int r = 0; r < 2; ++r) {
    data.emplace_back(MemoryKind::kDevice, 10);
    data.back().set(std::vector<int>(10, 1));
  }
  Gate gate(ranks.stream(0));
  for (int k = 0; k < 40; ++k) {
    for (int r = 0; r < 2; ++r) {
      int* at = data[static_cast<size_t>(r)].data();
      // Doubles every fourth time.
      const ncclRedOp_t op = k % 4 == 0 ? ncclSum : ncclMax;
      ASSERT_NCCL(ncclAllReduce(at, at, 10, ncclInt, op, ranks.comm(r), ranks.stream(r).nccl()));
    }
  }
  gate.open();
  ranks.synchronize();
  for (const Array& it : data) EXPECT_EQ(it.get(), std::vector<int>(10, 1 << 10));
}

TEST_F(NcclStreams, ANonblockingCommunicatorEnqueuesToo) {
  WEIR_NEEDS_QUEUES(8);
  std::atomic<int> arrived{0};
  const ncclUniqueId id = make_id();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      use_device_of(rank);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      ncclComm_t comm = nullptr;
      const ncclResult_t made = ncclCommInitRankConfig(&comm, 2, id, rank, &config);
      ASSERT_TRUE(made == ncclSuccess || made == ncclInProgress);
      ASSERT_EQ(settle(comm), ncclSuccess);
      const Stream stream;
      const Array data(MemoryKind::kDevice, 5000);
      data.set(numbers(5000, rank, 0), stream);
      Gate gate(stream);
      EXPECT_NCCL(
          ncclAllReduce(data.data(), data.data(), 5000, ncclInt, ncclSum, comm, stream.nccl()));
      EXPECT_EQ(async_error(comm), ncclSuccess);
      gate.open();
      const ncclResult_t finalized = ncclCommFinalize(comm);
      EXPECT_TRUE(finalized == ncclSuccess || finalized == ncclInProgress);
      EXPECT_EQ(settle(comm), ncclSuccess);
      stream.synchronize();
      EXPECT_EQ(data.get(stream)[3], numbers(5000, 0, 0)[3] + numbers(5000, 1, 0)[3]);
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(NcclStreams, MakersOfCommunicatorsComeAfterWhatTheStreamsHold) {
  WEIR_NEEDS_QUEUES(8);
  std::barrier ended(3);  // freeing memory waits for the device, with a lock that others need
  run_device_threads(3, [&](int rank, ncclComm_t comm) {
    const Stream stream;
    const Array data(MemoryKind::kDevice, 4000);
    data.set(numbers(4000, rank, 0), stream);
    EXPECT_NCCL(
        ncclAllReduce(data.data(), data.data(), 4000, ncclInt, ncclSum, comm, stream.nccl()));
    ncclComm_t half = nullptr;
    ASSERT_NCCL(ncclCommSplit(comm, rank % 2, rank, &half, nullptr));
    int count = 0;
    EXPECT_NCCL(ncclCommCount(half, &count));
    EXPECT_EQ(count, rank % 2 == 0 ? 2 : 1);
    EXPECT_NCCL(
        ncclAllReduce(data.data(), data.data(), 4000, ncclInt, ncclMax, half, stream.nccl()));
    stream.synchronize();
    EXPECT_EQ(data.get(stream)[7],
              numbers(4000, 0, 0)[7] + numbers(4000, 1, 0)[7] + numbers(4000, 2, 0)[7]);
    EXPECT_NCCL(ncclCommFinalize(half));
    EXPECT_NCCL(ncclCommDestroy(half));
    ended.arrive_and_wait();
  });
}

TEST_F(NcclStreams, RanksWithoutCudaMeetRanksWithIt) {
  WEIR_NEEDS_QUEUES_OF_A_DEVICE(8);
  constexpr size_t kCount = 3777;
  int seed = 0;
  for (const Kind kind : kKinds) {
    std::vector<std::vector<int>> values;
    for (int r = 0; r < 3; ++r) values.push_back(numbers(send_size(kind, 3, kCount), r, seed));
    std::barrier ended(3);  // freeing memory waits for the device, with a lock that others need
    run_threads(3, [&](int rank, ncclComm_t comm) {
      const size_t recv = recv_size(kind, 3, kCount);
      const auto i = static_cast<size_t>(rank);
      std::vector<int> got(recv);
      if (rank == 1) {  // its thread has no context: host memory, no stream
        EXPECT_NCCL(call(kind, values[i].data(), got.data(), kCount, 2, comm, nullptr));
        ended.arrive_and_wait();
      } else {
        use_device_of(rank);
        const Stream stream;
        const Array in(MemoryKind::kDevice, values[i].size());
        const Array out(MemoryKind::kDevice, recv);
        in.set(values[i], stream);
        EXPECT_NCCL(call(kind, in.data(), out.data(), kCount, 2, comm, stream.nccl()));
        stream.synchronize();
        got = out.get(stream);
        ended.arrive_and_wait();
      }
      const auto wanted = expected(kind, values, rank, kCount, 2);
      if (wanted.empty()) return;
      EXPECT_EQ(got, wanted) << "kind " << static_cast<int>(kind);
    });
    ++seed;
  }
}

// ---- Reductions with a factor -------------------------------------------------------------------

TEST_F(NcclStreams, AFactorOnTheDeviceIsReadWhenTheStreamHasComeToIt) {
  WEIR_NEEDS_QUEUES(8);
  const StreamRanks ranks(2);
  const Exchange it(Kind::kAllReduce, 2, 3000, 0, 1, device);
  std::vector<Array> factors;
  std::vector<Array> late;
  for (int r = 0; r < 2; ++r) {
    factors.emplace_back(MemoryKind::kDevice, 1);
    factors.back().set({1000});
    late.emplace_back(MemoryKind::kPinned, 1);
    late.back().set({3 + 2 * r});
  }
  std::vector<Gate> gates;
  for (int r = 0; r < 2; ++r) {
    const auto i = static_cast<size_t>(r);
    ncclRedOp_t op = ncclSum;
    EXPECT_NCCL(
        ncclRedOpCreatePreMulSum(&op, factors[i].data(), ncclInt, ncclScalarDevice, ranks.comm(r)));
    gates.emplace_back(ranks.stream(r));
    factors[i].copy_of(late[i], ranks.stream(r));
    EXPECT_NCCL(ncclAllReduce(it.sends[i].data(), it.recvs[i].data(), it.count, ncclInt, op,
                              ranks.comm(r), ranks.stream(r).nccl()));
    EXPECT_NCCL(ncclRedOpDestroy(op, ranks.comm(r)));
  }
  for (Gate& gate : gates) gate.open();
  ranks.synchronize();
  for (size_t r = 0; r < 2; ++r) {
    const auto got = it.recvs[r].get();
    for (size_t k = 0; k < it.count; ++k) {
      ASSERT_EQ(got[k], 3 * it.values[0][k] + 5 * it.values[1][k]);
    }
  }
}

}  // namespace
}  // namespace weir::nccl::test
