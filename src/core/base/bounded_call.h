// SPDX-License-Identifier: Apache-2.0
// Bounds the time of calls into libraries that may block for ever (name resolution, PMIx).
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>

namespace weir {

// Runs `work` in a thread of its own and waits for it until `deadline_ns`. False when it was not
// done by then: it continues in its thread, so it must own all that it touches (through
// shared_ptr), and this library stays loaded from then on. Throws std::system_error where no thread
// can be made.
bool run_bounded(std::function<void()> work, uint64_t deadline_ns);

}  // namespace weir
