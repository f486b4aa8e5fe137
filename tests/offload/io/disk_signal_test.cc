// SPDX-License-Identifier: Apache-2.0
// Signals of the process, and files of another user, under both disks.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "offload/io/disk_support.h"
#include "offload/io/open_disk.h"

namespace weir::offload {
namespace {

std::atomic<int> signals{0};

// SIGALRM every 100 us, interrupting system calls.
class Alarms {
 public:
  Alarms() {
    struct sigaction action = {};
    action.sa_handler = [](int) { signals.fetch_add(1, std::memory_order_relaxed); };
    sigaction(SIGALRM, &action, &before_);
    const itimerval every = {{0, 100}, {0, 100}};
    setitimer(ITIMER_REAL, &every, nullptr);
  }
  ~Alarms() {
    const itimerval never = {};
    setitimer(ITIMER_REAL, &never, nullptr);
    sigaction(SIGALRM, &before_, nullptr);
  }
  Alarms(const Alarms&) = delete;
  Alarms& operator=(const Alarms&) = delete;

 private:
  struct sigaction before_ = {};
};

TEST(DiskUnderSignals, EveryCallGoesOnWhenInterrupted) {
  constexpr uint64_t kBytes = 8 << 20;
  constexpr uint64_t kPiece = 256 << 10;
  for (const DiskKind kind : {DiskKind::kAuto, DiskKind::kPosix}) {
    const TemporaryDirectory directory;
    const Memory memory(kBytes), expected(kBytes);
    const Alarms alarms;
    const int before = signals.load();
    const std::unique_ptr<Disk> disk = open_disk({.kind = kind}).take();
    // Until signals have certainly come; each round is whole.
    for (int round = 0; round < 200 && (round < 3 || signals.load() < before + 20); ++round) {
      const std::string path = directory / ("file" + std::to_string(round));
      const Result<FileId> file = disk->open(path, OpenMode::kCreate, kBytes);
      ASSERT_TRUE(file.ok()) << file.status().text();
      for (const bool write : {true, false}) {
        if (write) expected.fill(static_cast<uint64_t>(round));
        std::copy_n(expected.at(0), write ? kBytes : 0, memory.at(0));
        if (!write) std::fill_n(memory.at(0), kBytes, static_cast<unsigned char>(0));
        std::vector<Transfer> transfers;
        for (uint64_t at = 0; at < kBytes; at += kPiece)
          transfers.push_back({.write = write,
                               .file = file.value(),
                               .offset_bytes = at,
                               .buffer = memory.at(at),
                               .bytes = kPiece,
                               .tag = at});
        for (const Completion& one : transfer_all(disk.get(), transfers))
          ASSERT_TRUE(one.status.ok()) << one.status.text();
        if (write) {
          ASSERT_TRUE(disk->sync(file.value()).ok());
        }
      }
      EXPECT_TRUE(std::equal(expected.at(0), expected.at(0) + kBytes, memory.at(0)));
      ASSERT_TRUE(disk->close(file.value()).ok());
      ASSERT_TRUE(disk->sync_directory(directory.path()).ok());
      ASSERT_TRUE(disk->remove(path).ok());
    }
    EXPECT_GE(signals.load(), before + 20);
  }
}

// In a child, so that the rights given up stay given up there. Root may do everything.
TEST(DiskPermissions, AMissingRightIsNamedWithTheUserThatLacksIt) {
  const TemporaryDirectory directory;
  ASSERT_EQ(chmod(directory.path().c_str(), 0755), 0);
  ASSERT_EQ(mkdir((directory / "closed").c_str(), 0500), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(2);
    const Result<std::unique_ptr<Disk>> disk = open_disk({.kind = DiskKind::kPosix});
    if (!disk.ok()) _exit(3);
    const Status status =
        disk.value()->open(directory / "closed/file", OpenMode::kCreate, 4096).status();
    const bool named = status.text().find("Permission denied") != std::string::npos &&
                       status.text().find("as user") != std::string::npos &&
                       status.text().find("closed") != std::string::npos;
    _exit(named && status.code() == Code::kSystem ? 0 : 4);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace weir::offload
