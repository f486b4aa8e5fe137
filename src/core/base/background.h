// SPDX-License-Identifier: Apache-2.0
// Threads for work that must not delay its caller: creating communicators (one thread may request
// several that wait for each other), and the calls of nonblocking communicators. Every running job
// has a thread of its own; idle threads end after a while, and when the process exits. Thread-safe.
#pragma once

#include <functional>

namespace weir {

// Runs `job`, which must not throw, on a thread of its own. Throws when no further thread can be
// started.
void run_in_background(std::function<void()> job);

}  // namespace weir
