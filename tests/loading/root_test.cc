// SPDX-License-Identifier: Apache-2.0
// libnccl.so.2 in roots that hold a C library and nothing else: as what a program is linked with,
// and by LD_PRELOAD in place of another one. The program checks every collective
// (tests/nccl/program.c).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "perf/command.h"

namespace weir::test {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kSeconds = 100;

struct Ended {
  int status = -1;  // 128 + the signal that ended it
  std::string out;  // and its errors
};

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Replaces this process by the program, in the root, with this machine's processes, devices and
// /sys, and nothing else in its environment.
void become(const fs::path& root, std::vector<std::string> arguments,
            std::vector<std::string> environment) {
  alarm(kSeconds);
  if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return perror("a mount namespace of its own");
  for (const char* folder : {"/proc", "/sys", "/dev"}) {
    const std::string place = root.string() + folder;
    if (mount(folder, place.c_str(), nullptr, MS_BIND | MS_REC, nullptr) != 0)
      return perror(place.c_str());
  }
  if (chroot(root.c_str()) != 0 || chdir("/") != 0) return perror("chroot");
  execve(arguments[0].c_str(), pointers_to(arguments).data(), pointers_to(environment).data());
  perror(arguments[0].c_str());
}

class BareRoot : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root may change its root";
    const fs::path folder = fs::path(WEIR_ROOTS) / GetParam();
    const CommandResult made = run_command(WEIR_MAKE_ROOT, {GetParam(), folder.string()});
    if (made.status == 77) GTEST_SKIP() << made.out;
    ASSERT_EQ(made.status, 0) << made.out << made.err;
    root_ = folder / "system";
    put(WEIR_LIBRARY, "weir/libnccl.so.2");
    put(WEIR_REFUSING, "refusing/libnccl.so.2");
    put(WEIR_PROGRAM, "linked");
    put(WEIR_PROGRAM_PRELOAD, "preloaded");
  }

  void put(const fs::path& file, const char* place) const {
    fs::create_directories((root_ / place).parent_path());
    fs::copy_file(file, root_ / place, fs::copy_options::overwrite_existing);
  }

  Ended run(const std::vector<std::string>& arguments,
            const std::vector<std::string>& environment) const {
    const fs::path output = root_ / "tmp/output";
    const pid_t child = fork();
    if (child == 0) {
      const int fd = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      if (fd >= 0 && dup2(fd, STDOUT_FILENO) >= 0 && dup2(fd, STDERR_FILENO) >= 0)
        become(root_, arguments, environment);
      _exit(127);
    }
    Ended ended;
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) return ended;
    ended.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    std::ostringstream text;
    text << std::ifstream(output).rdbuf();
    ended.out = text.str();
    return ended;
  }

  fs::path root_;
};

void expect_ok(const Ended& ended, const std::string& line) {
  EXPECT_EQ(ended.status, 0) << ended.out;
  EXPECT_NE(ended.out.find(line + ": OK"), std::string::npos) << ended.out;
  EXPECT_EQ(ended.out.find("ERROR: ld.so"), std::string::npos) << ended.out;
}

TEST_P(BareRoot, HasTheLibraryThatAProgramIsLinkedWith) {
  const std::vector<std::string> environment = {"LD_LIBRARY_PATH=/weir"};
  expect_ok(run({"/linked", "threads", "2"}, environment), "threads 2");
  expect_ok(run({"/linked", "processes", "2"}, environment), "processes 2");
}

TEST_P(BareRoot, HasThePreloadedLibraryInPlaceOfAnother) {
  std::vector<std::string> environment = {"LD_LIBRARY_PATH=/refusing"};
  const Ended refused = run({"/preloaded", "threads", "2"}, environment);
  EXPECT_NE(refused.status, 0);
  EXPECT_NE(refused.out.find("the library that refuses"), std::string::npos) << refused.out;
  environment.emplace_back("LD_PRELOAD=/weir/libnccl.so.2");
  expect_ok(run({"/preloaded", "threads", "2"}, environment), "threads 2");
  expect_ok(run({"/preloaded", "processes", "2"}, environment), "processes 2");
}

// OpenSSL without its configuration, and io_uring.
TEST_P(BareRoot, RunsOverTcpWithTls) {
  expect_ok(run({"/linked", "processes", "2"},
                {"LD_LIBRARY_PATH=/weir", "WEIR_TRANSPORT=tcp", "WEIR_TLS=all"}),
            "processes 2");
}

// The parts of the machine come from /sys, as there is no hwloc.
TEST_P(BareRoot, KnowsTheMachine) {
  expect_ok(run({"/linked", "threads", "2"},
                {"LD_LIBRARY_PATH=/weir", "NCCL_TOPO_DUMP_FILE=/tmp/topology.xml"}),
            "threads 2");
  std::ostringstream text;
  text << std::ifstream(root_ / "tmp/topology.xml").rdbuf();
  EXPECT_NE(text.str().find("<cpu "), std::string::npos) << text.str();
}

INSTANTIATE_TEST_SUITE_P(Debian, BareRoot, testing::Values("bookworm", "trixie"),
                         [](const auto& it) { return std::string(it.param); });

}  // namespace
}  // namespace weir::test
