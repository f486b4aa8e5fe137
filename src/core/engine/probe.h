// SPDX-License-Identifier: Apache-2.0
// Probe: measures the elementary tasks of cost::TaskTimes on this machine, over the mapped segment
// and the transport of a communicator that has just been made: copies and reductions of one core,
// then signals, messages and slot copies between ranks 0 and 1. It takes some ten milliseconds, and
// about a second where other processes use the cores. Called by ranks 0 and 1 at the same time,
// before any operation; the others wait for the table. Rank 0 leads, as in probe_link.h: neither
// gives up within a step, and nothing is left posted.
#pragma once

#include "core/base/status.h"
#include "core/cost/table.h"
#include "core/engine/context.h"
#include "core/engine/probe_messages.h"

namespace weir::engine {

// The table on rank 0; rank 1 gets figures of its own core, which are not used. Starts from the
// built-in table, so that figures that this communicator cannot measure (networks, a second core)
// stay as they were. `complete`: there was time for every round; else the figures of shared memory
// are the built-in ones. kTimeout when the other rank does not answer by the deadline, kPeerLost
// when it has died, and any error of the transport or of `watch`; the communicator is unusable
// after an error.
Result<cost::Table> probe_tasks(Context& context, uint64_t topology_hash, uint64_t deadline_ns,
                                const ProbeWatch& watch, bool* complete);

// A pair of ranks that share memory and measure it after ranks 0 and 1 have.
struct MappedPair {
  Rank leader = 0;
  Rank other = 1;
  uint32_t number = 0;  // the same on both ranks; another one for each pair of a rank, at most 31
};

// What probe_tasks does for ranks 0 and 1, for another pair; the leader gets the figures. Called by
// both ranks at the same time, with the same number.
Status probe_mapped_pair(Context& context, const MappedPair& pair, uint64_t deadline_ns,
                         const ProbeWatch& watch, cost::LinkTimes* link, bool* complete);

}  // namespace weir::engine
