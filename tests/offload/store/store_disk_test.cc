// SPDX-License-Identifier: Apache-2.0
// The store on real files, through every disk of this machine, and weir-fsck on what it leaves.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "offload/io/open_disk.h"
#include "offload/store/file_names.h"
#include "offload/store/store_run.h"

namespace weir::offload {
namespace {

class StoreDiskTest : public testing::TestWithParam<DiskKind> {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "weir_store_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    for (const char* name : {"/0", "/1"}) names_.push_back(root_ + name);
    DiskOptions options;
    options.kind = GetParam();
    Result<std::unique_ptr<Disk>> disk = open_disk(options);
    if (!disk.ok()) GTEST_SKIP() << disk.status().text();
    disk_ = disk.take();
  }
  void TearDown() override {
    disk_.reset();
    std::filesystem::remove_all(root_);
  }
  void make_steps(uint64_t count) {
    auto made = Store::create(*disk_, names_, test_description(), test_options(1));
    ASSERT_TRUE(made.ok()) << made.status().text();
    for (uint64_t step = 0; step < count; ++step) {
      const Status status = commit_step(*disk_, *made.value(), step);
      ASSERT_TRUE(status.ok()) << status.text();
    }
  }
  static void flip(const std::string& path, off_t at) {
    const int fd = open(path.c_str(), O_RDWR);
    unsigned char byte = 0;
    ASSERT_EQ(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    ASSERT_EQ(pwrite(fd, &byte, 1, at), 1);
    close(fd);
  }

  std::string root_;
  std::vector<std::string> names_;
  std::unique_ptr<Disk> disk_;
};

TEST_P(StoreDiskTest, HoldsStepsAndCheckpointsOnRealFiles) {
  make_steps(3);
  auto opened = Store::open(*disk_, names_, nullptr, test_options(2));
  ASSERT_TRUE(opened.ok()) << opened.status().text();
  Store& store = *opened.value();
  ASSERT_TRUE(check_committed(*disk_, store).ok());
  const std::vector<std::string> held = {root_ + "/held0", root_ + "/held1"};
  Status status = store.checkpoint(held);
  ASSERT_TRUE(status.ok()) << status.text();
  for (uint64_t step = 3; step < 7; ++step) {
    status = commit_step(*disk_, store, step);
    ASSERT_TRUE(status.ok()) << status.text();
  }
  ASSERT_TRUE(check_committed(*disk_, store).ok());
  const auto second = Store::open(*disk_, names_, nullptr, test_options(3));
  EXPECT_EQ(second.status().code(), Code::kRefused) << second.status().text();
  StoreOptions options = test_options(4);
  options.read_only = true;
  options.verify_all = true;
  auto reader = Store::open(*disk_, held, nullptr, options);
  ASSERT_TRUE(reader.ok()) << reader.status().text();
  EXPECT_EQ(reader.value()->committed()->step, 2u);
  EXPECT_TRUE(check_committed(*disk_, *reader.value()).ok());
}

TEST_P(StoreDiskTest, CannotBeOpenedWithoutPermission) {
  if (geteuid() == 0) GTEST_SKIP() << "root may open everything";
  make_steps(1);
  ASSERT_EQ(chmod(slot_path(names_[1], 0).c_str(), 0), 0);
  const auto opened = Store::open(*disk_, names_, nullptr, test_options(2));
  EXPECT_NE(opened.status().text().find("Permission denied"), std::string::npos)
      << opened.status().text();
}

// Neither may hold anybody up.
TEST_P(StoreDiskTest, AFifoOrADirectoryInPlaceOfASlotIsNamedWithItsRemedy) {
  make_steps(3);
  const std::string path = slot_path(names_[1], 1);  // of the older commit
  for (const bool fifo : {true, false}) {
    std::filesystem::remove(path);
    ASSERT_EQ(fifo ? mkfifo(path.c_str(), 0600) : mkdir(path.c_str(), 0700), 0);
    const Status refused = Store::open(*disk_, names_, nullptr, test_options(2)).status();
    EXPECT_FALSE(refused.ok());
    for (const std::string& part : {path, std::string("move it elsewhere")}) {
      EXPECT_NE(refused.text().find(part), std::string::npos) << refused.text();
    }
    ASSERT_TRUE(std::filesystem::remove(path));
    auto opened = Store::open(*disk_, names_, nullptr, test_options(3));
    ASSERT_TRUE(opened.ok()) << opened.status().text();
    EXPECT_EQ(opened.value()->mended().size(), 1u);
    EXPECT_TRUE(check_committed(*disk_, *opened.value()).ok());
  }
}

// Lowers a limit of this process while it lives.
class LowLimit {
 public:
  LowLimit(__rlimit_resource which, rlim_t value) : which_(which) {
    getrlimit(which_, &before_);
    const rlimit low{value, before_.rlim_max};
    setrlimit(which_, &low);
  }
  ~LowLimit() { setrlimit(which_, &before_); }

