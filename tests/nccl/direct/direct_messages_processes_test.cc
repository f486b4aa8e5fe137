// SPDX-License-Identifier: Apache-2.0
// Messages from device to device between processes.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "nccl/direct/direct_processes.h"

namespace weir::nccl::test {
namespace {

class NcclDirectMessagesProcesses : public testing::Test {
 protected:
  void SetUp() override {
    if (WEIR_TEST_HAS_KERNELS == 0) GTEST_SKIP() << "built without nvcc, so without kernels";
  }
};

// To the next rank, from the one before, in a group.
void pass_round(ncclComm_t comm, int rank, int n, size_t count, int seed,
                Kind kind = Kind::kAllocated) {
  CUstream stream = nullptr;
  EXPECT_CUDA(cuStreamCreate(&stream, 0));
  const auto on = reinterpret_cast<cudaStream_t>(stream);
  {
    Numbers out(count, kind);
    const Numbers in(count, kind);
    out.set(values_of(rank, count, seed));
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclSend(out.data(), count, ncclInt, (rank + 1) % n, comm, on));
    EXPECT_NCCL(ncclRecv(in.data(), count, ncclInt, (rank + n - 1) % n, comm, on));
    EXPECT_NCCL(ncclGroupEnd());
    EXPECT_CUDA(cuStreamSynchronize(stream));
    EXPECT_EQ(in.get(), values_of((rank + n - 1) % n, count, seed));
  }
  EXPECT_CUDA(cuStreamDestroy_v2(stream));
}

TEST_F(NcclDirectMessagesProcesses, ReceiveFromEachOthersDevices) {
  EXPECT_EQ(run_processes(3,
                          [](int rank, ncclComm_t first) {
                            ncclComm_t comm = use_device_in(first, rank, rank % 2);
                            testing::internal::CaptureStderr();
                            for (int round = 0; round < 12; ++round) {
                              const auto more = static_cast<size_t>(round % 4) * 50000;
                              pass_round(comm, rank, 3, kCount + more, round);
                            }
                            const std::string told = testing::internal::GetCapturedStderr();
                            EXPECT_EQ(count_of(told, kMessages), 1u) << told;
                            EXPECT_NCCL(ncclCommDestroy(comm));
                          }),
            std::vector<int>(3, 0));
}

TEST_F(NcclDirectMessagesProcesses, ReceiveFromMemoryMadeByMapping) {
  EXPECT_EQ(run_processes(2,
                          [](int rank, ncclComm_t first) {
                            ncclComm_t comm = use_device_in(first, rank, 0);
                            testing::internal::CaptureStderr();
                            for (int round = 0; round < 6; ++round) {
                              pass_round(comm, rank, 2, kCount, round, Kind::kMapped);
                            }
                            const std::string told = testing::internal::GetCapturedStderr();
                            EXPECT_EQ(count_of(told, kMessages), 1u) << told;
                            EXPECT_EQ(count_of(told, "through host memory"), 0u) << told;
                            EXPECT_NCCL(ncclCommDestroy(comm));
                          }),
            std::vector<int>(2, 0));
}

TEST_F(NcclDirectMessagesProcesses, AMessageMayLieInAllocationsSideBySide) {
  EXPECT_EQ(run_processes(2,
                          [](int rank, ncclComm_t first) {
                            ncclComm_t comm = use_device_in(first, rank, 0);
                            testing::internal::CaptureStderr();
                            int seed = 0;
                            for (const size_t count : {1500007, 500009, 1100003}) {
                              pass_round(comm, rank, 2, count, ++seed, Kind::kMappedSideBySide);
                            }
                            const std::string told = testing::internal::GetCapturedStderr();
                            EXPECT_EQ(count_of(told, kMessages), 1u) << told;
                            EXPECT_EQ(count_of(told, "through host memory"), 0u) << told;
                            EXPECT_NCCL(ncclCommDestroy(comm));
                          }),
            std::vector<int>(2, 0));
}

// Buffers are never mapped by the peer.
TEST_F(NcclDirectMessagesProcesses, ReceiveFromMemoryThatCannotBeHandedOver) {
  EXPECT_EQ(run_processes(2,
                          [](int rank, ncclComm_t first) {
                            ncclComm_t comm = use_device_in(first, rank, 0);
                            testing::internal::CaptureStderr();
                            for (int round = 0; round < 3; ++round) {
                              pass_round(comm, rank, 2, kCount, round,
                                         rank == 1 ? Kind::kPooled : Kind::kAllocated);
                            }
                            const std::string told = testing::internal::GetCapturedStderr();
                            EXPECT_EQ(count_of(told, "through host memory"), 0u) << told;
                            EXPECT_EQ(count_of(told, kMessages), 1u) << told;
                            EXPECT_NCCL(ncclCommDestroy(comm));
                          }),
            std::vector<int>(2, 0));
}

TEST_F(NcclDirectMessagesProcesses, AMessageOfAPeerThatHasDiedReleasesTheStream) {
  const auto statuses = run_processes(3, [](int rank, ncclComm_t first) {
    ncclComm_t comm = use_device_in(first, rank, 0);
    pass_round(comm, rank, 3, kCount, 1);
    if (rank == 1) _exit(0);
    CUstream stream = nullptr;
    EXPECT_CUDA(cuStreamCreate(&stream, 0));
    const auto on = reinterpret_cast<cudaStream_t>(stream);
    const size_t count = 100 * kCount;  // more than the slots of a pair hold
    const Numbers data(count);
    EXPECT_NCCL(rank == 0 ? ncclSend(data.data(), count, ncclInt, 1, comm, on)
                          : ncclRecv(data.data(), count, ncclInt, 1, comm, on));
    EXPECT_CUDA(cuStreamSynchronize(stream));
    ncclResult_t error = ncclSuccess;
    EXPECT_NCCL(ncclCommGetAsyncError(comm, &error));
    EXPECT_EQ(error, ncclRemoteError);
    EXPECT_NCCL(ncclCommAbort(comm));
  });
  EXPECT_EQ(statuses, std::vector<int>(3, 0));
}

}  // namespace
}  // namespace weir::nccl::test
