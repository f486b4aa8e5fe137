// SPDX-License-Identifier: Apache-2.0
// What a call says of a buffer that is too short, or not there. On the stand-in for CUDA, which
// knows all memory of devices.
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "nccl/stream/graph_support.h"

namespace weir::nccl::test {
namespace {

constexpr size_t kUnit = size_t{2} << 20;
constexpr size_t kCount = 100000;  // goes directly between the devices
constexpr size_t kFew = 100;       // is staged

struct Call {
  const char* name;
  size_t factor;  // of the receive buffer's size
  ncclResult_t (*call)(const int* from, int* to, size_t count, ncclComm_t comm, cudaStream_t on);
};
const Call kCalls[] = {
    {"ncclAllReduce", 1,
     [](const int* from, int* to, size_t count, ncclComm_t comm, cudaStream_t on) {
       return ncclAllReduce(from, to, count, ncclInt, ncclSum, comm, on);
     }},
    {"ncclBroadcast", 1,
     [](const int* from, int* to, size_t count, ncclComm_t comm, cudaStream_t on) {
       return ncclBroadcast(from, to, count, ncclInt, 0, comm, on);
     }},
    {"ncclAllGather", 2,
     [](const int* from, int* to, size_t count, ncclComm_t comm, cudaStream_t on) {
       return ncclAllGather(from, to, count, ncclInt, comm, on);
     }},
    {"ncclReduceScatter", 1,
     [](const int* from, int* to, size_t count, ncclComm_t comm, cudaStream_t on) {
       return ncclReduceScatter(from, to, count, ncclInt, ncclSum, comm, on);
     }},
    {"ncclRecv", 1,
     [](const int*, int* to, size_t count, ncclComm_t comm, cudaStream_t on) {
       return ncclRecv(to, count, ncclInt, 1, comm, on);
     }},
};

// Of another kind than the devices' own. Memory of ncclMemAlloc fails the device, as on a GPU; so
// each is a process of its own, which begins before this one has used CUDA.
TEST(NcclBuffers, AGraphWhosePinnedOrSharedBufferWasFreedFails) {
  for (const size_t count : {kCount, kFew}) {
    for (const bool pinned : {false, true}) {
      const pid_t pid = fork();
      ASSERT_GE(pid, 0);
      if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(60);
        use_device(0);
        const StreamRanks ranks(1);
        void* freed = nullptr;
        if (pinned) {
          EXPECT_CUDA(cuMemHostAlloc(&freed, count * sizeof(int), cuda::kHostPortable));
        } else {
          EXPECT_NCCL(ncclMemAlloc(&freed, count * sizeof(int)));
        }
        const Graph graph(ranks.stream(0), [&] {
          EXPECT_NCCL(ncclAllReduce(freed, freed, count, ncclInt, ncclSum, ranks.comm(0),
                                    ranks.stream(0).nccl()));
        });
        graph.launch(ranks.stream(0));
        ranks.synchronize();
        EXPECT_EQ(async_error(ranks.comm(0)), ncclSuccess);
        if (pinned) {
          EXPECT_CUDA(cuMemFreeHost(freed));
        } else {
          EXPECT_NCCL(ncclMemFree(freed));
        }
        graph.launch(ranks.stream(0));
        // The graph's own copy comes first where the memory was mapped, as on a GPU.
        constexpr int kIllegalAddress = 700;
        EXPECT_EQ(cuCtxSynchronize(), pinned ? cuda::kSuccess : kIllegalAddress);
        if (pinned) {
          EXPECT_EQ(async_error(ranks.comm(0)), ncclInvalidArgument);
          const std::string text = ncclGetLastError(ranks.comm(0));
          for (const char* word : {"ncclAllReduce, rank 0 of 1", "sendbuff", "freed",
                                   "when the stream came to the call"}) {
            EXPECT_NE(text.find(word), std::string::npos) << word << " is not in: " << text;
          }
        }
        _exit(testing::Test::HasFailure() ? 1 : 0);
      }
      int status = 0;
      ASSERT_EQ(waitpid(pid, &status, 0), pid);
      EXPECT_EQ(status, 0) << (pinned ? "pinned" : "ncclMemAlloc") << ", count " << count;
    }
  }
}

TEST(NcclBuffers, ABufferThatIsTooShortIsRefusedAndNothingBehindItIsWritten) {
  use_device(0);
  const StreamRanks ranks(2);
  for (const size_t count : {kCount, kFew}) {
    const Array from(MemoryKind::kDevice, 4 * count);
    for (const Call& it : kCalls) {
      const Array to(MemoryKind::kDevice, it.factor * count);
      const Array behind(MemoryKind::kDevice, count);
      behind.set(std::vector<int>(count, kUntouched));
      for (int r = 0; r < 2; ++r) {
        const size_t bytes = it.factor * (count + 1) * sizeof(int);
        EXPECT_EQ(it.call(from.data(), to.data(), count + 1, ranks.comm(r), ranks.stream(r).nccl()),
                  ncclInvalidArgument)
            << it.name;
        expect_error_with({it.name, "rank " + std::to_string(r) + " of 2", "recvbuff",
                           "of " + std::to_string(bytes) + " bytes",
                           "byte 0 of an allocation of " +
                               std::to_string(it.factor * count * sizeof(int)) + " bytes"});
      }
      ranks.synchronize();
      EXPECT_EQ(behind.get(), std::vector<int>(count, kUntouched)) << it.name;
    }
  }
  for (int r = 0; r < 2; ++r) EXPECT_EQ(async_error(ranks.comm(r)), ncclSuccess);
}

TEST(NcclBuffers, FreedMemoryIsRefused) {
  use_device(0);
  const StreamRanks ranks(2);
  for (const size_t count : {kCount, kFew}) {
    const Array to(MemoryKind::kDevice, count);
    cuda::DevicePointer freed = 0;
    EXPECT_CUDA(cuMemAlloc_v2(&freed, count * sizeof(int)));
    EXPECT_CUDA(cuMemFree_v2(freed));
    const auto* const from = reinterpret_cast<const int*>(static_cast<uintptr_t>(freed));
    EXPECT_EQ(ncclAllReduce(from, to.data(), count, ncclInt, ncclSum, ranks.comm(0),
                            ranks.stream(0).nccl()),
              ncclInvalidArgument);
    expect_error_with({"ncclAllReduce", "sendbuff", "lies in no allocation"});
  }
}

// The text says so, and not that the buffers overlap.
TEST(NcclBuffers, ABufferThatIsTooShortIsRefusedAlsoWhereTheOtherBufferFollows) {
  use_device(0);
  const StreamRanks ranks(1);
  std::set<cuda::DevicePointer> made;
  for (int i = 0; i < 16; ++i) {
    cuda::DevicePointer one = 0;
    ASSERT_EQ(cuMemAlloc_v2(&one, kUnit), cuda::kSuccess);
    made.insert(one);
  }
  int pairs = 0;
  for (const cuda::DevicePointer one : made) {
    if (made.count(one + kUnit) == 0) continue;
    ++pairs;
    const size_t count = kUnit / sizeof(int);
    const auto call = [&](cuda::DevicePointer from, cuda::DevicePointer to) {
      return ncclAllReduce(reinterpret_cast<const void*>(static_cast<uintptr_t>(from)),
                           reinterpret_cast<void*>(static_cast<uintptr_t>(to)), count + 1, ncclInt,
                           ncclSum, ranks.comm(0), ranks.stream(0).nccl());
    };
    EXPECT_EQ(call(one, one + kUnit), ncclInvalidArgument);
    expect_error_with({"ncclAllReduce, rank 0 of 1: sendbuff", "ends outside it"});
    EXPECT_EQ(call(one + kUnit, one), ncclInvalidArgument);
    expect_error_with({"ends outside it"});
  }
  EXPECT_GT(pairs, 0) << "no allocation lies directly behind another one";
  for (const cuda::DevicePointer one : made) EXPECT_CUDA(cuMemFree_v2(one));
}

TEST(NcclBuffers, AFreedScalarOfAPreMultipliedSumIsRefused) {
  use_device(0);
  const StreamRanks ranks(1);
  for (const size_t count : {kCount, kFew}) {
    const Array data(MemoryKind::kDevice, count);
    data.set(std::vector<int>(count, 7));
    cuda::DevicePointer scalar = 0;
    EXPECT_CUDA(cuMemAlloc_v2(&scalar, sizeof(int)));
    const int factor = 3;
    EXPECT_CUDA(cuMemcpyHtoD_v2(scalar, &factor, sizeof factor));
    ncclRedOp_t op = ncclSum;
    EXPECT_NCCL(ncclRedOpCreatePreMulSum(&op, reinterpret_cast<void*>(uintptr_t{scalar}), ncclInt,
                                         ncclScalarDevice, ranks.comm(0)));
    const auto call = [&] {
      return ncclAllReduce(data.data(), data.data(), count, ncclInt, op, ranks.comm(0),
                           ranks.stream(0).nccl());
    };
    EXPECT_NCCL(call());
    ranks.synchronize();
    EXPECT_CUDA(cuMemFree_v2(scalar));
    EXPECT_EQ(call(), ncclInvalidArgument);
    expect_error_with({"ncclAllReduce, rank 0 of 1: the scalar 0x", "of 4 bytes",
                       "ncclRedOpCreatePreMulSum", "lies in no allocation"});
    ranks.synchronize();
    EXPECT_EQ(data.get(), std::vector<int>(count, 21));
    EXPECT_EQ(async_error(ranks.comm(0)), ncclSuccess);
    EXPECT_NCCL(ncclRedOpDestroy(op, ranks.comm(0)));
  }
}

// With a stream and without one.
TEST(NcclBuffers, AddressesWhereNothingIsMappedAreRefused) {
  use_device(0);
  const StreamRanks ranks(2);
  const auto* const nowhere = reinterpret_cast<const int*>(uintptr_t{0x10});
  const Array to(MemoryKind::kDevice, kCount);
  for (const size_t count : {kCount, kFew}) {
    for (cudaStream_t on : {ranks.stream(0).nccl(), cudaStream_t{nullptr}}) {
      EXPECT_EQ(ncclAllReduce(nowhere, to.data(), count, ncclInt, ncclSum, ranks.comm(0), on),
                ncclInvalidArgument);
      expect_error_with({"ncclAllReduce", "sendbuff 0x10", "nothing is mapped there"});
    }
  }
  EXPECT_EQ(async_error(ranks.comm(0)), ncclSuccess);
}

// Nothing comes to lie at its address.
TEST(NcclBuffers, MemoryOfNcclMemAllocIsRefusedOnceItIsFreed) {
  use_device(0);
  const StreamRanks ranks(2);
  const Array to(MemoryKind::kDevice, kCount);
  void* freed = nullptr;
  EXPECT_NCCL(ncclMemAlloc(&freed, kCount * sizeof(int)));
  EXPECT_NCCL(ncclMemFree(freed));
  std::vector<std::unique_ptr<char[]>> others;
  for (int i = 0; i < 8; ++i) others.push_back(std::make_unique<char[]>(kCount * sizeof(int)));
  const Array behind(MemoryKind::kDevice, kCount);
  EXPECT_EQ(ncclAllReduce(freed, to.data(), kCount, ncclInt, ncclSum, ranks.comm(0),
                          ranks.stream(0).nccl()),
            ncclInvalidArgument);
  expect_error_with({"ncclAllReduce", "sendbuff", "lies in no allocation"});
}

// The graph of rank 0, whose send or receive buffer is freed before a second launch.
TEST(NcclBuffers, AGraphWhoseBufferWasFreedFailsWithTheBuffersName) {
  use_device(0);
  for (const size_t count : {kCount, kFew}) {
    for (const bool receives : {false, true}) {
      const StreamRanks ranks(2);
      cuda::DevicePointer freed = 0;
      EXPECT_CUDA(cuMemAlloc_v2(&freed, count * sizeof(int)));
      auto* const buffer = reinterpret_cast<int*>(static_cast<uintptr_t>(freed));
      const Array other(MemoryKind::kDevice, count);
      const Array data(MemoryKind::kDevice, count);
      std::vector<Graph> graphs;
      graphs.emplace_back(ranks.stream(0), [&] {
        EXPECT_NCCL(ncclAllReduce(receives ? other.data() : buffer,
                                  receives ? buffer : other.data(), count, ncclInt, ncclSum,
                                  ranks.comm(0), ranks.stream(0).nccl()));
      });
      graphs.emplace_back(ranks.stream(1), [&] {
        EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), count, ncclInt, ncclSum, ranks.comm(1),
                                  ranks.stream(1).nccl()));
      });
      for (int round = 0; round < 2; ++round) {
        if (round == 1) {
          EXPECT_CUDA(cuMemFree_v2(freed));
        }
        for (int r = 0; r < 2; ++r) graphs[static_cast<size_t>(r)].launch(ranks.stream(r));
        ranks.synchronize();
        EXPECT_EQ(async_error(ranks.comm(0)), round == 0 ? ncclSuccess : ncclInvalidArgument);
        EXPECT_EQ(async_error(ranks.comm(1)), round == 0 ? ncclSuccess : ncclRemoteError);
      }
      for (int r = 0; r < 2; ++r) {
        const std::string text = ncclGetLastError(ranks.comm(r));
        for (const char* word : {"ncclAllReduce, rank 0 of 2", receives ? "recvbuff" : "sendbuff",
                                 "lies in no allocation", "when the stream came to the call"}) {
          EXPECT_NE(text.find(word), std::string::npos) << word << " is not in: " << text;
        }
      }
    }
  }
}

