// SPDX-License-Identifier: Apache-2.0
// transfer_all: a batch of transfers, from submit to the last completion. For metadata and for
// checks, outside the pipeline of a step; nothing else may be in flight on the Disk. Same thread as
// the Disk.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offload/disk/disk.h"

namespace weir::offload {

struct BatchOutcome {
  Status status;  // of the batch as a whole: the disk's own failure or a timeout; else ok
  std::vector<Status> of_transfer;  // one for each transfer, in order
  // Transfers are still under way even after they were cancelled: their buffers must never be
  // freed.
  bool stuck = false;

  // The first error of the batch or of a transfer.
  Status first_error() const;
};

// Sets the tags of the transfers. All completions are reaped unless `stuck`.
BatchOutcome transfer_all(Disk& disk, std::span<Transfer> transfers, uint64_t timeout_ms);

}  // namespace weir::offload
