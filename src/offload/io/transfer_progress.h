// SPDX-License-Identifier: Apache-2.0
// TransferProgress: decides after each result from the kernel how a transfer continues until its
// whole length has been moved. Only here are short transfers, interruptions and the end of a file
// told apart; both disks use it. A value; one thread at a time.
#pragma once

#include <cstdint>

#include "offload/disk/disk.h"

namespace weir::offload {

enum class TransferOutcome : uint8_t {
  kMore,      // ask the kernel again, from done_bytes on
  kDone,      // the whole length
  kFileEnds,  // a read beyond the end of the file
  kFailed,    // error_number says why
};

struct TransferProgress {
  // Always a multiple of kDiskAlignment until the transfer is done: direct I/O could not go on from
  // anywhere else, so a short transfer's partial block is moved again.
  uint64_t done_bytes = 0;
  uint32_t idle_count = 0;  // results in a row that moved nothing
  int error_number = 0;

  // `result` is what the kernel returned for the rest of the transfer (or its first part): bytes,
  // or a negative errno. After a short read, the file's size is taken from `fd`.
  TransferOutcome add(int64_t result, const Transfer& transfer, int fd);
};

// A disk that moves no byte this many times in a row has failed (EIO).
inline constexpr uint32_t kIdleAnswersMax = 10'000;

}  // namespace weir::offload
