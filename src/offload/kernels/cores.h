// SPDX-License-Identifier: Apache-2.0
// Cores: which ones this process may run on, and threads put on one of them. Thread-safe.
#pragma once

#include <cstdint>
#include <thread>
#include <vector>

#include "core/base/status.h"

namespace weir::offload {

// As many threads as the calling thread may have cores for; at least 1.
uint32_t usable_core_count();

// kInvalidArgument names the first one that is not among those of the process (of its main thread
// or of the calling thread).
Status check_cores(const std::vector<int>& cores);

// From now on the thread runs on this core alone.
Status pin(std::thread* thread, int core);

}  // namespace weir::offload
