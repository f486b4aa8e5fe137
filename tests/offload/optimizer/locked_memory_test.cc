// SPDX-License-Identifier: Apache-2.0
// The kernel is told of the buffers that carry transfers and of no other memory of the budget, so
// that a limit of locked memory that has room for those is no obstacle.
#include <sys/resource.h>
#include <sys/stat.h>

#include <fstream>

#include "offload/optimizer/child.h"
#include "offload/optimizer/optimizer_support.h"

namespace weir::offload::test {
namespace {

// A quarter of the budget is the stream's: 16 buffers.
constexpr uint64_t kBudget = uint64_t{16} << 20;
constexpr uint64_t kStream = kBudget / 4;

// Bytes that the kernel holds for transfers of this process.
uint64_t pinned_bytes() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("VmPin:", 0) == 0) return std::stoull(line.substr(6)) * 1024;
  return 0;
}

std::string run_one(const std::string& directory) {
  Groups groups(1);
  groups[0].name = "w";
  groups[0].element_count = 1'200'000;  // 14 MB of state: most of it has room in the budget
  OptimizerOptions options;
  options.directories = {directory};
  options.memory_bytes = kBudget;
  options.chunk_bytes = kStream / 16;
  options.thread_count = 2;
  const uint64_t before = pinned_bytes();
  auto made = Optimizer::create(options, groups);
  if (!made.ok()) return made.status().text();
  const uint64_t pinned = pinned_bytes() - before;
  const std::vector<uint16_t> gradient(groups[0].element_count, 0x3f80);
  for (int step = 0; step < 2; ++step) {
    Status status =
        made.value()->gradient(0, 0, gradient.size(), DataType::kBfloat16, gradient.data());
    if (status.ok()) status = made.value()->step({}, nullptr);
    if (!status.ok()) return status.text();
  }
  uint64_t held = 0;
  if (!made.value()->memory_bytes(&held).ok() || held <= 3 * kStream || held > kBudget)
    return "held " + std::to_string(held);
  return made.value()->describe() + " [pinned " + std::to_string(pinned >> 20) + " MiB]";
}

bool has_no_uring(const std::string& text) {
  return text.find("disk: ") != std::string::npos &&
         text.find("disk: io_uring") == std::string::npos;
}

TEST(LockedMemory, IsThatOfTheBuffersOfTheStream) {
  ScratchDirectory scratch;
  const std::string text = what_it_says(start_child([&] { return run_one(scratch / "a"); }));
  if (has_no_uring(text)) GTEST_SKIP() << text;
  EXPECT_NE(text.find(std::to_string(kStream) + " bytes registered"), std::string::npos) << text;
  EXPECT_NE(text.find("[pinned " + std::to_string(kStream >> 20) + " MiB]"), std::string::npos)
      << text;
}

// Root is not bound by the limit, so that the child gives its rights up. Its number is nobody's:
// what others have locked counts for each user.
TEST(LockedMemory, IsRegisteredUnderALimitThatHasRoomForTheStream) {
  constexpr unsigned kNobodys = 3'141'592;
  ScratchDirectory scratch;
  ASSERT_EQ(::chmod((scratch / "").c_str(), 0777), 0);
  const std::string text = what_it_says(start_child([&] {
    const rlimit limit = {kStream + (1 << 20), kStream + (1 << 20)};
    if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0)
      return std::string("the limit here is lower than the one of the test");
    if (::geteuid() == 0 && (::setgid(kNobodys) != 0 || ::setuid(kNobodys) != 0))
      return std::string("no rights given up");
    return run_one(scratch / "a");
  }));
  if (has_no_uring(text)) GTEST_SKIP() << text;
  EXPECT_NE(text.find(std::to_string(kStream) + " bytes registered"), std::string::npos) << text;
  EXPECT_EQ(text.find("memory is not registered"), std::string::npos) << text;
}

}  // namespace
}  // namespace weir::offload::test