TEST(NcclBuffers, MemoryMadeByMappingCountsAsFarAsItIsMappedAndAccessible) {
  use_device(0);
  const StreamRanks ranks(2);
  const Array to(MemoryKind::kDevice, 3 * kUnit / sizeof(int));
  cuda::AllocationProperties wanted;
  wanted.type = cuda::kAllocationPinned;
  wanted.location.type = cuda::kLocationDevice;
  cuda::DevicePointer range = 0;
  EXPECT_CUDA(cuMemAddressReserve(&range, 3 * kUnit, kUnit, 0, 0));
  cuda::MemoryAccess access;
  access.location = wanted.location;
  access.flags = cuda::kAccessReadWrite;
  const auto reduce = [&](int r, size_t bytes) {
    return ncclAllReduce(reinterpret_cast<const void*>(static_cast<uintptr_t>(range)), to.data(),
                         bytes / sizeof(int), ncclInt, ncclSum, ranks.comm(r),
                         ranks.stream(r).nccl());
  };
  EXPECT_EQ(reduce(0, kUnit), ncclInvalidArgument);
  expect_error_with({"lies in no allocation"});
  for (const size_t i : {0, 1}) {
    cuda::AllocationHandle handle = 0;
    EXPECT_CUDA(cuMemCreate(&handle, kUnit, &wanted, 0));
    EXPECT_CUDA(cuMemMap(range + i * kUnit, kUnit, 0, handle, 0));
    EXPECT_CUDA(cuMemRelease(handle));
    EXPECT_EQ(reduce(0, kUnit), ncclInvalidArgument);
    expect_error_with({"is not accessible"});
  }
  EXPECT_CUDA(cuMemSetAccess(range, 2 * kUnit, &access, 1));
  EXPECT_EQ(reduce(0, 2 * kUnit + sizeof(int)), ncclInvalidArgument);
  expect_error_with({"ends outside it"});
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < 2; ++r) EXPECT_NCCL(reduce(r, 2 * kUnit));
  ASSERT_NCCL(ncclGroupEnd());
  ranks.synchronize();
  EXPECT_EQ(async_error(ranks.comm(0)), ncclSuccess);
  EXPECT_CUDA(cuMemUnmap(range, 2 * kUnit));
  EXPECT_CUDA(cuMemAddressFree(range, 3 * kUnit));
}

