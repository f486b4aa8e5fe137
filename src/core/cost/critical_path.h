// SPDX-License-Identifier: Apache-2.0
// The longest chain of dependences through the programs of all ranks, timed with the table's task
// times. A small virtual machine for few ranks; weir::sim is the large one. Pure functions;
// thread-safe.
#pragma once

#include <cstdint>

#include "core/cost/predict.h"
#include "core/cost/task_costs.h"

namespace weir::cost {

// Nanoseconds for the first `slices_max` slices; negative when the programs wait for each other and
// never end.
//
// A core does one thing at a time. The sender copies a message in while the receiver, one slot
// behind, copies it out: the receiver finishes no sooner than the slowest of sender, receiver and
// wire allows. Messages between hosts queue for the wire of either host.
double critical_path_ns(const algo::Algorithm& algorithm, const Workload& work,
                        const TaskCosts& costs, uint64_t slices_max);

// The same for one rank alone, as if every message and signal that it waits for came from a peer at
// exactly the same point: exact for symmetric algorithms on equal links.
double lockstep_ns(const algo::Algorithm& algorithm, const Workload& work, const TaskCosts& costs,
                   Rank rank, uint64_t slices_max);

}  // namespace weir::cost
