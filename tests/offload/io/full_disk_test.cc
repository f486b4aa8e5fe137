// SPDX-License-Identifier: Apache-2.0
// A file system that is full. It is a small one of the test's own, in a mount namespace of its own,
// for which it has to be root.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include "offload/io/arena.h"
#include "offload/io/disk_probe.h"
#include "offload/io/disk_support.h"
#include "offload/io/open_disk.h"

namespace weir::offload {
namespace {

constexpr uint64_t kMiB = 1 << 20;

class FullDisk : public testing::TestWithParam<DiskKind> {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can mount a file system";
    static const bool apart =
        unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
    if (!apart) GTEST_SKIP() << system_error("a mount namespace").text();
    if (mount("tmpfs", directory_.path().c_str(), "tmpfs", 0, "size=8m") != 0)
      GTEST_SKIP() << system_error("mount a file system").text();
    mounted_ = true;
    disk_ = open_disk({.kind = GetParam()}).take();
  }
  void TearDown() override {
    disk_.reset();
    if (mounted_) {
      EXPECT_EQ(umount(directory_.path().c_str()), 0);
    }
  }

  TemporaryDirectory directory_;
  bool mounted_ = false;
  std::unique_ptr<Disk> disk_;
};

TEST_P(FullDisk, IsFoundAtCreationWithWhatIsFreeAndLeavesNothing) {
  const Result<FileId> file = disk_->open(directory_ / "big", OpenMode::kCreate, 64 * kMiB);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), Code::kSystem);
  for (const char* words : {"No space left", "67108864 bytes", "are free", "big"})
    EXPECT_NE(file.status().text().find(words), std::string::npos) << file.status().text();
  EXPECT_TRUE(disk_->list(directory_.path()).value().empty());
  EXPECT_EQ(disk_->free_bytes(directory_.path()).value(), 8 * kMiB);
}

TEST_P(FullDisk, IsTheErrorOfAWriteThatDoesNotFit) {
  const FileId file = disk_->open(directory_ / "sparse", OpenMode::kCreate, 0).take();
  const FileId filler = disk_->open(directory_ / "filler", OpenMode::kCreate, 7 * kMiB).take();
  const Memory memory(4 * kMiB);
  const Status status = transfer_one(disk_.get(), {.write = true,
                                                   .file = file,
                                                   .offset_bytes = 0,
                                                   .buffer = memory.at(0),
                                                   .bytes = 4 * kMiB,
                                                   .tag = 1});
  EXPECT_EQ(status.code(), Code::kSystem);
  EXPECT_NE(status.text().find("No space left"), std::string::npos) << status.text();
  ASSERT_TRUE(disk_->close(filler).ok());
  ASSERT_TRUE(disk_->remove(directory_ / "filler").ok());
  EXPECT_TRUE(transfer_one(disk_.get(), {.write = true,
                                         .file = file,
                                         .offset_bytes = 0,
                                         .buffer = memory.at(0),
                                         .bytes = 4 * kMiB,
                                         .tag = 1})
                  .ok());
}

TEST_P(FullDisk, ThatIsMountedReadOnlySaysSoAndWhatCanBeDone) {
  ASSERT_TRUE(disk_->close(disk_->open(directory_ / "old", OpenMode::kCreate, 4096).take()).ok());
  ASSERT_EQ(mount("tmpfs", directory_.path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
  for (const Status& status :
       {disk_->open(directory_ / "old", OpenMode::kReadWrite).status(),
        disk_->open(directory_ / "new", OpenMode::kCreate, 4096).status(),
        disk_->make_directory(directory_ / "store"), disk_->remove(directory_ / "old")}) {
    for (const std::string& part : {"the file system of '" + directory_.path() + "' is mounted",
                                    std::string("mount it for writing")})
      EXPECT_NE(status.text().find(part), std::string::npos) << status.text();
    EXPECT_EQ(status.text().find("choose another"), std::string::npos) << status.text();
  }
  EXPECT_TRUE(disk_->open(directory_ / "old", OpenMode::kReadOnly).ok());
}

TEST_P(FullDisk, IsProbedInHalfOfItsSpace) {
  const std::unique_ptr<Arena> arena = Arena::create({.budget_bytes = 2 * kMiB}).take();
  DiskProbeOptions options;
  options.directory = directory_.path();
  options.transfer_bytes = 256 << 10;
  options.time_ms = 20;
  const Result<DiskRates> rates = probe_disk(disk_.get(), arena.get(), options);
  ASSERT_TRUE(rates.ok()) << rates.status().text();
  EXPECT_LE(rates.value().file_bytes, 4 * kMiB);
  const FileId filler =
      disk_->open(directory_ / "filler", OpenMode::kCreate, 8 * kMiB - 65536).take();
  const Status status = probe_disk(disk_.get(), arena.get(), options).status();
  EXPECT_NE(status.text().find("free"), std::string::npos) << status.text();
  EXPECT_EQ(arena->used_bytes(), 0u);
  ASSERT_TRUE(disk_->close(filler).ok());
}

INSTANTIATE_TEST_SUITE_P(Kinds, FullDisk, testing::Values(DiskKind::kAuto, DiskKind::kPosix));

}  // namespace
}  // namespace weir::offload
