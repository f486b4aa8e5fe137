// SPDX-License-Identifier: Apache-2.0
// The longest chain of dependences through the programs of all ranks, with task times on it. A
// small virtual machine for few ranks; weir::sim is the large one. Pure functions; thread-safe.
#pragma once

#include <cstdint>

#include "core/cost/predict.h"
#include "core/cost/task_costs.h"

namespace weir::cost {

// Nanoseconds for the first `slices_max` slices. A negative figure: the programs wait for each
// other and never end.
//
// A core does one thing at a time. A message of b bytes is copied in by the sender while, a slot
// behind, the receiver copies it out: the receiver is done no sooner than the slower of both, and
// of the wire, allows. Messages between hosts queue for the wire of either host.
double critical_path_ns(const algo::Algorithm& algorithm, const Workload& work,
                        const TaskCosts& costs, uint64_t slices_max);

// The same for one rank alone, as if every message and signal that it waits for had been given by a
// peer that is exactly as far: exact for symmetric algorithms on like links.
double lockstep_ns(const algo::Algorithm& algorithm, const Workload& work, const TaskCosts& costs,
                   Rank rank, uint64_t slices_max);

}  // namespace weir::cost
