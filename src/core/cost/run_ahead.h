// SPDX-License-Identifier: Apache-2.0
// The time of a call among many in a row, for programs over mapped memory in which data flow one
// way: no rank waits, by way of others, for itself. There the ranks that only send work ahead, and
// a call takes as long as it keeps the busiest rank's core, not as long as its longest chain.
// Thread-safe.
#pragma once

#include <optional>

#include "core/algo/algorithm.h"
#include "core/cost/predict.h"
#include "core/cost/table.h"

namespace weir::cost {

// In ns, with the cost of the call; `memory_ns`, if given: the part in which the busiest port of
// memory is taken. None where ranks meet: the waits form a circle, the program
// sends messages, or it works on windows, on which all ranks agree before each call.
std::optional<double> run_ahead_ns(const algo::Algorithm& algorithm, const Workload& work,
                                   const Table& table, double* memory_ns = nullptr);

}  // namespace weir::cost
