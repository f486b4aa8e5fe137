// SPDX-License-Identifier: Apache-2.0
#include "offload/io/transfer_progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>

#include "offload/io/disk_support.h"

namespace weir::offload {
namespace {

constexpr uint64_t kBlock = kDiskAlignment;

class Progress : public testing::Test {
 protected:
  void SetUp() override {
    fd_ = open((directory_ / "file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_GE(fd_, 0);
    ASSERT_EQ(ftruncate(fd_, 10 * static_cast<off_t>(kBlock)), 0);
    transfer_.bytes = 4 * kBlock;
  }
  void TearDown() override { close(fd_); }
  TransferOutcome add(int64_t result) { return progress_.add(result, transfer_, fd_); }

  TemporaryDirectory directory_;
  int fd_ = -1;
  Transfer transfer_;
  TransferProgress progress_;
};

TEST_F(Progress, TheWholeLengthIsDone) { EXPECT_EQ(add(4 * kBlock), TransferOutcome::kDone); }

TEST_F(Progress, AShortTransferGoesOnFromItsLastWholeBlock) {
  for (const bool write : {false, true}) {
    transfer_.write = write;
    progress_ = {};
    EXPECT_EQ(add(kBlock + 512), TransferOutcome::kMore);
    EXPECT_EQ(progress_.done_bytes, kBlock);
    EXPECT_EQ(add(2 * kBlock), TransferOutcome::kMore);
    EXPECT_EQ(progress_.done_bytes, 3 * kBlock);
    EXPECT_EQ(add(kBlock), TransferOutcome::kDone);
  }
}

TEST_F(Progress, InterruptionsMoveNothingAndGoOn) {
  for (const int number : {EINTR, EAGAIN}) EXPECT_EQ(add(-number), TransferOutcome::kMore);
  EXPECT_EQ(progress_.done_bytes, 0u);
  EXPECT_EQ(add(4 * kBlock), TransferOutcome::kDone);
}

TEST_F(Progress, ADiskThatNeverMovesAByteFails) {
  for (const int64_t result : {int64_t{-EAGAIN}, int64_t{-EINTR}, int64_t{0}, int64_t{512}}) {
    progress_ = {};
    uint32_t answers = 1;
    while (add(result) == TransferOutcome::kMore && answers < 1'000'000) ++answers;
    EXPECT_EQ(answers, kIdleAnswersMax);
    EXPECT_EQ(progress_.error_number, EIO);
  }
}

TEST_F(Progress, OtherErrorsEndItAtOnce) {
  for (const int number : {EIO, ENOSPC, ECANCELED, EINVAL}) {
    EXPECT_EQ(add(-number), TransferOutcome::kFailed);
    EXPECT_EQ(progress_.error_number, number);
  }
}

TEST_F(Progress, TheEndOfTheFileIsToldFromAShortRead) {
  transfer_.offset_bytes = 8 * kBlock;
  EXPECT_EQ(add(2 * kBlock), TransferOutcome::kMore);
  EXPECT_EQ(add(0), TransferOutcome::kFileEnds);
  ASSERT_EQ(ftruncate(fd_, 9 * static_cast<off_t>(kBlock) + 100), 0);
  progress_ = {};
  EXPECT_EQ(add(kBlock + 100), TransferOutcome::kMore);
  EXPECT_EQ(add(100), TransferOutcome::kFileEnds);
  // A write that moves nothing has not met an end.
  transfer_.write = true;
  EXPECT_EQ(add(0), TransferOutcome::kMore);
}

TEST_F(Progress, MoreThanWasAskedForIsAnError) {
  EXPECT_EQ(add(5 * kBlock), TransferOutcome::kFailed);
  EXPECT_EQ(progress_.error_number, EIO);
}

}  // namespace
}  // namespace weir::offload
