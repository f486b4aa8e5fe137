// SPDX-License-Identifier: Apache-2.0
// What goes wrong in streams with operations of libnccl.so.2: streams are released and the
// communicator tells.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "nccl/stream/stream_support.h"

namespace weir::nccl::test {
namespace {

class NcclStreamErrors : public testing::Test {
 protected:
  void SetUp() override { use_device(0); }
};

TEST_F(NcclStreamErrors, AbortReleasesAStreamWhosePeerNeverComes) {
  for (const size_t count : {size_t{10}, size_t{20000}}) {
    ncclComm_t comms[2] = {};
    ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
    const Stream stream;
    const Array data(MemoryKind::kDevice, count);
    data.set(numbers(count, 0, 0));
    for (int i = 0; i < 3; ++i) {
      EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), count, ncclInt, ncclSum, comms[0],
                                stream.nccl()));
    }
    std::thread watchdog([&] { EXPECT_NCCL(ncclCommAbort(comms[0])); });
    stream.synchronize();
    watchdog.join();
    EXPECT_NCCL(ncclCommAbort(comms[1]));
  }
}

// Short ones are staged, long ones go from device to device.
TEST_F(NcclStreamErrors, AMessageToOneselfWithoutAGroupIsRefusedAtOnce) {
  ncclComm_t comm = nullptr;
  ASSERT_NCCL(ncclCommInitAll(&comm, 1, nullptr));
  const Stream stream;
  for (const size_t count : {size_t{10}, size_t{100000}}) {
    const Array from(MemoryKind::kDevice, count);
    const Array to(MemoryKind::kDevice, count);
    from.set(numbers(count, 0, 0));
    EXPECT_EQ(ncclSend(from.data(), count, ncclInt, 0, comm, stream.nccl()), ncclInvalidUsage);
    EXPECT_EQ(ncclRecv(to.data(), count, ncclInt, 0, comm, stream.nccl()), ncclInvalidUsage);
    ASSERT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclSend(from.data(), count, ncclInt, 0, comm, stream.nccl()));
    EXPECT_NCCL(ncclRecv(to.data(), count, ncclInt, 0, comm, stream.nccl()));
    ASSERT_NCCL(ncclGroupEnd());
    stream.synchronize();
    EXPECT_EQ(to.get(), numbers(count, 0, 0));
  }
  EXPECT_EQ(async_error(comm), ncclSuccess);
  EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST_F(NcclStreamErrors, AbortReleasesStreamsThatComeLater) {
  ncclComm_t comms[2] = {};
  ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
  const Stream stream;
  const Array data(MemoryKind::kDevice, 3000);
  Gate gate(stream);
  for (int i = 0; i < 3; ++i) {
    EXPECT_NCCL(
        ncclAllReduce(data.data(), data.data(), 3000, ncclInt, ncclSum, comms[0], stream.nccl()));
  }
  EXPECT_NCCL(ncclCommAbort(comms[0]));
  EXPECT_NCCL(ncclCommAbort(comms[1]));
  gate.open();
  stream.synchronize();
}

TEST_F(NcclStreamErrors, APeersAbortReleasesTheStreamAndIsTold) {
  ncclComm_t comms[2] = {};
  ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
  const Stream stream;
  const Array data(MemoryKind::kDevice, 3000);
  EXPECT_NCCL(
      ncclAllReduce(data.data(), data.data(), 3000, ncclInt, ncclSum, comms[0], stream.nccl()));
  EXPECT_EQ(async_error(comms[0]), ncclSuccess);
  EXPECT_NCCL(ncclCommAbort(comms[1]));
  stream.synchronize();
  EXPECT_EQ(async_error(comms[0]), ncclRemoteError);
  // What is called now is refused.
  EXPECT_EQ(
      ncclAllReduce(data.data(), data.data(), 3000, ncclInt, ncclSum, comms[0], stream.nccl()),
      ncclRemoteError);
  EXPECT_NCCL(ncclCommAbort(comms[0]));
}

