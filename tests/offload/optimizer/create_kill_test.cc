// SPDX-License-Identifier: Apache-2.0
// kill -9 of real processes while they create a store: what is left is what open or create takes.
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include "core/base/clock.h"
#include "offload/optimizer/optimizer_support.h"

namespace weir::offload::test {
namespace {

constexpr int kKills = 60;

TEST(CreateKill, LeavesWhatOpenOrCreateTakesEachTime) {
  const Groups groups = mixed_groups();
  std::mt19937_64 random(seed());
  ScratchDirectory scratch;
  const auto options_of = [&](const std::string& name) {
    OptimizerOptions options = small_options();
    options.directories = {scratch / (name + "-0"), scratch / (name + "-1")};
    return options;
  };
  // In the child: the instants of a creation and of its end.
  const auto create = [&](const std::string& name, int say) {
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    uint64_t at_ns = now_ns();
    if (::write(say, &at_ns, sizeof at_ns) != sizeof at_ns) ::_exit(3);
    const auto made = Optimizer::create(options_of(name), groups);
    at_ns = now_ns();
    if (::write(say, &at_ns, sizeof at_ns) != sizeof at_ns) ::_exit(3);
    if (!made.ok()) std::fprintf(stderr, "%s\n", made.status().text().c_str());
    ::pause();
    ::_exit(made.ok() ? 0 : 1);
  };
  const auto hear = [](int from) {
    uint64_t at_ns = 0;
    EXPECT_EQ(::read(from, &at_ns, sizeof at_ns), static_cast<ssize_t>(sizeof at_ns));
    return at_ns;
  };
  int say[2];
  ASSERT_EQ(::pipe(say), 0);
  pid_t pid = create("whole", say[1]);
  uint64_t begin_ns = hear(say[0]);
  const uint64_t whole_ns = hear(say[0]) - begin_ns;
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  int opened = 0;
  int created = 0;
  int cut = 0;
  for (int i = 0; i < kKills; ++i) {
    SCOPED_TRACE(testing::Message() << "kill " << i << ", WEIR_TEST_SEED=" << seed());
    // Two lives in each pair of directories: into nothing, and over what the first has left.
    const std::string name = std::to_string(i / 2);
    pid = create(name, say[1]);
    begin_ns = hear(say[0]);
    const uint64_t late_ns = begin_ns + random() % (whole_ns + whole_ns / 8);
    while (now_ns() < late_ns) {
    }
    ::kill(pid, SIGKILL);
    ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
    // Whether it had ended before; read without waiting for what was never written.
    int readable = 0;
    ASSERT_EQ(::ioctl(say[0], FIONREAD, &readable), 0);
    if (readable > 0) hear(say[0]);
    cut += readable == 0;
    if (i % 2 == 0) continue;
    const OptimizerOptions options = options_of(name);
    auto found = Optimizer::open(options, groups);
    if (found.ok()) {
      ++opened;
      continue;
    }
    found = Optimizer::create(options, groups);
    ASSERT_TRUE(found.ok()) << found.status().text();
    ++created;
    ASSERT_OK(set_first(*found.value(), groups));
    ASSERT_OK(run_steps(*found.value(), groups, 0, 1));
    EXPECT_TRUE(same_bits(values_of(*found.value(), groups), in_memory(groups, 1)));
  }
  std::printf("%d of %d creations were cut short, %d opened, %d created\n", cut, kKills, opened,
              created);
  EXPECT_EQ(opened + created, kKills / 2);
  EXPECT_GT(cut, kKills / 4);
  ::close(say[0]);
  ::close(say[1]);
}

}  // namespace
}  // namespace weir::offload::test
