// SPDX-License-Identifier: Apache-2.0
// Communicators of libnccl.so.2 that end while their streams hold operations: destroying one
// finalizes it first, and what was called before is done.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "nccl/stream/stream_support.h"

namespace weir::nccl::test {
namespace {

constexpr size_t kCount = 50000;

class NcclStreamEnding : public testing::Test {
 protected:
  void SetUp() override { use_device(0); }
};

// Two ranks sum up on streams that begin when both have made their calls; `end` ends a communicator
// in between.
template <typename End>
void expect_sums_after(End end) {
  WEIR_NEEDS_QUEUES(8);
  run_threads(2, [&](int rank, ncclComm_t comm) {
    use_device(0);
    ncclComm_t own = nullptr;
    ASSERT_NCCL(ncclCommSplit(comm, 0, rank, &own, nullptr));
    const Stream stream;
    const Array data(MemoryKind::kDevice, kCount);
    data.set(std::vector<int>(kCount, rank + 1), stream);
    for (int i = 0; i < 3; ++i) {
      EXPECT_NCCL(
          ncclAllReduce(data.data(), data.data(), kCount, ncclInt, ncclSum, own, stream.nccl()));
    }
    end(own);
    stream.synchronize();
    EXPECT_EQ(data.get(stream), std::vector<int>(kCount, 12));
  });
}

TEST_F(NcclStreamEnding, DestroyingACommunicatorDoesWhatItsStreamsHold) {
  expect_sums_after([](ncclComm_t comm) { EXPECT_NCCL(ncclCommDestroy(comm)); });
}

TEST_F(NcclStreamEnding, FinalizingItAndDestroyingItToo) {
  expect_sums_after([](ncclComm_t comm) {
    EXPECT_NCCL(ncclCommFinalize(comm));
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

}  // namespace
}  // namespace weir::nccl::test
