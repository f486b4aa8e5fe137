// SPDX-License-Identifier: Apache-2.0
// Cores: which cores this process may run on, and pinning a thread to one of them. Thread-safe.
#pragma once

#include <cstdint>
#include <thread>
#include <vector>

#include "core/base/status.h"

namespace weir::offload {

// The number of cores that the calling thread may run on; at least 1.
uint32_t usable_core_count();

// kInvalidArgument names the first one that is not among those of the process (of its main thread
// or of the calling thread).
Status check_cores(const std::vector<int>& cores);

// Pins the thread to this core.
Status pin(std::thread* thread, int core);

}  // namespace weir::offload
