// SPDX-License-Identifier: Apache-2.0
// Calls into libraries that may block as long as they like (name resolution, PMIx), bounded in time.
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>

namespace weir::comm {

// Runs `work` in a thread of its own and waits for it until `deadline_ns`. False when it was not
// done by then: it goes on alone, so it must own all that it touches (through shared_ptr), and this
// library stays loaded from then on. Throws std::system_error where no thread can be made.
bool run_bounded(std::function<void()> work, uint64_t deadline_ns);

}  // namespace weir::comm
