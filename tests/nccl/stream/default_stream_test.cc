// SPDX-License-Identifier: Apache-2.0
// The default stream of a call is that of its communicator's device, whatever device the calling
// thread uses. On the stand-in for CUDA, with two devices.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "nccl/stream/stream_support.h"

namespace weir::nccl::test {
namespace {

constexpr size_t kCount = 1 << 16;

// Communicators of one process, each with a device and memory on it.
class OnTwoDevices : public testing::TestWithParam<uintptr_t> {
 protected:
  void SetUp() override {
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

INSTANTIATE_TEST_SUITE_P(NullLegacyAndPerThread, OnTwoDevices, testing::Values(0, 1, 2));

}  // namespace
}  // namespace weir::nccl::test