TEST_F(NcclStreamErrors, RevokeReleasesStreamsAndLeavesTheWayToShrink) {
  WEIR_NEEDS_QUEUES(8);
  std::atomic<int> revoked{0};
  run_device_threads(3, [&](int rank, ncclComm_t comm) {
    const Stream stream;
    const Array data(MemoryKind::kDevice, 5000);
    data.set(std::vector<int>(5000, rank + 1), stream);
    if (rank != 2) {
      EXPECT_NCCL(
          ncclAllReduce(data.data(), data.data(), 5000, ncclInt, ncclSum, comm, stream.nccl()));
      EXPECT_NCCL(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
      stream.synchronize();
      int excluded = 2;
      ncclComm_t rest = nullptr;
      ASSERT_NCCL(ncclCommShrink(comm, &excluded, 1, &rest, nullptr, NCCL_SHRINK_DEFAULT));
      data.set(std::vector<int>(5000, rank + 1), stream);
      EXPECT_NCCL(
          ncclAllReduce(data.data(), data.data(), 5000, ncclInt, ncclSum, rest, stream.nccl()));
      stream.synchronize();
      EXPECT_EQ(data.get(stream), std::vector<int>(5000, 3));
      EXPECT_NCCL(ncclCommDestroy(rest));
    }
    ++revoked;
    while (revoked < 3) std::this_thread::yield();
  });
}

TEST_F(NcclStreamErrors, RanksThatDisagreeAreToldAndReleased) {
  WEIR_NEEDS_QUEUES(8);
  const StreamRanks ranks(2);
  const Array data(MemoryKind::kDevice, 3000);
  EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), 100, ncclInt, ncclSum, ranks.comm(0),
                            ranks.stream(0).nccl()));
  EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), 200, ncclInt, ncclSum, ranks.comm(1),
                            ranks.stream(1).nccl()));
  ranks.synchronize();
  EXPECT_EQ(async_error(ranks.comm(0)), ncclInvalidUsage);
  EXPECT_EQ(async_error(ranks.comm(1)), ncclInvalidUsage);
  EXPECT_NE(std::string(ncclGetLastError(ranks.comm(0))), "");
}

TEST_F(NcclStreamErrors, AnErrorOfASliceGivesTheCountOfTheCall) {
  WEIR_NEEDS_QUEUES(8);
  const StreamRanks ranks(2);
  const Array data(MemoryKind::kDevice, 20000);
  for (int r = 0; r < 2; ++r) {
    EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), r == 0 ? 15000 : 15001, ncclInt, ncclSum,
                              ranks.comm(r), ranks.stream(r).nccl()));
  }
  ranks.synchronize();
  for (int r = 0; r < 2; ++r) {
    const std::string text = ncclGetLastError(ranks.comm(r));
    EXPECT_NE(text.find(r == 0 ? "count 15000" : "count 15001"), std::string::npos) << text;
  }
}

TEST_F(NcclStreamErrors, ACallThatCudaRefusesAtOnceChangesNothing) {
  WEIR_NEEDS_STRICT_CUDA();
  WEIR_NEEDS_QUEUES(8);
  const StreamRanks ranks(2);
  std::vector<Array> data;
  for (int r = 0; r < 2; ++r) {
    data.emplace_back(MemoryKind::kDevice, 3000);
    data.back().set(std::vector<int>(3000, r + 1));
  }
  const auto call_on = [&](int r, cudaStream_t stream) {
    int* at = data[static_cast<size_t>(r)].data();
    return ncclAllReduce(at, at, 3000, ncclInt, ncclSum, ranks.comm(r), stream);
  };
  auto* no_stream = reinterpret_cast<cudaStream_t>(uintptr_t{64});
  EXPECT_EQ(call_on(0, no_stream), ncclUnhandledCudaError);
  expect_error_with({"ncclAllReduce", "CUDA_ERROR_INVALID_HANDLE"});
  // The first call that changes the stream.
  const char* function = goes_directly() ? "cuStreamBatchMemOp" : "cuMemcpyAsync";
  strict_cuda_fail(function, 0);
  EXPECT_EQ(call_on(0, ranks.stream(0).nccl()), ncclUnhandledCudaError);
  expect_error_with({function, "CUDA_ERROR_UNKNOWN"});
  for (int r = 0; r < 2; ++r) EXPECT_NCCL(call_on(r, ranks.stream(r).nccl()));
  ranks.synchronize();
  for (const Array& it : data) EXPECT_EQ(it.get(), std::vector<int>(3000, 3));
}

