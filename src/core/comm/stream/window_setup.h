// SPDX-License-Identifier: Apache-2.0
// How all ranks of a communicator make a DeviceWindow together, and its collectives learn of it.
// One thread of each rank; may wait for the device.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/comm/stream/stream_memory.h"
#include "core/control/network.h"

namespace weir::comm {

// Gives what each rank has to all ranks: `bytes` at `mine`, by rank at `all`.
using GatherFromRanks = std::function<Status(const void* mine, void* all, size_t bytes)>;

// `network`: nullptr where all ranks are of this process; outlives the window. `wanted`: whether
// this rank wants its buffer to be used where it lies. *made stays empty on all ranks where one of
// them does not, or does not reach another's; *reason says why, if it is this rank's. Fails where
// the ranks cannot tell each other.
Status make_window(StreamMemory& memory, control::Network* network, void* buffer, uint64_t bytes,
                   bool wanted, const GatherFromRanks& gather,
                   std::shared_ptr<const DeviceWindow>* made, std::string* reason);

// Its collectives use it no more, and its mappings end: no stream uses it.
void end_window(StreamMemory& memory, const DeviceWindow* window);

}  // namespace weir::comm
