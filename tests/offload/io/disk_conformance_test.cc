// SPDX-License-Identifier: Apache-2.0
// What every disk of the operating system does, whatever moves its bytes.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "offload/io/arena.h"
#include "offload/io/disk_support.h"
#include "offload/io/open_disk.h"

namespace weir::offload {
namespace {

constexpr uint64_t kBlock = kDiskAlignment;

struct Flavour {
  const char* name;
  DiskOptions options;
  bool arena;
};

DiskOptions options_of(DiskKind kind, bool direct, uint64_t request_bytes_max, bool sqpoll,
                       uint32_t depth) {
  DiskOptions options;
  options.kind = kind;
  options.direct = direct;
  options.request_bytes_max = request_bytes_max;
  options.sqpoll = sqpoll;
  options.depth = depth;
  return options;
}

constexpr uint64_t kLong = uint64_t{1} << 30;

const Flavour kFlavours[] = {
    {"posix", options_of(DiskKind::kPosix, true, kLong, false, 16), false},
    {"posix_page_cache", options_of(DiskKind::kPosix, false, kLong, false, 16), false},
    {"posix_in_pieces", options_of(DiskKind::kPosix, true, kBlock, false, 3), true},
#if WEIR_HAVE_URING
    {"uring", options_of(DiskKind::kUring, true, kLong, false, 16), true},
    {"uring_unregistered", options_of(DiskKind::kUring, true, kLong, false, 16), false},
    {"uring_page_cache", options_of(DiskKind::kUring, false, kLong, false, 16), true},
    {"uring_in_pieces", options_of(DiskKind::kUring, true, kBlock, false, 3), true},
    {"uring_sqpoll", options_of(DiskKind::kUring, true, kLong, true, 16), true},
#endif
};

class DiskConformance : public testing::TestWithParam<Flavour> {
 protected:
  void SetUp() override {
    ASSERT_FALSE(directory_.path().empty());
    DiskOptions options = GetParam().options;
    if (GetParam().arena) {
      arena_ = Arena::create({.budget_bytes = 8 << 20}).take();
      buffer_ = arena_->allocate(8 << 20).take();
      options.arena = arena_.get();
      memory_ = buffer_.data();
    } else {
      memory_ = own_.at(0);
    }
    Result<std::unique_ptr<Disk>> disk = open_disk(options);
    if (!disk.ok() && disk.status().code() == Code::kUnsupported)
      GTEST_SKIP() << disk.status().text();
    ASSERT_TRUE(disk.ok()) << disk.status().text();
    disk_ = disk.take();
  }
  FileId create(const std::string& name, uint64_t bytes) {
    const Result<FileId> file = disk_->open(directory_ / name, OpenMode::kCreate, bytes);
    EXPECT_TRUE(file.ok()) << file.status().text();
    return file.ok() ? file.value() : 0;
  }
  Transfer read(FileId file, uint64_t offset, unsigned char* buffer, uint64_t bytes,
                uint64_t tag = 7) {
    return {.write = false,
            .file = file,
            .offset_bytes = offset,
            .buffer = buffer,
            .bytes = bytes,
            .tag = tag};
  }
  Transfer write(FileId file, uint64_t offset, unsigned char* buffer, uint64_t bytes,
                 uint64_t tag = 7) {
    Transfer t = read(file, offset, buffer, bytes, tag);
    t.write = true;
    return t;
  }