// As without CUDA: NcclErrors.BuffersThatOverlapOtherThanInPlaceAreRefused.
TEST(NcclBuffers, BuffersThatOverlapOtherThanInPlaceAreRefusedOnStreamsToo) {
  use_device(0);
  const StreamRanks ranks(2);
  const Array data(MemoryKind::kDevice, 8 * kFew);
  const Array other(MemoryKind::kDevice, 8 * kFew);
  struct Placed {
    Kind kind;
    size_t send[2];  // in place for each rank, in units of kFew
    size_t recv[2];
  };
  for (const Placed& it :
       {Placed{Kind::kAllReduce, {2, 2}, {2, 2}}, Placed{Kind::kReduce, {2, 2}, {2, 2}},
        Placed{Kind::kBroadcast, {2, 2}, {2, 2}}, Placed{Kind::kAllGather, {2, 3}, {2, 2}},
        Placed{Kind::kReduceScatter, {2, 2}, {2, 3}}, Placed{Kind::kAlltoAll, {2, 2}, {2, 2}},
        Placed{Kind::kGather, {2, 2}, {2, 2}}, Placed{Kind::kScatter, {2, 2}, {2, 2}}}) {
    const auto on = [&](int r, int off) {
      const Array& mine = r == 0 ? data : other;
      return call(it.kind, mine.data() + it.send[r] * kFew + off, mine.data() + it.recv[r] * kFew,
                  kFew, 0, ranks.comm(r), ranks.stream(r).nccl());
    };
    for (const int off : {-1, 1}) {
      EXPECT_EQ(on(0, off), ncclInvalidArgument) << static_cast<int>(it.kind);
      expect_error_with({"rank 0 of 2", "sendbuff", "overlap by ", "other than in place",
                         "count 100 may be too large for a buffer"});
      if (it.kind == Kind::kAllReduce) expect_error_with({"overlap by 396 bytes"});
    }
    ASSERT_NCCL(ncclGroupStart());
    for (int r = 0; r < 2; ++r) EXPECT_NCCL(on(r, 0)) << static_cast<int>(it.kind);
    ASSERT_NCCL(ncclGroupEnd());
    ranks.synchronize();
  }
  for (int r = 0; r < 2; ++r) EXPECT_EQ(async_error(ranks.comm(r)), ncclSuccess);
}

}  // namespace
}  // namespace weir::nccl::test