 private:
  __rlimit_resource which_;
  rlimit before_{};
};

TEST_P(StoreDiskTest, ACreationThatMeetsALimitLeavesNothingAndNamesTheLimitOnce) {
  const int next = dup(0);
  close(next);
  const auto create = [&] {
    return Store::create(*disk_, names_, test_description(), test_options(1)).status();
  };
  for (int more = 1; more < 12; ++more) {
    Status failed;
    {
      const LowLimit limit(RLIMIT_NOFILE, static_cast<rlim_t>(next + more));
      failed = create();
    }
    if (failed.ok()) {
      ASSERT_TRUE(Store::remove(*disk_, names_).ok());
      for (const std::string& name : names_) std::filesystem::remove(name);
      continue;
    }
    const size_t at = failed.text().find("ulimit -n");
    EXPECT_NE(at, std::string::npos) << failed.text();
    EXPECT_EQ(failed.text().find("ulimit -n", at + 1), std::string::npos) << failed.text();
    EXPECT_TRUE(std::filesystem::is_empty(root_)) << more << ": " << failed.text();
  }
  const LowLimit limit(RLIMIT_FSIZE, 8192);
  const Status failed = create();
  EXPECT_NE(failed.text().find("ulimit -f"), std::string::npos) << failed.text();
  EXPECT_TRUE(std::filesystem::is_empty(root_));
}

TEST_P(StoreDiskTest, ADirectoryThatIsGivenTwiceOrIsAFileIsNamed) {
  make_steps(1);
  const std::vector<std::string> twice = {names_[0], names_[0] + "/"};
  for (const Status& status :
       {Store::create(*disk_, twice, test_description(), test_options(1)).status(),
        Store::open(*disk_, twice, nullptr, test_options(1)).status()}) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.text().find(names_[0] + "/' is given twice"), std::string::npos)
        << status.text();
  }
  const std::vector<std::string> file = {slot_path(names_[0], 0)};
  for (const Status& status :
       {Store::create(*disk_, file, test_description(), test_options(1)).status(),
        Store::open(*disk_, file, nullptr, test_options(1)).status()}) {
    EXPECT_NE(status.text().find("expected '" + file[0] + "' to be a directory"), std::string::npos)
        << status.text();
  }
}