TEST_F(NcclStreamErrors, ACallThatBreaksOffHalfwayLeavesNoStreamWaiting) {
  WEIR_NEEDS_STRICT_CUDA();
  // Of the first slices' copies and flags, or of a later one's.
  for (const int calls : {1, 5, 9}) {
    for (const char* function : {"cuMemcpyAsync", "cuStreamWriteValue32", "cuStreamBatchMemOp"}) {
      ncclComm_t comms[2] = {};
      ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
      const Stream stream;
      const Array data(MemoryKind::kDevice, 20000);
      strict_cuda_fail(function, calls);
      const ncclResult_t result =
          ncclAllReduce(data.data(), data.data(), 20000, ncclInt, ncclSum, comms[0], stream.nccl());
      if (result == ncclSuccess) {  // fewer such calls are made
        strict_cuda_fail(function, 1 << 30);
      } else {
        EXPECT_EQ(result, ncclUnhandledCudaError);
        EXPECT_EQ(async_error(comms[0]), ncclUnhandledCudaError) << function << calls;
      }
      EXPECT_NCCL(ncclCommAbort(comms[0]));
      EXPECT_NCCL(ncclCommAbort(comms[1]));
      stream.synchronize();
    }
  }
}

// While it hands its slices over, or takes them back; the proxy may be at work on the first ones.
TEST_F(NcclStreamErrors, AGroupThatBreaksOffHalfwayLeavesNoStreamWaiting) {
  WEIR_NEEDS_STRICT_CUDA();
  constexpr size_t kCount = 15000;  // 15 slices where it is staged
  size_t failed = 0;
  for (const int calls : {0, 1, 9, 20}) {
    for (const char* function :
         {"cuMemcpyAsync", "cuStreamWriteValue32", "cuStreamBatchMemOp", "cuLaunchKernel"}) {
      ncclComm_t comms[2] = {};
      ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
      const Stream stream;
      const Array out(MemoryKind::kDevice, kCount);
      const Array in(MemoryKind::kDevice, kCount);
      strict_cuda_fail(function, calls);
      EXPECT_NCCL(ncclGroupStart());
      EXPECT_NCCL(ncclSend(out.data(), kCount, ncclInt, 1, comms[0], stream.nccl()));
      EXPECT_NCCL(ncclRecv(in.data(), kCount, ncclInt, 1, comms[0], stream.nccl()));
      const ncclResult_t result = ncclGroupEnd();
      if (result == ncclSuccess) {  // fewer such calls are made
        strict_cuda_fail(function, 1 << 30);
      } else {
        EXPECT_EQ(result, ncclUnhandledCudaError);
        ++failed;
      }
      EXPECT_NCCL(ncclCommAbort(comms[0]));
      EXPECT_NCCL(ncclCommAbort(comms[1]));
      stream.synchronize();
    }
  }
  // Where it is work of the stream alone: each of the two marks, and the kernel.
  EXPECT_GE(failed, 3u);
}

TEST_F(NcclStreamErrors, ThreadsWithDifferentCountsAllLearnItAtOnce) {
  WEIR_NEEDS_QUEUES(8);
  for (const MemoryKind kind : {MemoryKind::kDevice, MemoryKind::kHost}) {
    // With room in the launch queues, which these ranks share the lock of.
    for (const size_t count : {size_t{1}, size_t{5000}, size_t{20000}}) {
      std::barrier ready(3);  // a failure may end what another rank still does before
      run_device_threads(3, [&](int rank, ncclComm_t comm) {
        ready.arrive_and_wait();
        const Stream stream;
        const size_t mine = count * (static_cast<size_t>(rank) + 1);
        const Array data(kind, mine);
        data.set(numbers(mine, rank, 1), stream);
        const auto begin = std::chrono::steady_clock::now();
        EXPECT_NCCL(
            ncclAllReduce(data.data(), data.data(), mine, ncclInt, ncclSum, comm, stream.nccl()));
        stream.synchronize();
        EXPECT_EQ(async_error(comm), ncclInvalidUsage);
        EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
      });
    }
  }
}

// No processor reaches the memory of a device here.
TEST_F(NcclStreamErrors, APutToAWindowOnADeviceIsRefused) {
  WEIR_NEEDS_DEVICE_MEMORY();
  WEIR_NEEDS_QUEUES(8);
  std::barrier done(2);  // a put to a rank that has ended has another error
  run_device_threads(2, [&](int rank, ncclComm_t comm) {
    const Stream stream;
    const Array pinned(MemoryKind::kPinned, 4);
    void* memory = nullptr;
    ASSERT_NCCL(ncclMemAlloc(&memory, 64));
    ncclWindow_t window = nullptr;
    ASSERT_NCCL(ncclCommWindowRegister(comm, memory, 64, &window, NCCL_WIN_DEFAULT));
    EXPECT_EQ(ncclPutSignal(memory, 1, ncclInt, 1 - rank, window, 0, 0, 0, 0, comm, stream.nccl()),
              ncclInvalidUsage);
    expect_error_with({"localbuff lies on a device"});
    EXPECT_NCCL(ncclPutSignal(pinned.data(), 1, ncclInt, 1 - rank, window, 0, 0, 0, 0, comm,
                              stream.nccl()));
    stream.synchronize();
    done.arrive_and_wait();
    EXPECT_EQ(async_error(comm), ncclInvalidUsage);
    EXPECT_NE(std::string(ncclGetLastError(comm)).find("lies on a device"), std::string::npos)
        << ncclGetLastError(comm);
    EXPECT_NCCL(ncclMemFree(memory));
  });
}

