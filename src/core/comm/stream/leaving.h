// SPDX-License-Identifier: Apache-2.0
// The end of the process, for threads that read pinned memory: they must have stopped when a driver
// frees it at exit. Weir's stand-in frees nothing, so that with it they go on until the process is
// gone. Thread-safe.
#pragma once

#include <atomic>

#include "cuda/driver_table.h"

namespace weir::comm {

// Makes such threads end before the driver frees pinned memory, when the process exits. To be
// called once the driver has been initialized, so that its own handlers run later, and before such
// a thread is started.
void leave_before_cuda(const cuda::Driver& driver);

// True: such threads must end now.
const std::atomic<bool>& leaving();

// Such a thread begins, and ends.
void pinned_reader_begins();
void pinned_reader_ends();

}  // namespace weir::comm