TEST_P(StoreDiskTest, MetadataThatIsCutShortIsSaidToBeWithTheSizesItMayHave) {
  make_steps(1);
  for (const std::string& name : names_) {
    for (uint32_t copy = 0; copy < kMetaCopies; ++copy) {
      std::filesystem::resize_file(meta_path(name, copy), 12'287);
    }
  }
  const Status refused = Store::open(*disk_, names_, nullptr, test_options(1)).status();
  EXPECT_NE(refused.text().find("has 12287 bytes, expected 12288 to"), std::string::npos)
      << refused.text();
}

TEST_P(StoreDiskTest, SlotFilesThatAreGoneCutOrGrownAreMended) {
  make_steps(3);
  const std::string older = slot_path(names_[1], 1);
  const uint64_t bytes = std::filesystem::file_size(older);
  for (const uint64_t found : {uint64_t{0}, bytes - 1, bytes + 12345}) {
    std::filesystem::resize_file(older, found);
    auto opened = Store::open(*disk_, names_, nullptr, test_options(found));
    ASSERT_TRUE(opened.ok()) << opened.status().text();
    EXPECT_EQ(opened.value()->mended().size(), 1u);
    EXPECT_EQ(std::filesystem::file_size(older), bytes);
    EXPECT_TRUE(check_committed(*disk_, *opened.value()).ok());
  }
  auto opened = Store::open(*disk_, names_, nullptr, test_options(7));
  ASSERT_TRUE(opened.ok());
  ASSERT_TRUE(write_step(*disk_, *opened.value(), 3).ok());
  std::filesystem::copy_file(older, older + "-copy");
  std::filesystem::rename(older + "-copy", older);
  const Status status = opened.value()->commit();
  EXPECT_NE(status.text().find("another file has taken its name"), std::string::npos)
      << status.text();
  opened.value().reset();
  opened = Store::open(*disk_, names_, nullptr, test_options(8));
  ASSERT_TRUE(opened.ok()) << opened.status().text();
  EXPECT_EQ(opened.value()->committed()->step, 2u);
}

#ifdef WEIR_FSCK_PROGRAM

struct FsckRun {
  int exit_status = -1;
  std::string output;
};

FsckRun fsck(const std::string& arguments) {
  FsckRun run;
  const std::string command = std::string(WEIR_FSCK_PROGRAM) + " " + arguments + " 2>&1";
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return run;
  std::array<char, 4096> buffer;
  for (size_t got; (got = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    run.output.append(buffer.data(), got);
  }
  const int status = pclose(pipe);
  run.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return run;
}

TEST_P(StoreDiskTest, FsckSaysGoodRecoverableLostOrUnknownByItsExitStatus) {
  make_steps(3);
  const std::string both = names_[0] + " " + names_[1];
  FsckRun run = fsck(both);
  EXPECT_EQ(run.exit_status, 0) << run.output;
  EXPECT_NE(run.output.find("good: epoch 3 (step 2) is whole"), std::string::npos) << run.output;
  EXPECT_NE(run.output.find("12 of 12 chunks, 100 %"), std::string::npos) << run.output;
  run = fsck("--quiet --json " + both);
  EXPECT_EQ(run.exit_status, 0);
  EXPECT_EQ(run.output.find("{\n  \"verdict\": \"good\""), 0u) << run.output;
  run = fsck(names_[1] + " " + names_[0]);
  EXPECT_EQ(run.exit_status, 3) << run.output;
  run = fsck(root_ + "/nothing");
  EXPECT_EQ(run.exit_status, 3) << run.output;
  EXPECT_EQ(fsck("--frobnicate").exit_status, 3);
  flip(meta_path(names_[0], 1), 100);
  EXPECT_EQ(fsck(both).exit_status, 1);
  flip(slot_path(names_[1], 0), 5);
  run = fsck(both);
  EXPECT_EQ(run.exit_status, 1) << run.output;
  EXPECT_NE(run.output.find("chunk 1: checksum expected"), std::string::npos) << run.output;
  flip(slot_path(names_[0], 1), 5);
  EXPECT_EQ(fsck(both).exit_status, 2);
  {
    auto opened = Store::open(*disk_, names_, nullptr, test_options(2));
    ASSERT_TRUE(opened.ok());
    run = fsck(both);
    EXPECT_EQ(run.exit_status, 3);
    EXPECT_NE(run.output.find("is in use"), std::string::npos) << run.output;
  }
}

TEST_P(StoreDiskTest, FsckOfASlotFileSaysWhatOpenDoesAboutIt) {
  make_steps(3);
  const std::string both = names_[0] + " " + names_[1];
  std::filesystem::remove(slot_path(names_[1], 1));
  FsckRun run = fsck(both);
  EXPECT_EQ(run.exit_status, 1) << run.output;
  EXPECT_NE(run.output.find("opening the store for writing creates its file again"),
            std::string::npos)
      << run.output;
  ASSERT_TRUE(Store::open(*disk_, names_, nullptr, test_options(2)).ok());
  EXPECT_EQ(fsck(both).exit_status, 0);
  std::filesystem::resize_file(slot_path(names_[0], 0), 1 << 20);
  run = fsck(both);
  EXPECT_EQ(run.exit_status, 1) << run.output;
  EXPECT_NE(run.output.find("the bytes beyond them are not used"), std::string::npos) << run.output;
}

TEST_P(StoreDiskTest, FsckAndOpenSayAlikeWhatIsInTheWayOfAFile) {
  make_steps(3);
  const std::string both = names_[0] + " " + names_[1];
  const auto put = [](const std::string& kind, const std::string& path) {
    if (kind == "fifo") return mkfifo(path.c_str(), 0600) == 0;
    if (kind == "directory") return mkdir(path.c_str(), 0700) == 0;
    return symlink((path + "-nothing").c_str(), path.c_str()) == 0;
  };
  for (const std::string& path : {meta_path(names_[0], 0), slot_path(names_[0], 1)}) {
    for (const char* kind : {"fifo", "directory", "link to nothing"}) {
      SCOPED_TRACE(path + " is a " + kind);
      std::filesystem::rename(path, path + "-aside");
      ASSERT_TRUE(put(kind, path));
      const FsckRun run = fsck("--quiet " + both);
      EXPECT_EQ(run.exit_status, 1) << run.output;
      EXPECT_NE(run.output.find("is refused until"), std::string::npos) << run.output;
      const Status refused = Store::open(*disk_, names_, nullptr, test_options(2)).status();
      for (const std::string& part : {path, std::string("move it elsewhere")}) {
        EXPECT_NE(refused.text().find(part), std::string::npos) << refused.text();
        EXPECT_NE(run.output.find(part), std::string::npos) << run.output;
      }
      EXPECT_FALSE(std::filesystem::exists(path + ".new"));
      std::filesystem::remove(path);
      std::filesystem::rename(path + "-aside", path);
    }
  }
  EXPECT_EQ(fsck(both).exit_status, 0);
}

TEST_P(StoreDiskTest, ACopyOfTheMetadataThatCannotBeOpenedIsDamagedAndTheOtherCounts) {
  make_steps(2);
  const std::string path = meta_path(names_[0], 0);
  std::filesystem::remove(path);
  std::filesystem::create_symlink("meta-a", path);
  const FsckRun run = fsck("--quiet " + names_[0] + " " + names_[1]);
  EXPECT_EQ(run.exit_status, 1) << run.output;
  EXPECT_NE(run.output.find("Too many levels of symbolic links"), std::string::npos) << run.output;
  const auto opened = Store::open(*disk_, names_, nullptr, test_options(2));
  ASSERT_TRUE(opened.ok()) << opened.status().text();
  EXPECT_EQ(opened.value()->problems().size(), 1u);
  EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(path)));
}

