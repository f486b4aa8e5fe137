// SPDX-License-Identifier: Apache-2.0
// The default stream of a call is that of its communicator's device, whatever device the calling
// thread uses. On the stand-in for CUDA, with two devices.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "nccl/stream/stream_support.h"

namespace weir::nccl::test {
namespace {

constexpr size_t kCount = 1 << 16;

// Communicators of one process, each with a device and memory on it.
class OnTwoDevices : public testing::TestWithParam<uintptr_t> {
 protected:
  void SetUp() override {
    WEIR_NEEDS_DEVICES(2);
    use_device(0);
    ASSERT_NCCL(ncclCommInitAll(comms_, 2, nullptr));
    for (const int device : {0, 1}) {
      use_device(device);
      memory_.push_back(std::make_unique<Array>(MemoryKind::kDevice, kCount));
      memory_.back()->set(std::vector<int>(kCount, device + 1));
    }
  }
  void TearDown() override {
    memory_.clear();
    for (ncclComm_t comm : comms_) EXPECT_NCCL(ncclCommDestroy(comm));
  }
  void sum(int rank, cudaStream_t stream) const {
    int* const data = memory_[static_cast<size_t>(rank)]->data();
    EXPECT_NCCL(ncclAllReduce(data, data, kCount, ncclInt, ncclSum, comms_[rank], stream));
  }

