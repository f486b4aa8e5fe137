// SPDX-License-Identifier: Apache-2.0
// What only the io_uring disk has: registration, its thread, what it probes for.
#include "offload/io/uring_disk.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "offload/io/arena.h"
#include "offload/io/disk_support.h"
#include "offload/io/uring_probe.h"

namespace weir::offload {
namespace {

constexpr uint64_t kBlock = kDiskAlignment;

class Uring : public testing::Test {
 protected:
  void SetUp() override {
    arena_ = Arena::create({.budget_bytes = 4 << 20}).take();
    options_.arena = arena_.get();
    Result<std::unique_ptr<UringDisk>> disk = UringDisk::create(options_);
    if (!disk.ok()) GTEST_SKIP() << disk.status().text();
    disk_ = disk.take();
    buffer_ = arena_->allocate(4 << 20).take();
  }
  Transfer write(FileId file, uint64_t tag = 0) {
    return {.write = true,
            .file = file,
            .offset_bytes = 0,
            .buffer = buffer_.data(),
            .bytes = 1 << 20,
            .tag = tag};
  }

  TemporaryDirectory directory_;
  std::unique_ptr<Arena> arena_;
  ArenaBuffer buffer_;
  DiskOptions options_;
  std::unique_ptr<UringDisk> disk_;
};

TEST_F(Uring, MovesToTheThreadThatUsesItWhileNothingIsUnderWay) {
  const FileId file = disk_->open(directory_ / "a", OpenMode::kCreate, 1 << 20).take();
  ASSERT_TRUE(transfer_one(disk_.get(), write(file)).ok());
  FileId second = 0;
  std::thread([&] {
    EXPECT_TRUE(transfer_one(disk_.get(), write(file)).ok());
    second = disk_->open(directory_ / "b", OpenMode::kCreate, 1 << 20).take();
    EXPECT_TRUE(transfer_one(disk_.get(), write(second)).ok());
  }).join();
  const int descriptors = open_descriptor_count();
  ASSERT_TRUE(disk_->close(second).ok());  // registered with a ring of a thread that is gone
  EXPECT_EQ(open_descriptor_count(), descriptors - 1);
  EXPECT_TRUE(transfer_one(disk_.get(), write(file)).ok());
  ASSERT_TRUE(disk_->close(file).ok());
}

TEST_F(Uring, AnotherThreadIsRefusedWhileTransfersAreUnderWay) {
  if (disk_->describe().find("SINGLE_ISSUER") == std::string::npos)
    GTEST_SKIP() << "the ring is bound to no thread: " << disk_->describe();
  const FileId file = disk_->open(directory_ / "a", OpenMode::kCreate, 1 << 20).take();
  const Transfer transfer = write(file);
  ASSERT_EQ(disk_->submit(std::span(&transfer, 1)).value(), 1u);
  std::thread([&] {
    std::vector<Completion> done;
    EXPECT_EQ(disk_->reap(1, now_ns() + kSecondNs, &done).code(), Code::kInvalidUsage);
    EXPECT_EQ(disk_->submit(std::span(&transfer, 1)).status().code(), Code::kInvalidUsage);
  }).join();
  std::vector<Completion> done;
  EXPECT_TRUE(disk_->reap(1, now_ns() + 30 * kSecondNs, &done).ok());
  EXPECT_EQ(done.size(), 1u);
}

TEST_F(Uring, PolledCompletionsAreUsedOrRefusedWithTheReason) {
  const Status works = probe_iopoll(directory_.path());
  options_.iopoll = true;
  options_.iopoll_directories = {directory_.path()};
  for (const DiskKind kind : {DiskKind::kUring, DiskKind::kAuto}) {
    options_.kind = kind;
    const Result<std::unique_ptr<Disk>> disk = open_disk(options_);
    ASSERT_EQ(disk.ok(), works.ok());
    if (!works.ok()) {
      const std::string text = disk.status().text();
      EXPECT_EQ(disk.status().code(), Code::kUnsupported);
      for (const std::string& part : {"IOPOLL in '" + directory_.path() + "'", works.text()})
        EXPECT_NE(text.find(part), std::string::npos) << text;
      continue;
    }
    EXPECT_NE(disk.value()->describe().find(", IOPOLL"), std::string::npos);
    const FileId file =
        disk.value()
            ->open(directory_ / std::to_string(static_cast<int>(kind)), OpenMode::kCreate, 1 << 20)
            .take();
    EXPECT_TRUE(transfer_one(disk.value().get(), write(file)).ok());
  }
  EXPECT_TRUE(works.ok() || std::filesystem::is_empty(directory_.path()));
}

TEST_F(Uring, APolledDiskNeedsADirectoryAndFilesWithDirectIo) {
  options_.iopoll = true;
  EXPECT_EQ(UringDisk::create(options_).status().code(), Code::kInvalidArgument);
  options_.iopoll_directories = {directory_ / "none"};
  const Status none = UringDisk::create(options_).status();
  EXPECT_EQ(none.code(), Code::kUnsupported);
  EXPECT_NE(none.text().find(directory_ / "none"), std::string::npos) << none.text();
  options_.kind = DiskKind::kPosix;
  EXPECT_EQ(open_disk(options_).status().code(), Code::kInvalidArgument);
}

TEST_F(Uring, AKernelThreadSubmitsWhereItIsWished) {
  options_.sqpoll = true;
  const std::unique_ptr<Disk> disk = open_disk(options_).take();
  EXPECT_NE(disk->describe().find(" SQPOLL"), std::string::npos) << disk->describe();
  const FileId file = disk->open(directory_ / "a", OpenMode::kCreate, 1 << 20).take();
  EXPECT_TRUE(transfer_one(disk.get(), write(file)).ok());
}

TEST_F(Uring, MemoryOfTheArenaIsRegisteredAndOtherMemoryWorks) {
  EXPECT_NE(disk_->describe().find("4194304 bytes registered"), std::string::npos)
      << disk_->describe();
  const FileId file = disk_->open(directory_ / "a", OpenMode::kCreate, 1 << 20).take();
  const Memory memory(1 << 20);
  memory.fill(3);
  Transfer transfer = write(file);
  transfer.buffer = memory.at(0);
  ASSERT_TRUE(transfer_one(disk_.get(), transfer).ok());
  transfer.write = false;
  transfer.buffer = buffer_.data();
  ASSERT_TRUE(transfer_one(disk_.get(), transfer).ok());
  EXPECT_TRUE(std::equal(memory.at(0), memory.at(1 << 20), buffer_.data()));
}

// In a child: limits and rights once given up do not come back. Root is not bound by the limit.
TEST_F(Uring, ALimitOfLockedMemoryIsNamedAndTransfersGoOn) {
  ASSERT_EQ(chmod(directory_.path().c_str(), 0777), 0);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit limit = {64 << 10, 64 << 10};
    std::string text = "no rights given up";
    if (setrlimit(RLIMIT_MEMLOCK, &limit) == 0 &&
        (geteuid() != 0 || (setgid(65534) == 0 && setuid(65534) == 0))) {
      const std::unique_ptr<Arena> arena = Arena::create({.budget_bytes = 4 << 20}).take();
      DiskOptions options;
      options.arena = arena.get();
      const Result<std::unique_ptr<UringDisk>> disk = UringDisk::create(options);
      text = disk.ok() ? disk.value()->describe() : disk.status().text();
      if (disk.ok()) {
        const ArenaBuffer buffer = arena->allocate(kBlock).take();
        const FileId file =
            disk.value()->open(directory_ / "child", OpenMode::kCreate, kBlock).take();
        const Status moved = transfer_one(disk.value().get(), {.write = true,
                                                               .file = file,
                                                               .offset_bytes = 0,
                                                               .buffer = buffer.data(),
                                                               .bytes = kBlock,
                                                               .tag = 0});
        text += moved.ok() ? " [transfers go on]" : moved.text();
      }
    }
    const ssize_t sent = ::write(ends[1], text.data(), text.size());
    _exit(sent == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string text(4096, '\0');
  const ssize_t got = ::read(ends[0], text.data(), text.size());
  close(ends[0]);
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_NE(text.find("RLIMIT_MEMLOCK is 65536"), std::string::npos) << text;
  EXPECT_NE(text.find("[transfers go on]"), std::string::npos) << text;
}

}  // namespace
}  // namespace weir::offload
