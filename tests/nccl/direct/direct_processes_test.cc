// SPDX-License-Identifier: Apache-2.0
// Collectives from device to device between processes.
#include "nccl/direct/direct_processes.h"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "hostcuda/runtime/functions.h"

namespace weir::nccl::test {
namespace {

// All-gather, all-to-all and broadcast of `count`, each value looked at.
void run_round(ncclComm_t comm, int rank, int n, size_t count, int seed,
               Kind kind = Kind::kAllocated) {
  const auto ranks = static_cast<size_t>(n);
  CUstream stream = nullptr;
  EXPECT_CUDA(cuStreamCreate(&stream, 0));
  const auto on = reinterpret_cast<cudaStream_t>(stream);
  {
    Numbers in(ranks * count, kind);
    const Numbers gathered(ranks * count, kind);
    const Numbers swapped(ranks * count, kind);
    const Numbers told(ranks * count, kind);
    in.set(values_of(rank, ranks * count, seed));
    EXPECT_NCCL(ncclAllGather(in.data(), gathered.data(), count, ncclInt, comm, on));
    EXPECT_NCCL(ncclAlltoAll(in.data(), swapped.data(), count, ncclInt, comm, on));
    EXPECT_NCCL(ncclBroadcast(in.data(), told.data(), ranks * count, ncclInt, n - 1, comm, on));
    EXPECT_CUDA(cuStreamSynchronize(stream));
    std::vector<int> all;
    std::vector<int> mine;
    for (int r = 0; r < n; ++r) {
      const auto theirs = values_of(r, ranks * count, seed);
      const auto begin =
          theirs.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(rank) * count);
      all.insert(all.end(), theirs.begin(), theirs.begin() + static_cast<std::ptrdiff_t>(count));
      mine.insert(mine.end(), begin, begin + static_cast<std::ptrdiff_t>(count));
    }
    EXPECT_EQ(gathered.get(), all);
    EXPECT_EQ(swapped.get(), mine);
    EXPECT_EQ(told.get(), values_of(n - 1, ranks * count, seed));
  }
  EXPECT_CUDA(cuStreamDestroy_v2(stream));
}

// A number for each element, of a size at which sums of them round.
float float_of(int rank, size_t i, int seed) {
  const size_t others = static_cast<size_t>(rank) * 104729 + static_cast<size_t>(seed) * 31;
  return static_cast<float>((i * 7919 + others) % 20011) / 3.0f;
}

float bits_to_float(int bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// A sum, a maximum at a root and an average scattered, of buffers that begin at an element of their
// own; each value looked at: all are folded in the order of the ranks.
void reduce_round(ncclComm_t comm, int rank, int n, size_t count, int seed,
                  Kind kind = Kind::kAllocated) {
  const auto ranks = static_cast<size_t>(n);
  const size_t shift = static_cast<size_t>(seed % 3 == 0 ? rank : seed) % 5;
  const int root = seed % n;
  CUstream stream = nullptr;
  EXPECT_CUDA(cuStreamCreate(&stream, 0));
  const auto on = reinterpret_cast<cudaStream_t>(stream);
  {
    const size_t size = ranks * count + 8;
    Numbers in(size, kind);
    const Numbers sum(size, kind);
    const Numbers most(size, kind);
    const Numbers mean(size, kind);
    std::vector<int> values(size);
    for (size_t i = 0; i + shift < size; ++i) {
      const float value = float_of(rank, i, seed);
      std::memcpy(&values[i + shift], &value, sizeof value);
    }
    in.set(values);
    const int* from = in.data() + shift;
    EXPECT_NCCL(ncclAllReduce(from, sum.data() + shift, count, ncclFloat, ncclSum, comm, on));
    EXPECT_NCCL(ncclReduce(from, most.data(), count, ncclFloat, ncclMax, root, comm, on));
    EXPECT_NCCL(ncclReduceScatter(from, mean.data(), count, ncclFloat, ncclAvg, comm, on));
    EXPECT_CUDA(cuStreamSynchronize(stream));
    const auto sums = sum.get();
    const auto mosts = most.get();
    const auto means = mean.get();
    for (size_t i = 0; i < count; ++i) {
      const size_t at = static_cast<size_t>(rank) * count + i;
      float total = float_of(0, i, seed);
      float largest = total;
      float average = float_of(0, at, seed);
      for (int r = 1; r < n; ++r) {
        total += float_of(r, i, seed);
        largest = std::max(largest, float_of(r, i, seed));
        average += float_of(r, at, seed);
      }
      average = n == 2 ? average * 0.5f : average / static_cast<float>(n);
      ASSERT_EQ(bits_to_float(sums[i + shift]), total) << i;
      if (rank == root) {
        ASSERT_EQ(bits_to_float(mosts[i]), largest) << i;
      }
      ASSERT_EQ(bits_to_float(means[i]), average) << i;
    }
  }
  EXPECT_CUDA(cuStreamDestroy_v2(stream));
}

// The kernel then lets no process of the user's look into this one, nor this one into others.
bool be_shielded() {
  __user_cap_header_struct head{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (syscall(SYS_capget, &head, data) != 0) return false;
  data[CAP_TO_INDEX(CAP_SYS_PTRACE)].effective &= ~CAP_TO_MASK(CAP_SYS_PTRACE);
  return syscall(SYS_capset, &head, data) == 0 && prctl(PR_SET_DUMPABLE, 0) == 0;
}

// A sum and an all-gather in a graph, launched with other values each time.
void replay(ncclComm_t comm, int rank, int n) {
  const auto ranks = static_cast<size_t>(n);
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  CUgraphExec launchable = nullptr;
  EXPECT_CUDA(cuStreamCreate(&stream, 0));
  const auto on = reinterpret_cast<cudaStream_t>(stream);
  {
    Numbers in(kCount, Kind::kMapped);
    const Numbers sum(kCount, Kind::kMapped);
    const Numbers gathered(ranks * kCount, Kind::kMapped);
    EXPECT_CUDA(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT_NCCL(ncclAllReduce(in.data(), sum.data(), kCount, ncclInt, ncclSum, comm, on));
    EXPECT_NCCL(ncclAllGather(sum.data(), gathered.data(), kCount, ncclInt, comm, on));
    EXPECT_CUDA(cuStreamEndCapture(stream, &graph));
    EXPECT_EQ(cudaGraphInstantiate(&launchable, graph, 0), cudaSuccess);
    for (int launch = 0; launch < 3; ++launch) {
      in.set(values_of(rank, kCount, launch));
      EXPECT_CUDA(cuGraphLaunch(launchable, stream));
      EXPECT_CUDA(cuStreamSynchronize(stream));
      std::vector<int> expected(kCount);
      for (int r = 0; r < n; ++r) {
        const auto theirs = values_of(r, kCount, launch);
        for (size_t i = 0; i < kCount; ++i) expected[i] += theirs[i];
      }
      EXPECT_EQ(sum.get(), expected);
      const auto all = gathered.get();
      for (size_t r = 0; r < ranks; ++r) {
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(),
                               all.begin() + static_cast<std::ptrdiff_t>(r * kCount)));
      }
    }
    EXPECT_EQ(cudaGraphExecDestroy(launchable), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  EXPECT_CUDA(cuStreamDestroy_v2(stream));
}

TEST(NcclDirectProcesses, CopyFromEachOthersDevicesWhateverIsFreedAndAllocatedBetween) {
  ASSERT_TRUE(kEnvironment);
  EXPECT_EQ(run_processes(3,
                          [](int rank, ncclComm_t first) {
                            ncclComm_t comm = use_device_in(first, rank, rank % 2);
                            testing::internal::CaptureStderr();
                            for (int round = 0; round < 12; ++round) {
                              const auto more = static_cast<size_t>(round % 4) * 5000;
                              run_round(comm, rank, 3, kCount + more, round);
                            }
                            const std::string told = testing::internal::GetCapturedStderr();
                            EXPECT_EQ(count_of(told, kDirectly), rank == 0 ? 1u : 0u) << told;
                            EXPECT_NCCL(ncclCommDestroy(comm));
                          }),
            std::vector<int>(3, 0));
}

// Reductions of three ranks on two devices, where they are reduced if there are kernels.
void expect_reduced_on_devices(Kind kind) {
  EXPECT_EQ(
      run_processes(
          3,
          [kind](int rank, ncclComm_t first) {
            testing::internal::CaptureStderr();
            ncclComm_t comm = use_device_in(first, rank, rank % 2);
            for (int round = 0; round < 8; ++round) {
              const auto more = static_cast<size_t>(round % 4) * 1237;
              reduce_round(comm, rank, 3, kCount + more, round, kind);
            }
            const std::string told = testing::internal::GetCapturedStderr();
            const size_t times = rank == 0 ? WEIR_TEST_HAS_KERNELS : 0;
            EXPECT_EQ(count_of(told, kReduced), times) << told;
            EXPECT_EQ(count_of(told, kReductionsGivenUp), WEIR_TEST_HAS_KERNELS == 1 ? 0u : 1u)
                << told;
            EXPECT_NCCL(ncclCommDestroy(comm));
          }),
      std::vector<int>(3, 0));
}

TEST(NcclDirectProcesses, ReduceOnEachOthersDevices) {
  expect_reduced_on_devices(Kind::kAllocated);
}

// Only scratch is handed over.
TEST(NcclDirectProcesses, MemoryThatCannotBeHandedOverIsCopiedAndReduced) {
  EXPECT_EQ(
      run_processes(2,
                    [](int rank, ncclComm_t first) {
                      testing::internal::CaptureStderr();
                      ncclComm_t comm = use_device_in(first, rank, 0);
                      for (int round = 0; round < 3; ++round) {
                        const Kind kind = rank == 1 ? Kind::kPooled : Kind::kAllocated;
                        reduce_round(comm, rank, 2, kCount, round, kind);
                        run_round(comm, rank, 2, kCount, round, kind);
                      }
                      const std::string told = testing::internal::GetCapturedStderr();
                      EXPECT_EQ(count_of(told, kReduced), rank == 0 ? WEIR_TEST_HAS_KERNELS : 0u)
                          << told;
                      EXPECT_EQ(count_of(told, kDirectly), rank == 0 ? 1u : 0u) << told;
                      EXPECT_NCCL(ncclCommDestroy(comm));
                    }),
      std::vector<int>(2, 0));
}

TEST(NcclDirectProcesses, MemoryMadeByMappingIsCopiedWhateverIsMappedAnewBetween) {
  EXPECT_EQ(run_processes(3,
                          [](int rank, ncclComm_t first) {
                            ncclComm_t comm = use_device_in(first, rank, rank % 2);
                            testing::internal::CaptureStderr();
                            for (int round = 0; round < 12; ++round) {
                              const auto more = static_cast<size_t>(round % 4) * 5000;
                              run_round(comm, rank, 3, kCount + more, round, Kind::kMapped);
                            }
                            // Beside memory of the other kind.
                            run_round(comm, rank, 3, kCount, 5,
                                      rank == 1 ? Kind::kMapped : Kind::kAllocated);
                            const std::string told = testing::internal::GetCapturedStderr();
                            EXPECT_EQ(count_of(told, kDirectly), rank == 0 ? 1u : 0u) << told;
                            EXPECT_NCCL(ncclCommDestroy(comm));
                          }),
            std::vector<int>(3, 0));
}

TEST(NcclDirectProcesses, MemoryMadeByMappingIsReduced) {
  expect_reduced_on_devices(Kind::kMapped);
}

TEST(NcclDirectProcesses, MemoryOfMemAllocIsCopiedAndReduced) {
  expect_reduced_on_devices(Kind::kOfMemAlloc);
  EXPECT_EQ(run_processes(2,
                          [](int rank, ncclComm_t first) {
                            ncclComm_t comm = use_device_in(first, rank, rank);
                            testing::internal::CaptureStderr();
                            for (int round = 0; round < 4; ++round) {
                              run_round(comm, rank, 2, kCount, round, Kind::kOfMemAlloc);
                            }
                            const std::string told = testing::internal::GetCapturedStderr();
                            EXPECT_EQ(count_of(told, kDirectly), rank == 0 ? 1u : 0u) << told;
                            EXPECT_NCCL(ncclCommDestroy(comm));
                          }),
            std::vector<int>(2, 0));
}

// The first call of the process that has to do with CUDA.
TEST(NcclDirectProcesses, MemoryOfMemAllocTakesCallsOfTheRuntimeBeforeAnyCommunicator) {
  EXPECT_EQ(run_processes(
                1, [](int, ncclComm_t comm) { EXPECT_NCCL(ncclCommDestroy(comm)); },
                [](int) {
                  void* memory = nullptr;
                  EXPECT_NCCL(ncclMemAlloc(&memory, 5000));
                  EXPECT_EQ(cudaMemset(memory, 0x5a, 5000), cudaSuccess);
                  std::vector<unsigned char> bytes(5000);
                  EXPECT_EQ(cudaMemcpy(bytes.data(), memory, 5000, cudaMemcpyDeviceToHost),
                            cudaSuccess);
                  EXPECT_EQ(bytes, std::vector<unsigned char>(5000, 0x5a));
                  EXPECT_NCCL(ncclMemFree(memory));
                  EXPECT_NE(cudaMemset(memory, 0, 1), cudaSuccess) << "it is freed";
                }),
            std::vector<int>{0});
}

// A put between the stand-in's devices, whose memory is the host's.
TEST(NcclDirectProcesses, PutsGoToWindowsOfMemAlloc) {
  EXPECT_EQ(run_processes(2,
                          [](int rank, ncclComm_t first) {
                            ncclComm_t comm = use_device_in(first, rank, rank);
                            CUstream stream = nullptr;
                            EXPECT_CUDA(cuStreamCreate(&stream, 0));
                            const auto on = reinterpret_cast<cudaStream_t>(stream);
                            Numbers from(kCount, Kind::kOfMemAlloc);
                            const Numbers to(kCount, Kind::kOfMemAlloc);
                            from.set(values_of(rank, kCount, 1));
                            ncclWindow_t window = nullptr;
                            ASSERT_NCCL(ncclCommWindowRegister(comm, to.data(), kCount * 4, &window,
                                                               NCCL_WIN_COLL_SYMMETRIC));
                            ncclWaitSignalDesc_t one = {1, 1 - rank, 0, 0};
                            EXPECT_NCCL(ncclPutSignal(from.data(), kCount, ncclInt, 1 - rank,
                                                      window, 0, 0, 0, 0, comm, on));
                            EXPECT_NCCL(ncclWaitSignal(1, &one, comm, on));
                            EXPECT_CUDA(cuStreamSynchronize(stream));
                            EXPECT_EQ(to.get(), values_of(1 - rank, kCount, 1));
                            EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
                            EXPECT_NCCL(ncclCommDestroy(comm));
                            EXPECT_CUDA(cuStreamDestroy_v2(stream));
                          }),
            std::vector<int>(2, 0));
}

TEST(NcclDirectProcesses, ReductionsAndCopiesOfMemoryMadeByMappingAreCapturedAndReplayed) {
  EXPECT_EQ(run_processes(2,
                          [](int rank, ncclComm_t first) {
                            ncclComm_t comm = use_device_in(first, rank, rank);
                            testing::internal::CaptureStderr();
                            replay(comm, rank, 2);
                            const std::string told = testing::internal::GetCapturedStderr();
                            EXPECT_EQ(count_of(told, kDirectly), rank == 0 ? 1u : 0u) << told;
                            const size_t times = rank == 0 ? WEIR_TEST_HAS_KERNELS : 0;
                            EXPECT_EQ(count_of(told, kReduced), times) << told;
                            EXPECT_NCCL(ncclCommDestroy(comm));
                          }),
            std::vector<int>(2, 0));
}

TEST(NcclDirectProcesses, MemoryMadeByMappingNeedsNoHandleForOthers) {
  EXPECT_EQ(
      run_processes(2,
                    [](int rank, ncclComm_t first) {
                      ncclComm_t comm = use_device_in(first, rank, 0);
                      testing::internal::CaptureStderr();
                      for (int round = 0; round < 3; ++round) {
                        const Kind kind = round % 2 == 0 ? Kind::kMappedForOne : Kind::kMapped;
                        run_round(comm, rank, 2, kCount, round, kind);
                        reduce_round(comm, rank, 2, kCount, round, kind);
                      }
                      const std::string told = testing::internal::GetCapturedStderr();
                      EXPECT_EQ(count_of(told, kDirectly), rank == 0 ? 1u : 0u) << told;
                      EXPECT_EQ(count_of(told, kReduced), rank == 0 ? WEIR_TEST_HAS_KERNELS : 0u)
                          << told;
                      EXPECT_NCCL(ncclCommDestroy(comm));
                    }),
      std::vector<int>(2, 0));
}

// As users whose processes must not look into each other: CUDA IPC does not serve on the stand-in.
TEST(NcclDirectProcesses, ScratchIsReachedWithoutPrivileges) {
  EXPECT_EQ(run_processes(
                2,
                [](int rank, ncclComm_t first) {
                  ncclComm_t comm = use_device_in(first, rank, 0);
                  testing::internal::CaptureStderr();
                  for (int round = 0; round < 3; ++round) {
                    run_round(comm, rank, 2, kCount, round);
                    reduce_round(comm, rank, 2, kCount, round);
                  }
                  const std::string told = testing::internal::GetCapturedStderr();
                  EXPECT_EQ(count_of(told, kDirectly), rank == 0 ? 1u : 0u) << told;
                  EXPECT_NCCL(ncclCommDestroy(comm));
                },
                [](int) { EXPECT_TRUE(be_shielded()); }),
            std::vector<int>(2, 0));
}

TEST(NcclDirectProcesses, TheBuffersOfACollectiveMayLieInAllocationsSideBySide) {
  EXPECT_EQ(
      run_processes(2,
                    [](int rank, ncclComm_t first) {
                      ncclComm_t comm = use_device_in(first, rank, 0);
                      testing::internal::CaptureStderr();
                      int seed = 0;
                      for (const size_t count : {600007, 500009}) {
                        run_round(comm, rank, 2, count, ++seed, Kind::kMappedSideBySide);
                        reduce_round(comm, rank, 2, count, ++seed, Kind::kMappedSideBySide);
                      }
                      const std::string told = testing::internal::GetCapturedStderr();
                      EXPECT_EQ(count_of(told, kDirectly), rank == 0 ? 1u : 0u) << told;
                      EXPECT_EQ(count_of(told, kReduced), rank == 0 ? WEIR_TEST_HAS_KERNELS : 0u)
                          << told;
                      EXPECT_NCCL(ncclCommDestroy(comm));
                    }),
      std::vector<int>(2, 0));
}

TEST(NcclDirectProcesses, NoRankCopiesDirectlyWhereOneMustNot) {
  EXPECT_EQ(run_processes(2,
                          [](int rank, ncclComm_t first) {
                            if (rank == 1) setenv("NCCL_P2P_DISABLE", "1", 1);
                            ncclComm_t comm = use_device_in(first, rank, 0);
                            testing::internal::CaptureStderr();
                            run_round(comm, rank, 2, kCount, 1);
                            const std::string told = testing::internal::GetCapturedStderr();
                            EXPECT_EQ(count_of(told, kDirectly), 0u) << told;
                            EXPECT_NCCL(ncclCommDestroy(comm));
                          }),
            std::vector<int>(2, 0));
}

TEST(NcclDirectProcesses, WhereOneRankHasTurnedItOffAllStageAndRankZeroNamesItOnce) {
  const std::string reason = "is copied through host memory: rank 1: WEIR_DIRECT=0";
  EXPECT_EQ(run_processes(
                2,
                [&](int rank, ncclComm_t first) {
                  testing::internal::CaptureStderr();
                  ncclComm_t comm = use_device_in(first, rank, 0);
                  run_round(comm, rank, 2, kCount, 1);
                  const std::string told = testing::internal::GetCapturedStderr();
                  EXPECT_EQ(count_of(told, kDirectly), 0u) << told;
                  EXPECT_EQ(count_of(told, reason), rank == 0 ? 1u : 0u) << told;
                  EXPECT_NCCL(ncclCommDestroy(comm));
                },
                [](int rank) {
                  if (rank == 1) setenv("WEIR_DIRECT", "0", 1);
                }),
            std::vector<int>(2, 0));
}

TEST(NcclDirectProcesses, AStreamIsReleasedWhenAPeerHasDied) {
  const auto statuses = run_processes(2, [](int rank, ncclComm_t first) {
    ncclComm_t comm = use_device_in(first, rank, 0);
    run_round(comm, rank, 2, kCount, 1);
    if (rank == 1) _exit(0);
    CUstream stream = nullptr;
    EXPECT_CUDA(cuStreamCreate(&stream, 0));
    const Numbers in(kCount);
    const Numbers out(2 * kCount);
    EXPECT_NCCL(ncclAllGather(in.data(), out.data(), kCount, ncclInt, comm,
                              reinterpret_cast<cudaStream_t>(stream)));
    EXPECT_CUDA(cuStreamSynchronize(stream));
    ncclResult_t error = ncclSuccess;
    EXPECT_NCCL(ncclCommGetAsyncError(comm, &error));
    EXPECT_EQ(error, ncclRemoteError);
    EXPECT_NCCL(ncclCommAbort(comm));
  });
  EXPECT_EQ(statuses, std::vector<int>(2, 0));
}

}  // namespace
}  // namespace weir::nccl::test