  ncclComm_t comms_[2] = {};
  std::vector<std::unique_ptr<Array>> memory_;
};

TEST_P(OnTwoDevices, ADefaultStreamIsThatOfTheCommunicatorsDevice) {
  const auto stream = reinterpret_cast<cudaStream_t>(GetParam());
  auto* const cuda_stream = reinterpret_cast<cuda::Stream>(GetParam());
  void* pinned = nullptr;
  EXPECT_CUDA(cuMemHostAlloc(&pinned, sizeof(uint32_t), cuda::kHostPortable));
  auto* const gate = static_cast<uint32_t*>(pinned);
  *gate = 0;
  use_device(0);
  EXPECT_CUDA(
      cuStreamWaitValue32_v2(cuda_stream, reinterpret_cast<uintptr_t>(gate), 1, cuda::kWaitEqual));
  use_device(1);
  EXPECT_NCCL(ncclGroupStart());
  sum(0, stream);
  sum(1, stream);
  EXPECT_NCCL(ncclGroupEnd());
  // Rank 0's part stands behind the gate of device 0, and rank 1's needs it.
  usleep(100'000);
  EXPECT_EQ(cuStreamQuery(cuda_stream), cuda::kErrorNotReady);
  use_device(0);
  EXPECT_EQ(cuStreamQuery(cuda_stream), cuda::kErrorNotReady);
  std::atomic_ref(*gate).store(1);
  for (const int device : {0, 1}) {
    use_device(device);
    EXPECT_CUDA(cuStreamSynchronize(cuda_stream));
    EXPECT_EQ(memory_[static_cast<size_t>(device)]->get(), std::vector<int>(kCount, 3));
  }
  EXPECT_CUDA(cuMemFreeHost(pinned));
}

// The NULL stream of a device is one stream for all threads, also for one that has made no call to
// CUDA.
TEST(NcclDefaultStream, OfAThreadWithoutAContextIsThatOfTheOthers) {
  use_device(cuda::device_count() - 1);  // not number 0, if there are others
  ncclComm_t alone = nullptr;
  ASSERT_NCCL(ncclCommInitRank(&alone, 1, make_id(), 0));
  const Array from(MemoryKind::kDevice, kCount);
  const Array to(MemoryKind::kDevice, kCount);
  const Array values(MemoryKind::kPinned, kCount);
  from.set(std::vector<int>(kCount, 0));
  std::fill_n(values.data(), kCount, 5);
  void* pinned = nullptr;
  EXPECT_CUDA(cuMemHostAlloc(&pinned, sizeof(uint32_t), cuda::kHostPortable));
  auto* const gate = static_cast<uint32_t*>(pinned);
  *gate = 0;
  EXPECT_CUDA(
      cuStreamWaitValue32_v2(nullptr, reinterpret_cast<uintptr_t>(gate), 1, cuda::kWaitEqual));
  EXPECT_CUDA(cuMemcpyAsync(reinterpret_cast<uintptr_t>(from.data()),
                            reinterpret_cast<uintptr_t>(values.data()), kCount * sizeof(int),
                            nullptr));
  std::thread([&] {
    EXPECT_NCCL(ncclAllReduce(from.data(), to.data(), kCount, ncclInt, ncclSum, alone, nullptr));
  }).join();
  EXPECT_EQ(cuStreamQuery(nullptr), cuda::kErrorNotReady);
  std::atomic_ref(*gate).store(1);
  EXPECT_CUDA(cuStreamSynchronize(nullptr));
  EXPECT_EQ(to.get(), std::vector<int>(kCount, 5));
  EXPECT_CUDA(cuMemFreeHost(pinned));
  EXPECT_NCCL(ncclCommDestroy(alone));
}

// Host memory needs no stream there, and the call has ended when it returns.
TEST(NcclDefaultStream, HostMemoryOfAThreadWithoutAContextNeedsNone) {
  use_device(0);
  ncclComm_t alone = nullptr;
  ASSERT_NCCL(ncclCommInitRank(&alone, 1, make_id(), 0));
  const std::vector<int> from(kCount, 5);
  std::vector<int> to(kCount, 0);
  std::thread([&] {
    EXPECT_NCCL(ncclAllReduce(from.data(), to.data(), kCount, ncclInt, ncclSum, alone, nullptr));
    EXPECT_EQ(to, from);
  }).join();
  EXPECT_NCCL(ncclCommDestroy(alone));
}

// A thread that has made no call to CUDA may use the streams of others.
TEST(NcclStreamOfAnother, IsUsedWithoutAContext) {
  WEIR_NEEDS_DEVICES(2);
  ncclComm_t comms[2] = {};
  std::vector<Stream> streams;
  std::vector<Array> memory;
  use_device(0);
  ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
  for (const int device : {0, 1}) {
    use_device(device);
    streams.emplace_back();
    memory.emplace_back(MemoryKind::kDevice, kCount);
    memory.back().set(std::vector<int>(kCount, device + 1));
  }
  std::thread([&] {
    EXPECT_NCCL(ncclGroupStart());
    for (const size_t rank : {0, 1}) {
      int* const data = memory[rank].data();
      EXPECT_NCCL(
          ncclAllReduce(data, data, kCount, ncclInt, ncclSum, comms[rank], streams[rank].nccl()));
    }
    EXPECT_NCCL(ncclGroupEnd());
    // The calls have left no context behind.
    cuda::Context current = nullptr;
    EXPECT_CUDA(cuCtxGetCurrent(&current));
    EXPECT_EQ(current, nullptr);
  }).join();
  for (const int device : {0, 1}) {
    use_device(device);
    streams[static_cast<size_t>(device)].synchronize();
    EXPECT_EQ(memory[static_cast<size_t>(device)].get(), std::vector<int>(kCount, 3));
  }
  for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
}

INSTANTIATE_TEST_SUITE_P(NullLegacyAndPerThread, OnTwoDevices, testing::Values(0, 1, 2));

enum class Maker { kSplit, kInit, kWindow };

// A nonblocking group that also makes something: its operation stands in the stream that the
// calling thread means, after what is in that stream, and a wait for the stream is a wait for the
// operation.
class NonblockingGroup : public testing::TestWithParam<std::tuple<uintptr_t, Maker>> {};

TEST_P(NonblockingGroup, IsInTheCallersStream) {
  WEIR_NEEDS_DEVICES(2);
  const auto [default_stream, maker] = GetParam();
  const ncclUniqueId ids[2] = {make_id(), make_id()};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank, default_stream = default_stream, maker = maker] {
      use_device(rank);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      ncclComm_t comm = nullptr;
      ncclComm_t made = nullptr;
      ncclWindow_t window = nullptr;
      (void)ncclCommInitRankConfig(&comm, 2, ids[0], rank, &config);
      ASSERT_EQ(settle(comm), ncclSuccess);
      const Stream own;
      const Array data(MemoryKind::kDevice, kCount);
      const Array values(MemoryKind::kPinned, kCount);
      data.set(std::vector<int>(kCount, 0));
      std::fill_n(values.data(), kCount, rank + 1);
      const auto stream =
          default_stream != 0 ? reinterpret_cast<cudaStream_t>(default_stream) : own.nccl();
      EXPECT_CUDA(cuLaunchHostFunc(
          stream, [](void*) { usleep(50'000); }, nullptr));
      EXPECT_CUDA(cuMemcpyAsync(reinterpret_cast<uintptr_t>(data.data()),
                                reinterpret_cast<uintptr_t>(values.data()), kCount * sizeof(int),
                                stream));
      ASSERT_NCCL(ncclGroupStart());
      EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), kCount, ncclInt, ncclSum, comm, stream));
      if (maker == Maker::kSplit) {
        EXPECT_NCCL(ncclCommSplit(comm, 0, rank, &made, nullptr));
      } else if (maker == Maker::kInit) {
        EXPECT_NCCL(ncclCommInitRankConfig(&made, 2, ids[1], rank, &config));
      } else {
        EXPECT_NCCL(ncclCommWindowRegister(comm, data.data(), kCount * sizeof(int), &window, 0));
      }
      EXPECT_EQ(ncclGroupEnd(), ncclInProgress);
      EXPECT_CUDA(cuStreamSynchronize(stream));
      EXPECT_EQ(data.get(), std::vector<int>(kCount, 3));
      EXPECT_EQ(settle(comm), ncclSuccess) << ncclGetLastError(comm);
      if (made != nullptr) {
        EXPECT_EQ(settle(made), ncclSuccess) << ncclGetLastError(made);
        EXPECT_NCCL(ncclCommDestroy(made));
      }
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(OwnAndPerThread, NonblockingGroup,
                         testing::Combine(testing::Values(0, 2),
                                          testing::Values(Maker::kSplit, Maker::kInit,
                                                          Maker::kWindow)));

// The streams go on, with undefined data, and the peer is told.
TEST(NcclNonblockingGroup, WhoseSetupFailsLetsTheStreamsGoOn) {
  WEIR_NEEDS_DEVICES(2);
  const ncclUniqueId ids[2] = {make_id(), make_id()};
  std::latch told(1);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      use_device(rank);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      ncclComm_t comm = nullptr;
      (void)ncclCommInitRankConfig(&comm, 2, ids[0], rank, &config);
      ASSERT_EQ(settle(comm), ncclSuccess);
      const Stream stream;
      const Array data(MemoryKind::kDevice, kCount);
      data.set(std::vector<int>(kCount, rank + 1));
      ncclComm_t made[2] = {};
      ASSERT_NCCL(ncclGroupStart());
      EXPECT_NCCL(
          ncclAllReduce(data.data(), data.data(), kCount, ncclInt, ncclSum, comm, stream.nccl()));
      // Two that call themselves rank 0.
      for (int i = 0; i < 2 && rank == 0; ++i) {
        EXPECT_NCCL(ncclCommInitRankConfig(&made[i], 2, ids[1], 0, &config));
      }
      EXPECT_EQ(ncclGroupEnd(), rank == 0 ? ncclInProgress : ncclSuccess);
      stream.synchronize();
      if (rank == 0) {
        EXPECT_NE(settle(comm), ncclSuccess);
        told.wait();  // before the abort, of which the peer would be told, too
      } else {
        EXPECT_EQ(async_error(comm), ncclRemoteError);
        const std::string text = ncclGetLastError(comm);
        EXPECT_NE(text.find("rank 0 of 2 failed: ncclCommInitRankConfig"), std::string::npos)
            << text;
        told.count_down();
      }
      for (ncclComm_t it : made) EXPECT_NCCL(ncclCommAbort(it));
      EXPECT_NCCL(ncclCommAbort(comm));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(NcclStreamThatIsGone, IsNamed) {
  use_device(0);
  ncclComm_t alone = nullptr;
  ASSERT_NCCL(ncclCommInitRank(&alone, 1, make_id(), 0));
  const Array data(MemoryKind::kDevice, kCount);
  cudaStream_t gone = nullptr;
  {
    const Stream stream;
    gone = stream.nccl();
  }
  EXPECT_EQ(ncclAllReduce(data.data(), data.data(), kCount, ncclInt, ncclSum, alone, gone),
            ncclUnhandledCudaError);
  expect_error_with({"ncclAllReduce", "stream 0x", "was destroyed"});
  EXPECT_NCCL(ncclCommAbort(alone));
}

// The call is refused before anything of it is on the stream, and the communicator stays whole.
TEST(NcclLaunchEventThatIsGone, IsNamed) {
  WEIR_NEEDS_DEVICES(2);
  for (const char* direct : {"1", "0"}) {
    setenv("WEIR_DIRECT", direct, 1);
    ncclComm_t comms[2] = {};
    ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
    ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
    std::unique_ptr<Stream> streams[2];
    std::unique_ptr<Array> data[2];
    for (const int device : {0, 1}) {
      use_device(device);
      streams[device] = std::make_unique<Stream>();
      data[device] = std::make_unique<Array>(MemoryKind::kDevice, kCount);
      data[device]->set(std::vector<int>(kCount, 3));
      if (device == 0) config.launchCompletionEvent = static_cast<cudaEvent_t>(LaunchEvent().get());
    }
    const auto sum = [&](int rank, ncclCollConfig_t* with) {
      int* const values = data[rank]->data();
      return ncclAllReduceConfig(values, values, kCount, ncclInt, ncclSum, comms[rank],
                                 streams[rank]->nccl(), with);
    };
    EXPECT_EQ(sum(0, &config), ncclInvalidUsage) << direct;
    expect_error_with({"ncclAllReduce", "rank 0 of 2", "launchCompletionEvent", "no such event"});
    ASSERT_NCCL(ncclGroupStart());
    for (const int rank : {0, 1}) EXPECT_NCCL(sum(rank, nullptr));
    EXPECT_NCCL(ncclGroupEnd());
    for (const int rank : {0, 1}) {
      use_device(rank);
      streams[rank]->synchronize();
      EXPECT_EQ(data[rank]->get(), std::vector<int>(kCount, 6)) << direct;
      EXPECT_EQ(async_error(comms[rank]), ncclSuccess) << direct;
      data[rank].reset();
      streams[rank].reset();
    }
    for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
  }
  unsetenv("WEIR_DIRECT");
}

// CUDA then has no state of the event to tell, which is no reason to refuse it.
TEST(NcclLaunchEventOfTheCapture, MayBeUsedAgain) {
  use_device(0);
  ncclComm_t comm = nullptr;
  ASSERT_NCCL(ncclCommInitRank(&comm, 1, make_id(), 0));
  {
    const Stream stream;
    const LaunchEvent event;
    const Array data(MemoryKind::kDevice, kCount);
    data.set(std::vector<int>(kCount, 3));
    ASSERT_NCCL(event.sum(data, comm, stream));
    stream.synchronize();
    cuda::Graph graph = nullptr;
    EXPECT_CUDA(cuStreamBeginCapture_v2(stream.get(), 0));
    for (int i = 0; i < 2; ++i) EXPECT_NCCL(event.sum(data, comm, stream));
    EXPECT_CUDA(cuStreamEndCapture(stream.get(), &graph));
    EXPECT_NE(graph, nullptr);
    EXPECT_CUDA(cuGraphDestroy(graph));
  }
  EXPECT_NCCL(ncclCommDestroy(comm));
}

// The communicator from which another is being made.
TEST(NcclNonblockingGroup, WhoseParentIsDestroyedSaysSo) {
  use_device(0);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comms[2] = {};
  const ncclUniqueId id = make_id();
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < 2; ++r) (void)ncclCommInitRankConfig(&comms[r], 2, id, r, &config);
  (void)ncclGroupEnd();
  for (ncclComm_t comm : comms) ASSERT_EQ(settle(comm), ncclSuccess);
  ncclComm_t made = nullptr;
  EXPECT_EQ(ncclCommSplit(comms[0], 0, 0, &made, &config), ncclInProgress);
  EXPECT_NCCL(ncclCommDestroy(comms[0]));
  EXPECT_NE(settle(made), ncclSuccess);
  const std::string text = ncclGetLastError(made);
  EXPECT_EQ(text.find("by another thread"), std::string::npos) << text;
  EXPECT_NE(text.find("destroyed"), std::string::npos) << text;
  EXPECT_NCCL(ncclCommAbort(made));
  EXPECT_NCCL(ncclCommAbort(comms[1]));
}

}  // namespace
}  // namespace weir::nccl::test
