// SPDX-License-Identifier: Apache-2.0
// Threads for work that must not hold up its caller: creating communicators, of which one thread
// may ask for several that wait for each other, and the calls of nonblocking communicators. There
// is a thread for every job that runs; idle ones leave after a while, and when the process exits.
// Thread-safe.
#pragma once

#include <functional>

namespace weir::nccl {

// Starts `job`, which must not throw, as soon as its thread runs. Throws when there can be no
// further thread.
void run_in_background(std::function<void()> job);

}  // namespace weir::nccl