TEST_P(StoreDiskTest, FsckSaysThatNothingMendsACheckpoint) {
  make_steps(1);
  const std::vector<std::string> held = {root_ + "/held0", root_ + "/held1"};
  {
    auto opened = Store::open(*disk_, names_, nullptr, test_options(2));
    ASSERT_TRUE(opened.ok());
    ASSERT_TRUE(opened.value()->checkpoint(held).ok());
  }
  std::filesystem::remove(meta_path(held[0], 0));
  const FsckRun run = fsck("--quiet " + held[0] + " " + held[1]);
  EXPECT_EQ(run.exit_status, 1) << run.output;
  EXPECT_NE(run.output.find("nothing repairs those of a checkpoint"), std::string::npos)
      << run.output;
  EXPECT_EQ(run.output.find("for writing repairs"), std::string::npos) << run.output;
}

TEST_P(StoreDiskTest, FsckPrintsNoControlCharactersOfNames) {
  StoreDescription description = test_description();
  description.groups[0].name = "a\x1b[2J\nb";
  description.model = "m\r";
  ASSERT_TRUE(Store::create(*disk_, names_, description, test_options(1)).ok());
  const FsckRun run = fsck("--quiet " + names_[0] + " " + names_[1]);
  EXPECT_EQ(run.exit_status, 0) << run.output;
  EXPECT_NE(run.output.find("'a\\x1b[2J\\x0ab'"), std::string::npos) << run.output;
  EXPECT_NE(run.output.find("'m\\x0d'"), std::string::npos) << run.output;
  EXPECT_EQ(fsck("--quiet " + names_[0] + " " + names_[0]).exit_status, 3);
}

TEST_P(StoreDiskTest, FsckRightAfterAKilledProcessFindsTheStoreFree) {
  make_steps(2);
  const std::string both = names_[0] + " " + names_[1];
  for (int i = 0; i < 10; ++i) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      DiskOptions options;
      options.kind = GetParam();
      auto disk = open_disk(options);
      auto store = Store::open(*disk.value(), names_, nullptr, test_options(2));
      const char ready = store.ok() && check_committed(*disk.value(), *store.value()).ok() ? 1 : 0;
      static_cast<void>(write(ends[1], &ready, 1));
      pause();
      _exit(1);
    }
    char ready = 0;
    ASSERT_EQ(read(ends[0], &ready, 1), 1);
    EXPECT_EQ(ready, 1);
    kill(pid, SIGKILL);
    ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
    const FsckRun run = fsck("--quiet " + both);
    EXPECT_EQ(run.exit_status, 0) << run.output;
    close(ends[0]);
    close(ends[1]);
  }
}

