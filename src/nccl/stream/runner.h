// SPDX-License-Identifier: Apache-2.0
// How a flight's operations are run, by the proxy or by the caller's thread.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "nccl/outcome.h"
#include "nccl/stream/flight.h"

namespace weir::nccl {

// Runs a flight whose door has rung, to its end: every ring of the stream is answered, also when the
// communicator is broken, aborted or revoked. Returns early when `leave` becomes true.
void run(Flight& flight, const std::atomic<bool>& leave);

// The same with no stream at all, one flight for each communicator. Nothing of them is on a device.
Outcome run_here(const std::vector<std::unique_ptr<Flight>>& flights);

}  // namespace weir::nccl
