// SPDX-License-Identifier: Apache-2.0
// TransferProgress: how a transfer goes on after each answer of the kernel until its whole length
// has been moved. The one place where short transfers, interruptions and the end of a file are told
// apart; both disks use it. A value; one thread at a time.
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
  uint32_t idle_count = 0;  // answers in a row that moved nothing
  int error_number = 0;

  // `result` is what the kernel answered to the request for the rest (or the first part of it):
  // bytes, or a negative errno. `fd` is asked for the file's size after a short read.
  TransferOutcome add(int64_t result, const Transfer& transfer, int fd);
};

// A disk that answers this often in a row without moving a byte has failed (EIO).
inline constexpr uint32_t kIdleAnswersMax = 10'000;

}  // namespace weir::offload