TEST_P(StoreDiskTest, FsckCallsAForeignCopyOfTheMetadataDamageAndForeignDirectoriesUnknown) {
  make_steps(2);
  const std::string both = names_[0] + " " + names_[1];
  const std::vector<std::string> others = {root_ + "/x0", root_ + "/x1"};
  {
    auto other = Store::create(*disk_, others, test_description(), test_options(8));
    ASSERT_TRUE(other.ok());
    ASSERT_TRUE(commit_step(*disk_, *other.value(), 0).ok());
  }
  const auto replace = std::filesystem::copy_options::overwrite_existing;
  std::filesystem::copy_file(meta_path(others[0], 0), meta_path(names_[0], 1), replace);
  FsckRun run = fsck(both);
  EXPECT_EQ(run.exit_status, 1) << run.output;
  EXPECT_NE(run.output.find("a copy of another store's file"), std::string::npos) << run.output;
  EXPECT_NE(run.output.find("recoverable: epoch 2 (step 1) is whole"), std::string::npos)
      << run.output;
  run = fsck(names_[0] + " " + others[1]);
  EXPECT_EQ(run.exit_status, 3) << run.output;
  EXPECT_NE(run.output.find("expected directories of one store"), std::string::npos) << run.output;
}

TEST_P(StoreDiskTest, FsckSaysWhatADiscardThatFailsHasRemoved) {
  make_steps(1);
  const std::string both = names_[0] + " " + names_[1];
  const std::string path = slot_path(names_[1], 1);
  std::filesystem::remove(path);
  std::filesystem::create_directories(path + "/full");  // cannot be removed
  const FsckRun run = fsck("--discard --discard-committed " + both);
  EXPECT_EQ(run.exit_status, 3) << run.output;
  for (const std::string& part :
       {std::string("3 of 10 files were removed"), slot_path(names_[0], 0), path}) {
    EXPECT_NE(run.output.find(part), std::string::npos) << run.output;
  }
}

TEST_P(StoreDiskTest, FsckDiscardsWhatItMayAndSaysWhat) {
  make_steps(2);
  const std::string both = names_[0] + " " + names_[1];
  FsckRun run = fsck("--discard " + both);
  EXPECT_EQ(run.exit_status, 3) << run.output;
  EXPECT_NE(run.output.find("epoch 2 (step 1)"), std::string::npos) << run.output;
  EXPECT_NE(run.output.find("nothing was removed"), std::string::npos) << run.output;
  EXPECT_TRUE(std::filesystem::exists(slot_path(names_[0], 0)));
  for (const std::string& name : names_) {
    for (uint32_t copy = 0; copy < kMetaCopies; ++copy) {
      std::filesystem::remove(meta_path(name, copy));
    }
  }
  EXPECT_EQ(fsck(both).exit_status, 2);
  run = fsck("--discard " + both);
  EXPECT_EQ(run.exit_status, 0) << run.output;
  EXPECT_NE(run.output.find(slot_path(names_[1], 1) + "\n"), std::string::npos) << run.output;
  EXPECT_TRUE(std::filesystem::is_empty(names_[0]));
  run = fsck("--discard " + both);
  EXPECT_EQ(run.exit_status, 3) << run.output;
  make_steps(1);
  {
    auto opened = Store::open(*disk_, names_, nullptr, test_options(2));
    ASSERT_TRUE(opened.ok());
    run = fsck("--discard --discard-committed " + both);
    EXPECT_EQ(run.exit_status, 3) << run.output;
  }
  run = fsck("--discard --discard-committed " + both);
  EXPECT_EQ(run.exit_status, 0) << run.output;
  EXPECT_TRUE(std::filesystem::is_empty(names_[0]));
  EXPECT_EQ(fsck("--discard-committed " + both).exit_status, 3);
}

#endif

std::string name_of_parameter(const testing::TestParamInfo<DiskKind>& parameter) {
  return parameter.param == DiskKind::kUring ? "Uring" : "Posix";
}

INSTANTIATE_TEST_SUITE_P(Store, StoreDiskTest, testing::Values(DiskKind::kUring, DiskKind::kPosix),
                         name_of_parameter);

}  // namespace
}  // namespace weir::offload
