// SPDX-License-Identifier: Apache-2.0
#include "offload/io/transfer_progress.h"

#include <sys/stat.h>

#include <cerrno>

namespace weir::offload {

TransferOutcome TransferProgress::add(int64_t result, const Transfer& transfer, int fd) {
  const auto fail = [this](int number) {
    error_number = number;
    return TransferOutcome::kFailed;
  };
  const auto idle = [&] {
    return ++idle_count < kIdleAnswersMax ? TransferOutcome::kMore : fail(EIO);
  };
  if (result == -EINTR || result == -EAGAIN) return idle();
  if (result < 0) return fail(static_cast<int>(-result));
  const uint64_t moved = done_bytes + static_cast<uint64_t>(result);
  if (moved > transfer.bytes) return fail(EIO);
  if (moved == transfer.bytes) {
    done_bytes = moved;
    return TransferOutcome::kDone;
  }
  const uint64_t whole_blocks = moved / kDiskAlignment * kDiskAlignment;
  if (whole_blocks > done_bytes) {
    done_bytes = whole_blocks;
    idle_count = 0;
    return TransferOutcome::kMore;
  }
  if (!transfer.write) {
    struct stat info;
    if (fstat(fd, &info) != 0) return fail(errno);
    if (static_cast<uint64_t>(info.st_size) <= transfer.offset_bytes + moved)
      return TransferOutcome::kFileEnds;
  }
  return idle();
}

}  // namespace weir::offload