TEST_F(NcclStreamErrors, WhatTheDriverRefusesOfAnAllocationIsTold) {
  WEIR_NEEDS_STRICT_CUDA();
  void* memory = &memory;
  strict_cuda_fail("cuMemCreate", 0);
  EXPECT_EQ(ncclMemAlloc(&memory, 100), ncclUnhandledCudaError);
  expect_error_with({"ncclMemAlloc", "cuMemCreate", "CUDA_ERROR_UNKNOWN", "100 bytes"});
  EXPECT_EQ(memory, nullptr);
}

TEST_F(NcclStreamErrors, ABlockingFinalizeTellsOfTheOperationsThatItWaitedFor) {
  ncclComm_t comms[2] = {};
  ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
  const Stream stream;
  const Array data(MemoryKind::kDevice, 3000);
  EXPECT_NCCL(
      ncclAllReduce(data.data(), data.data(), 3000, ncclInt, ncclSum, comms[0], stream.nccl()));
  std::thread peer([&] { EXPECT_NCCL(ncclCommAbort(comms[1])); });
  EXPECT_EQ(ncclCommFinalize(comms[0]), ncclRemoteError);
  expect_error_with({"ncclCommFinalize, rank 0 of 2", "ncclAllReduce", "rank 1"});
  peer.join();
  stream.synchronize();
  EXPECT_NCCL(ncclCommDestroy(comms[0]));
}

TEST_F(NcclStreamErrors, AnAbortWhileAGroupIsOpenIsToldAtItsEnd) {
  ncclComm_t comms[2] = {};
  ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
  const Stream stream;
  const Array data(MemoryKind::kDevice, 3000);
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_NCCL(
      ncclAllReduce(data.data(), data.data(), 3000, ncclInt, ncclSum, comms[0], stream.nccl()));
  std::thread([&] { EXPECT_NCCL(ncclCommAbort(comms[0])); }).join();
  EXPECT_EQ(ncclGroupEnd(), ncclInternalError);
  expect_error_with({"ncclAllReduce, rank 0 of 2", "aborted meanwhile"});
  stream.synchronize();
  EXPECT_NCCL(ncclCommAbort(comms[1]));
}

TEST_F(NcclStreamErrors, TheFirstCauseOfAFailureStaysAndIsSaidOnce) {
  WEIR_NEEDS_QUEUES(8);
  ncclComm_t comms[2] = {};
  ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
  const ncclComm_t comm = comms[0];
  const std::vector<Stream> streams = streams_of_ranks(2);
  const Stream& stream = streams[0];
  const Array data(MemoryKind::kDevice, 100);
  EXPECT_NCCL(ncclSend(data.data(), 4, ncclInt, 0, comms[1], streams[1].nccl()));
  EXPECT_NCCL(ncclRecv(data.data(), 5, ncclInt, 1, comm, stream.nccl()));
  stream.synchronize();
  EXPECT_EQ(async_error(comm), ncclInvalidUsage);
  const std::string cause = ncclGetLastError(comm);
  EXPECT_EQ(cause.find("ncclRecv, rank 0 of 2: "), 0u) << cause;
  for (int i = 0; i < 50; ++i) {
    ncclWindow_t window = nullptr;
    EXPECT_EQ(ncclCommWindowRegister(comm, data.data(), 400, &window, 0), ncclInvalidUsage);
    EXPECT_EQ(std::string(ncclGetLastError(nullptr)),
              "ncclCommWindowRegister, rank 0 of 2: an earlier call failed: " + cause);
  }
  int value = 1;
  EXPECT_EQ(ncclBroadcast(&value, &value, 1, ncclInt, 9, comm, stream.nccl()), ncclInvalidUsage);
  EXPECT_EQ(ncclCommCount(comm, nullptr), ncclInvalidArgument);
  EXPECT_EQ(async_error(comm), ncclInvalidUsage);
  EXPECT_EQ(ncclGetLastError(comm), cause);
  EXPECT_NCCL(ncclCommAbort(comm));
  EXPECT_NCCL(ncclCommAbort(comms[1]));
}

}  // namespace
}  // namespace weir::nccl::test
