// SPDX-License-Identifier: Apache-2.0
// Threads of the core: detached, and deaf to signals, which are the program's own. Thread-safe.
#pragma once

#include <functional>

namespace weir::hostcuda {

// False when the system gives no further thread, with a line on stderr.
bool start_thread(std::function<void()> body);

// Runs `job` on a thread that nothing else uses meanwhile, so that it may block; idle threads are
// used again, and leave after a while. False as above.
bool run_aside(std::function<void()> job);

}  // namespace weir::hostcuda