  TemporaryDirectory directory_;
  Memory own_{8 << 20};
  std::unique_ptr<Arena> arena_;
  ArenaBuffer buffer_;
  unsigned char* memory_ = nullptr;  // 8 MiB
  std::unique_ptr<Disk> disk_;
};

TEST_P(DiskConformance, WhatWasWrittenIsReadByteByByte) {
  const uint64_t bytes = 2 << 20;
  const FileId file = create("data", bytes);
  Memory expected(bytes);
  expected.fill(1);
  std::copy_n(expected.at(0), bytes, memory_);
  std::vector<Transfer> writes, reads;
  // Lengths from one block on; in an order that is not that of the file.
  uint64_t offset = 0;
  for (uint64_t blocks = 1; offset < bytes; blocks = blocks * 2 + 1) {
    const uint64_t length = std::min(blocks * kBlock, bytes - offset);
    writes.push_back(write(file, offset, memory_ + offset, length, writes.size()));
    reads.push_back(read(file, offset, memory_ + bytes + offset, length, reads.size()));
    offset += length;
  }
  std::reverse(writes.begin(), writes.end());
  for (const Completion& one : transfer_all(disk_.get(), writes))
    ASSERT_TRUE(one.status.ok()) << one.status.text();
  ASSERT_TRUE(disk_->sync(file).ok());
  for (const Completion& one : transfer_all(disk_.get(), reads))
    ASSERT_TRUE(one.status.ok()) << one.status.text();
  EXPECT_TRUE(std::equal(expected.at(0), expected.at(bytes), memory_ + bytes));
  EXPECT_EQ(disk_->size(file).value(), bytes);
  ASSERT_TRUE(disk_->close(file).ok());
  // And by other means than ours.
  std::ifstream stream(directory_ / "data", std::ios::binary);
  std::vector<char> content(bytes);
  stream.read(content.data(), static_cast<std::streamsize>(bytes));
  EXPECT_EQ(static_cast<uint64_t>(stream.gcount()), bytes);
  EXPECT_TRUE(std::equal(expected.at(0), expected.at(bytes),
                         reinterpret_cast<unsigned char*>(content.data())));
}

TEST_P(DiskConformance, EveryTransferCompletesOnceWithItsTagWhateverTheOrder) {
  constexpr uint32_t kCount = 500;
  const FileId file = create("many", kCount * kBlock);
  std::vector<Transfer> transfers;
  for (uint32_t i = 0; i < kCount; ++i)
    transfers.push_back(write(file, i * kBlock, memory_ + i % 64 * kBlock, kBlock, 1000 + i));
  std::shuffle(transfers.begin(), transfers.end(), std::mt19937(5));
  std::set<uint64_t> tags;
  for (const Completion& one : transfer_all(disk_.get(), transfers)) {
    EXPECT_TRUE(one.status.ok()) << one.status.text();
    EXPECT_TRUE(tags.insert(one.tag).second) << one.tag;
  }
  EXPECT_EQ(tags.size(), kCount);
  EXPECT_EQ(*tags.begin(), 1000u);
  EXPECT_EQ(disk_->in_flight(), 0u);
}

TEST_P(DiskConformance, NoMoreThanTheDepthIsTaken) {
  const FileId file = create("depth", 64 * kBlock);
  EXPECT_EQ(disk_->depth(), GetParam().options.depth);
  std::vector<Transfer> transfers;
  for (uint64_t i = 0; i < disk_->depth() + 5; ++i)
    transfers.push_back(write(file, i * kBlock, memory_, kBlock, i));
  const Result<uint32_t> taken = disk_->submit(transfers);
  ASSERT_TRUE(taken.ok()) << taken.status().text();
  EXPECT_EQ(taken.value(), disk_->depth());
  EXPECT_EQ(disk_->in_flight(), disk_->depth());
  EXPECT_EQ(disk_->submit(transfers).value(), 0u);
  std::vector<Completion> done;
  // More than there are is as much as there are.
  ASSERT_TRUE(disk_->reap(1000, now_ns() + 30 * kSecondNs, &done).ok());
  EXPECT_EQ(done.size(), disk_->depth());
  ASSERT_TRUE(disk_->reap(1, now_ns(), &done).ok());  // nothing under way: no wait
  EXPECT_EQ(disk_->submit({}).value(), 0u);
}

TEST_P(DiskConformance, AMissedDeadlineIsATimeoutAndLosesNothing) {
  const FileId file = create("late", 8 << 20);
  std::vector<Transfer> transfers;
  for (uint64_t i = 0; i < disk_->depth(); ++i)
    transfers.push_back(write(file, i * (512 << 10), memory_ + i % 8 * (1 << 20), 512 << 10, i));
  ASSERT_EQ(disk_->submit(transfers).value(), transfers.size());
  std::vector<Completion> done;
  const Status first = disk_->reap(disk_->depth(), now_ns(), &done);
  if (!first.ok()) {
    EXPECT_EQ(first.code(), Code::kTimeout) << first.text();
    EXPECT_LT(done.size(), transfers.size());
  }
  EXPECT_EQ(first.ok(), done.size() == transfers.size());
  EXPECT_EQ(disk_->in_flight(), transfers.size() - done.size());
  ASSERT_TRUE(disk_->reap(disk_->in_flight(), now_ns() + 30 * kSecondNs, &done).ok());
  ASSERT_EQ(done.size(), transfers.size());
  for (const Completion& one : done) EXPECT_TRUE(one.status.ok()) << one.status.text();
}

TEST_P(DiskConformance, WhatIsNotAlignedIsRefusedAndNothingIsTaken) {
  const FileId file = create("aligned", 8 * kBlock);
  const Transfer good = write(file, 0, memory_, kBlock);
  std::vector<Transfer> bad(8, good);
  bad[0].offset_bytes = 512;
  bad[1].bytes = kBlock - 512;
  bad[2].buffer = memory_ + 512;
  bad[3].bytes = 0;
  bad[4].buffer = nullptr;
  bad[5].file = file + 1;
  bad[6].offset_bytes = std::numeric_limits<uint64_t>::max() / kBlock * kBlock;
  bad[7].bytes = std::numeric_limits<int64_t>::max() / kBlock * kBlock + kBlock;
  for (const Transfer& one : bad) {
    const Transfer list[] = {good, one};
    const Result<uint32_t> taken = disk_->submit(list);
    ASSERT_FALSE(taken.ok());
    EXPECT_EQ(taken.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(disk_->in_flight(), 0u);
  }
  const Result<FileId> read_only = disk_->open(directory_ / "aligned", OpenMode::kReadOnly);
  ASSERT_TRUE(read_only.ok());
  const Transfer forbidden = write(read_only.value(), 0, memory_, kBlock);
  EXPECT_EQ(disk_->submit(std::span(&forbidden, 1)).status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(transfer_one(disk_.get(), read(read_only.value(), 0, memory_, kBlock)).ok());
}

TEST_P(DiskConformance, AReadBeyondTheEndIsRefusedWherever) {
  const FileId file = create("short", 4 * kBlock);
  ASSERT_TRUE(transfer_one(disk_.get(), write(file, 0, memory_, 4 * kBlock)).ok());
  // The last block is cut in its middle, at 1, at 512 bytes, and the file ends at a block.
  for (const uint64_t size : {3 * kBlock + 2000, 3 * kBlock + 1, 3 * kBlock + 512, 3 * kBlock}) {
    ASSERT_EQ(truncate((directory_ / "short").c_str(), static_cast<off_t>(size)), 0);
    EXPECT_EQ(disk_->size(file).value(), size);
    EXPECT_TRUE(transfer_one(disk_.get(), read(file, 0, memory_, 3 * kBlock)).ok());
    for (const auto& [offset, bytes] :
         std::vector<std::pair<uint64_t, uint64_t>>{{0, 4 * kBlock},
                                                    {3 * kBlock, kBlock},
                                                    {2 * kBlock, 6 * kBlock},
                                                    {9 * kBlock, kBlock}}) {
      const Status status = transfer_one(disk_.get(), read(file, offset, memory_, bytes));
      EXPECT_EQ(status.code(), Code::kRefused) << size << " " << offset << " " << status.text();
      EXPECT_NE(status.text().find("short"), std::string::npos);
    }
  }
}

TEST_P(DiskConformance, AWriteBeyondTheEndMakesTheFileLonger) {
  const FileId file = create("longer", kBlock);
  ASSERT_TRUE(transfer_one(disk_.get(), write(file, 5 * kBlock, memory_, 2 * kBlock)).ok());
  EXPECT_EQ(disk_->size(file).value(), 7 * kBlock);
}

TEST_P(DiskConformance, TruncateCutsWhatLiesBehind) {
  const FileId file = create("cut", 4 * kBlock);
  ASSERT_TRUE(disk_->truncate(file, 3 * kBlock).ok());
  EXPECT_EQ(disk_->size(file).value(), 3 * kBlock);
  EXPECT_FALSE(
      disk_->truncate(disk_->open(directory_ / "cut", OpenMode::kReadOnly).take(), 0).ok());
}

TEST_P(DiskConformance, TellsWhetherANameIsThatOfAnOpenFile) {
  const FileId file = create("named", kBlock);
  EXPECT_TRUE(disk_->is_name_of(directory_ / "named", file).value());
  ASSERT_TRUE(disk_->rename(directory_ / "named", directory_ / "moved").ok());
  EXPECT_FALSE(disk_->is_name_of(directory_ / "named", file).value());
  EXPECT_TRUE(disk_->is_name_of(directory_ / "moved", file).value());
  create("named", kBlock);
  EXPECT_FALSE(disk_->is_name_of(directory_ / "named", file).value());
  ASSERT_TRUE(disk_->remove(directory_ / "moved").ok());
  EXPECT_FALSE(disk_->is_name_of(directory_ / "moved", file).value());
}

TEST_P(DiskConformance, CreatedFilesHaveTheirSpaceAndMode) {
  create("space", 1 << 20);
  struct stat info;
  ASSERT_EQ(stat((directory_ / "space").c_str(), &info), 0);
  EXPECT_EQ(info.st_size, 1 << 20);
  EXPECT_GE(info.st_blocks * 512, 1 << 20);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const Result<FileId> again = disk_->open(directory_ / "space", OpenMode::kCreate, 5);
  ASSERT_FALSE(again.ok());
  EXPECT_NE(again.status().text().find("exists"), std::string::npos) << again.status().text();
  ASSERT_TRUE(disk_->exists(directory_ / "space").value());  // the failed creation removed nothing
}

TEST_P(DiskConformance, AFileThatCannotHaveItsSpaceLeavesNothingBehind) {
  const Result<FileId> file =
      disk_->open(directory_ / "huge", OpenMode::kCreate, uint64_t{1} << 60);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), Code::kSystem) << file.status().text();
  EXPECT_FALSE(disk_->exists(directory_ / "huge").value());
  EXPECT_EQ(disk_->open(directory_ / "huge", OpenMode::kCreate, ~uint64_t{0}).status().code(),
            Code::kInvalidArgument);
  EXPECT_FALSE(disk_->exists(directory_ / "huge").value());
}

TEST_P(DiskConformance, NamesAreMadeListedLinkedRenamedRemoved) {
  const std::string folder = directory_ / "folder";
  ASSERT_TRUE(disk_->make_directory(folder).ok());
  ASSERT_TRUE(disk_->make_directory(folder).ok());  // may exist
  struct stat info;
  ASSERT_EQ(stat(folder.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  const FileId file = create("folder/b", kBlock);
  memory_[0] = 42;
  ASSERT_TRUE(transfer_one(disk_.get(), write(file, 0, memory_, kBlock)).ok());
  ASSERT_TRUE(disk_->link(folder + "/b", folder + "/a").ok());
  EXPECT_EQ(disk_->list(folder).value(), (std::vector<std::string>{"a", "b"}));
  ASSERT_TRUE(disk_->rename(folder + "/b", folder + "/c").ok());
  create("folder/d", kBlock);
  ASSERT_TRUE(disk_->rename(folder + "/c", folder + "/d").ok());  // replaces
  ASSERT_TRUE(disk_->sync_directory(folder).ok());
  EXPECT_EQ(disk_->list(folder).value(), (std::vector<std::string>{"a", "d"}));
  EXPECT_FALSE(disk_->exists(folder + "/c").value());
  ASSERT_TRUE(disk_->remove(folder + "/a").ok());
  EXPECT_EQ(disk_->list(folder).value(), (std::vector<std::string>{"d"}));
  const FileId again = disk_->open(folder + "/d", OpenMode::kReadOnly).take();
  memory_[0] = 0;
  ASSERT_TRUE(transfer_one(disk_.get(), read(again, 0, memory_, kBlock)).ok());
  EXPECT_EQ(memory_[0], 42);
  EXPECT_GT(disk_->free_bytes(folder).value(), 0u);
  EXPECT_FALSE(disk_->remove(folder).ok());  // not empty
  ASSERT_TRUE(disk_->remove(folder + "/d").ok());
  ASSERT_TRUE(disk_->remove(folder).ok());
  EXPECT_FALSE(disk_->exists(folder).value());
}

TEST_P(DiskConformance, ACloneHasTheContentOrThereIsNone) {
  const FileId file = create("origin", kBlock);
  memory_[5] = 99;
  ASSERT_TRUE(transfer_one(disk_.get(), write(file, 0, memory_, kBlock)).ok());
  const Status cloned = disk_->clone(directory_ / "origin", directory_ / "clone");
  if (!cloned.ok()) {
    EXPECT_EQ(cloned.code(), Code::kUnsupported) << cloned.text();
    EXPECT_FALSE(disk_->exists(directory_ / "clone").value());
    return;
  }
  const FileId clone = disk_->open(directory_ / "clone", OpenMode::kReadOnly).take();
  memory_[5] = 0;
  ASSERT_TRUE(transfer_one(disk_.get(), read(clone, 0, memory_, kBlock)).ok());
  EXPECT_EQ(memory_[5], 99);
}

TEST_P(DiskConformance, ALockExcludesOthersUntilTheFileIsClosed) {
  const FileId file = create("locked", kBlock);
  const FileId other = disk_->open(directory_ / "locked", OpenMode::kReadOnly).take();
  ASSERT_TRUE(disk_->lock(file).ok());
  const Status refused = disk_->lock(other);
  EXPECT_EQ(refused.code(), Code::kRefused) << refused.text();
  EXPECT_TRUE(transfer_one(disk_.get(), write(file, 0, memory_, kBlock)).ok());
  ASSERT_TRUE(disk_->close(file).ok());
  EXPECT_TRUE(disk_->lock(other).ok());
  // Also when the disk goes with the file open.
  disk_.reset();
  disk_ = open_disk({.kind = DiskKind::kPosix}).take();
  const FileId third = disk_->open(directory_ / "locked", OpenMode::kReadWrite).take();
  EXPECT_TRUE(disk_->lock(third).ok());
}

TEST_P(DiskConformance, ErrorsNameTheCallThePathAndTheReason) {
  const std::string missing = directory_ / "missing";
  const std::vector<Status> errors = {
      disk_->open(missing, OpenMode::kReadOnly).status(),
      disk_->open(missing, OpenMode::kReadWrite).status(),
      disk_->open(missing + "/below", OpenMode::kCreate).status(),
      disk_->list(missing).status(),
      disk_->rename(missing, directory_ / "x"),
      disk_->remove(missing),
      disk_->link(missing, directory_ / "x"),
      disk_->clone(missing, directory_ / "x"),
      disk_->free_bytes(missing).status(),
      disk_->sync_directory(missing),
      disk_->make_directory(missing + "/below"),
  };
  for (const Status& error : errors) {
    EXPECT_EQ(error.code(), Code::kSystem);
    EXPECT_NE(error.text().find("missing"), std::string::npos) << error.text();
    EXPECT_NE(error.text().find("No such file"), std::string::npos) << error.text();
  }
  EXPECT_EQ(disk_->open(directory_.path(), OpenMode::kReadOnly).status().code(), Code::kRefused);
  ASSERT_EQ(mkfifo((directory_ / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(disk_->open(directory_ / "fifo", OpenMode::kReadWrite).status().code(), Code::kRefused);
  EXPECT_EQ(disk_->open(directory_ / "fifo", OpenMode::kReadOnly).status().code(), Code::kRefused);
  for (const Status& error :
       {disk_->close(77), disk_->sync(77), disk_->size(77).status(), disk_->lock(77)})
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
}

TEST_P(DiskConformance, AnOpenFileCannotBeClosedUnderItsTransfers) {
  const FileId file = create("busy", 1 << 20);
  const Transfer transfer = write(file, 0, memory_, 1 << 20);
  ASSERT_EQ(disk_->submit(std::span(&transfer, 1)).value(), 1u);
  EXPECT_EQ(disk_->close(file).code(), Code::kInvalidUsage);
  std::vector<Completion> done;
  ASSERT_TRUE(disk_->reap(1, now_ns() + 30 * kSecondNs, &done).ok());
  EXPECT_TRUE(done[0].status.ok()) << done[0].status.text();
  EXPECT_TRUE(disk_->close(file).ok());
  EXPECT_EQ(disk_->close(file).code(), Code::kInvalidArgument);
}

// More than are registered with io_uring.
TEST_P(DiskConformance, ManyFilesAreKeptApartAndTheirIdsUsedAgain) {
  const int descriptors = open_descriptor_count();
  for (int round = 0; round < 2; ++round) {
    const uint32_t file_count = round == 0 ? 70 : 8;
    std::vector<FileId> files;
    std::vector<Transfer> transfers;
    for (uint32_t i = 0; i < file_count; ++i) {
      files.push_back(create(std::to_string(round) + "_" + std::to_string(i), kBlock));
      std::fill_n(memory_ + i * kBlock, kBlock, static_cast<unsigned char>(i + 1 + round));
      transfers.push_back(write(files[i], 0, memory_ + i * kBlock, kBlock, i));
    }
    EXPECT_LT(*std::max_element(files.begin(), files.end()), file_count);
    for (const Completion& one : transfer_all(disk_.get(), transfers))
      ASSERT_TRUE(one.status.ok()) << one.status.text();
    for (uint32_t i = 0; i < file_count; ++i) {
      transfers[i].write = false;
      transfers[i].buffer = memory_ + (file_count + i) * kBlock;
    }
    for (const Completion& one : transfer_all(disk_.get(), transfers))
      ASSERT_TRUE(one.status.ok()) << one.status.text();
    for (uint32_t i = 0; i < file_count; ++i)
      for (const uint64_t at : {uint64_t{0}, kBlock - 1})
        ASSERT_EQ(memory_[(file_count + i) * kBlock + at], i + 1 + static_cast<uint32_t>(round))
            << i;
    for (const FileId file : files) ASSERT_TRUE(disk_->close(file).ok());
  }
  EXPECT_EQ(open_descriptor_count(), descriptors);
}

TEST_P(DiskConformance, CancelledTransfersStillCompleteOnce) {
  const FileId file = create("cancel", 8 << 20);
  std::vector<Transfer> transfers;
  for (uint64_t i = 0; i < disk_->depth(); ++i)
    transfers.push_back(write(file, i * (512 << 10), memory_ + i % 8 * (1 << 20), 512 << 10, i));
  disk_->cancel();  // nothing to cancel
  ASSERT_EQ(disk_->submit(transfers).value(), transfers.size());
  disk_->cancel();
  std::vector<Completion> done;
  ASSERT_TRUE(disk_->reap(disk_->in_flight(), now_ns() + 30 * kSecondNs, &done).ok());
  std::set<uint64_t> tags;
  for (const Completion& one : done) {
    EXPECT_TRUE(tags.insert(one.tag).second);
    EXPECT_TRUE(one.status.ok() || one.status.code() == Code::kAborted) << one.status.text();
  }
  EXPECT_EQ(tags.size(), transfers.size());
  EXPECT_TRUE(transfer_one(disk_.get(), transfers[0]).ok());  // and the disk goes on
}

TEST_P(DiskConformance, TheDestructorLeavesNothingUnderWay) {
  const int descriptors = open_descriptor_count();
  const FileId file = create("gone", 8 << 20);
  std::vector<Transfer> transfers;
  for (uint64_t i = 0; i < 16; ++i)
    transfers.push_back(read(file, i * (512 << 10), memory_ + i * (512 << 10), 512 << 10, i));
  const Result<uint32_t> taken = disk_->submit(transfers);
  ASSERT_TRUE(taken.ok());
  ASSERT_GT(taken.value(), 0u);
  disk_.reset();
  // A read that came later would put zeros here.
  std::fill_n(memory_, 8 << 20, static_cast<unsigned char>(0xa5));
  usleep(20'000);
  EXPECT_EQ(std::count(memory_, memory_ + (8 << 20), 0xa5), 8 << 20);
  EXPECT_LT(open_descriptor_count(), descriptors + 1);
}

TEST_P(DiskConformance, ItSaysWhatItIs) {
  const std::string text = disk_->describe();
  const bool uring = GetParam().options.kind == DiskKind::kUring;
  EXPECT_EQ(text.find("io_uring,") == 0, uring) << text;
  EXPECT_EQ(text.find("pread") == 0, !uring) << text;
  RecordProperty("disk", text);
}

INSTANTIATE_TEST_SUITE_P(All, DiskConformance, testing::ValuesIn(kFlavours),
                         [](const auto& one) { return std::string(one.param.name); });

TEST(OpenDisk, OptionsThatMakeNoSenseAreNamed) {
  DiskOptions options;
  options.depth = 0;
  EXPECT_NE(open_disk(options).status().text().find("depth"), std::string::npos);
  options = {};
  options.posix_threads = 65;
  EXPECT_NE(open_disk(options).status().text().find("threads"), std::string::npos);
  options = {};
  options.request_bytes_max = 100;
  EXPECT_NE(open_disk(options).status().text().find("requests"), std::string::npos);
}

TEST(OpenDisk, OneOfTheTwoIsAlwaysThereAndSaysWhy) {
  const Result<std::unique_ptr<Disk>> disk = open_disk({});
  ASSERT_TRUE(disk.ok()) << disk.status().text();
  const std::string text = disk.value()->describe();
  if (text.find("pread") == 0) {
    EXPECT_NE(text.find("io_uring left out"), std::string::npos) << text;
  }
  EXPECT_NE(open_disk({.kind = DiskKind::kPosix}).value()->describe().find("not asked for"),
            std::string::npos);
}

}  // namespace
}  // namespace weir::offload
