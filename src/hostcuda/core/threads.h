// SPDX-License-Identifier: Apache-2.0
// Threads of the core: detached, with all signals blocked, since signals are left to the program's
// own threads. Thread-safe.
#pragma once

#include <functional>

namespace weir::hostcuda {

// False when the system gives no further thread, with a line on stderr.
bool start_thread(std::function<void()> body);

// Runs `job` on a thread that nothing else uses meanwhile, so that it may block; idle threads are
// reused, and end after a while. False as above.
bool run_aside(std::function<void()> job);

}  // namespace weir::hostcuda
