// SPDX-License-Identifier: Apache-2.0
// The resident size stays within the budget, 1 % and the library's own 32 MiB.
#include <sys/wait.h>

#include <cmath>
#include <fstream>

#include "offload/optimizer/optimizer_support.h"

namespace weir::offload::test {
namespace {

uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t total = 0;
  uint64_t resident = 0;
  file >> total >> resident;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

TEST(Budget, TheResidentSizeStaysWithinIt) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer's shadow of the memory is resident too";
#endif
  constexpr uint64_t kElements = 12'000'000;  // 144 MB of state
  constexpr uint64_t kBudget = uint64_t{64} << 20;
  ScratchDirectory scratch;
  const pid_t pid = ::fork();
  if (pid == 0) {
    Groups groups(1);
    groups[0].name = "w";
    groups[0].element_count = kElements;
    const std::vector<uint16_t> gradient(kElements, 0x3f80);
    const uint64_t before = resident_bytes();
    OptimizerOptions options;
    options.directories = {scratch / "a"};
    options.memory_bytes = kBudget;
    options.thread_count = 2;
    auto made = Optimizer::create(options, groups);
    if (!made.ok()) ::_exit(2);
    uint64_t most = 0;
    for (int step = 0; step < 3; ++step) {
      const Status given =
          step == 1
              ? made.value()->accumulate(0, 0, kElements, DataType::kBfloat16, gradient.data())
              : made.value()->gradient(0, 0, kElements, DataType::kBfloat16, gradient.data());
      if (!given.ok() || !made.value()->step({}, nullptr).ok()) {
        std::fprintf(stderr, "%s\n", given.text().c_str());
        ::_exit(3);
      }
      most = std::max(most, resident_bytes() - before);
    }
    std::printf("budget %llu bytes, resident %llu\n", static_cast<unsigned long long>(kBudget),
                static_cast<unsigned long long>(most));
    std::fflush(stdout);
    ::_exit(most <= kBudget + kBudget / 100 + (uint64_t{32} << 20) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace weir::offload::test
