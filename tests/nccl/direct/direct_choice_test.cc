// SPDX-License-Identifier: Apache-2.0
// WEIR_DIRECT where it is not set, and where its value is none. The strict libcuda is, as a real
// driver, none of Weir's.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "nccl/stream/stream_support.h"

namespace weir::nccl::test {
namespace {

// Settings are read at the first call.
const bool kEnvironment = unsetenv("WEIR_DIRECT") == 0 && setenv("WEIR_EXPLAIN", "1", 1) == 0;

size_t count_of(const std::string& text, const std::string& words) {
  size_t count = 0;
  for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) {
    ++count;
  }
  return count;
}

TEST(NcclDirectChoice, WithADriverThatIsNotWeirsMemoryIsStagedAndTheReasonIsToldOnce) {
  ASSERT_TRUE(kEnvironment);
  use_device(0);
  const int copies = strict_cuda_host_copies();
  testing::internal::CaptureStderr();
  {
    const StreamRanks ranks(2);
    for (const Kind kind : {Kind::kAllReduce, Kind::kAllGather}) {
      const Exchange exchange(kind, 2, size_t{1} << 18, 0, 1, device);
      EXPECT_NCCL(ncclGroupStart());
      for (int rank = 0; rank < 2; ++rank) {
        EXPECT_NCCL(exchange.call_on(rank, ranks.comm(rank), ranks.stream(rank)));
      }
      EXPECT_NCCL(ncclGroupEnd());
      ranks.synchronize();
      exchange.check();
    }
  }
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_EQ(count_of(told, "are off unless WEIR_DIRECT=1"), 1u) << told;
  EXPECT_EQ(count_of(told, "directly"), 0u) << told;
  EXPECT_EQ(strict_cuda_kernels(), 0);
  // Besides what the test itself has copied: each rank's operand and result.
  EXPECT_GE(strict_cuda_host_copies(), copies + 2 * 2 * 2);
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
