// SPDX-License-Identifier: Apache-2.0
// Probe: measures the elementary tasks of cost::TaskTimes on this machine, over the mapped segment
// and the transport of a communicator that has just been made: copies and reductions of one core,
// then signals, messages and slot copies between ranks 0 and 1. It takes about ten milliseconds.
// Called by ranks 0 and 1 at the same time, before any operation; the others wait for the table.
#pragma once

#include "core/base/status.h"
#include "core/cost/table.h"
#include "core/engine/context.h"

namespace weir::engine {

// The table on rank 0; rank 1 gets figures of its own core and is not asked for them. Starts from
// the built-in table, so that what this communicator cannot measure (networks, a second core) stays
// as it was. kTimeout when the other rank does not answer.
Result<cost::Table> probe_tasks(Context& context, uint64_t topology_hash, uint64_t deadline_ns);

}  // namespace weir::engine
