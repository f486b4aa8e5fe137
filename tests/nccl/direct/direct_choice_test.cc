// SPDX-License-Identifier: Apache-2.0
// WEIR_DIRECT where it is not set, and where its value is none. The strict libcuda is, as a real
// driver, none of Weir's.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "nccl/stream/stream_support.h"

namespace weir::nccl::test {
namespace {

// Settings are read at the first call.
const bool kEnvironment = unsetenv("WEIR_DIRECT") == 0 && setenv("WEIR_EXPLAIN", "1", 1) == 0 &&
                          setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8", 1) == 0;

size_t count_of(const std::string& text, const std::string& words) {
  size_t count = 0;
  for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) {
    ++count;
  }
  return count;
}

// What two ranks tell while they reduce, gather and pass a message: on devices of their own, whose
// streams are used, or on one.
std::string told_of(const int (&devices)[2]) {
  testing::internal::CaptureStderr();
  use_device(0);  // a process that has not begun to use CUDA would be one without it
  ncclComm_t comms[2] = {};
  EXPECT_NCCL(ncclCommInitAll(comms, 2, devices));
  std::vector<Stream> streams;
  for (const int it : devices) {
    use_device(it);
    streams.emplace_back();
  }
  const auto group = [&](const std::function<void(int)>& call_on) {
    EXPECT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < 2; ++rank) {
      use_device(devices[rank]);
      call_on(rank);
    }
    EXPECT_NCCL(ncclGroupEnd());
    for (const Stream& it : streams) it.synchronize();
  };
  for (const Kind kind : {Kind::kAllReduce, Kind::kAllGather}) {
    const Exchange exchange(kind, 2, size_t{1} << 18, 0, 1, device);
    group([&](int rank) {
      EXPECT_NCCL(exchange.call_on(rank, comms[rank], streams[static_cast<size_t>(rank)]));
    });
    exchange.check();
  }
  const Array from(MemoryKind::kDevice, size_t{1} << 18);
  const Array to(MemoryKind::kDevice, from.size());
  from.set(numbers(from.size(), 0, 1));
  group([&](int rank) {
    cudaStream_t stream = streams[static_cast<size_t>(rank)].nccl();
    EXPECT_NCCL(rank == 0 ? ncclSend(from.data(), from.size(), ncclInt, 1, comms[0], stream)
                          : ncclRecv(to.data(), to.size(), ncclInt, 0, comms[1], stream));
  });
  EXPECT_EQ(to.get(), from.get());
  for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
  return testing::internal::GetCapturedStderr();
}

TEST(NcclDirectChoice, WithADriverThatIsNotWeirsAllIsDirect) {
  ASSERT_TRUE(kEnvironment);
  WEIR_NEEDS_DEVICES(2);
  WEIR_NEEDS_DEVICE_MEMORY();
  if (WEIR_TEST_HAS_KERNELS == 0) GTEST_SKIP() << "built without nvcc, so without kernels";
  const std::string told = told_of({0, 1});
  EXPECT_EQ(count_of(told, "device memory is copied directly"), 1u) << told;
  EXPECT_EQ(count_of(told, "on device memory are copied directly"), 2u) << told;
  EXPECT_EQ(count_of(told, "through host memory"), 0u) << told;
}

TEST(NcclDirectChoice, RanksOfOneProcessThatShareADeviceAreStagedAndTheReasonIsTold) {
  WEIR_NEEDS_HARDWARE_QUEUES();
  ASSERT_TRUE(kEnvironment);
  const bool counts = cuda::is_strict();
  const int copies = counts ? strict_cuda_host_copies() : 0;
  const int kernels = counts ? strict_cuda_kernels() : 0;
  const std::string told = told_of({0, 0});
  EXPECT_EQ(count_of(told, "share a process, a device and its 8 hardware queues"), 1u) << told;
  EXPECT_EQ(count_of(told, "directly"), 0u) << told;
  if (!counts) return;
  EXPECT_EQ(strict_cuda_kernels(), kernels);
  // Besides what the test itself has copied: each rank's operand and result.
  EXPECT_GE(strict_cuda_host_copies(), copies + 2 * 2 * 2);
}

void demand_with_one_queue() {
  setenv("WEIR_DIRECT", "1", 1);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
  use_device(0);
  ncclComm_t comms[2] = {};
  const int devices[] = {0, 0};
  const ncclResult_t result = ncclCommInitAll(comms, 2, devices);
  std::fprintf(stderr, "%s\n", ncclGetLastError(nullptr));
  std::_Exit(result == ncclInvalidUsage ? 0 : 1);
}

TEST(NcclDirectChoiceDeathTest, FewerQueuesThanRanksThatShareADeviceAreRefusedWhereItIsDemanded) {
  WEIR_NEEDS_HARDWARE_QUEUES();
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(demand_with_one_queue(), testing::ExitedWithCode(0),
              "2 ranks, of which rank 0 is one, share a process, a device and its 1 hardware");
}

void call_with_no_value() {
  setenv("WEIR_DIRECT", "perhaps", 1);
  ncclComm_t comm = nullptr;
  const ncclResult_t result = ncclCommInitAll(&comm, 1, nullptr);
  std::fprintf(stderr, "%s\n", ncclGetLastError(nullptr));
  std::_Exit(result == ncclSuccess ? 1 : 0);
}

TEST(NcclDirectChoiceDeathTest, AValueThatIsNoneIsAnErrorThatNamesIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(call_with_no_value(), testing::ExitedWithCode(0), "WEIR_DIRECT.*perhaps");
}

}  // namespace
}  // namespace weir::nccl::test
