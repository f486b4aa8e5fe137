// SPDX-License-Identifier: Apache-2.0
// The time of a call among many in a row, for programs over mapped memory in which data flow one
// way: no rank waits, by way of others, for itself. There the ranks that only send work ahead, and
// a call takes as long as it keeps the busiest rank's core, not as long as its longest chain.
// Thread-safe.
#pragma once

#include <cstdint>
#include <optional>

#include "core/algo/algorithm.h"
#include "core/cost/predict.h"
#include "core/cost/table.h"

namespace weir::cost {

// In ns, with the cost of the call. None where ranks meet: the waits form a circle, the program
// sends messages, or it works on windows, on which all ranks agree before each call. Adds to
// `operations`, if given, how many were looked at.
std::optional<double> run_ahead_ns(const algo::Algorithm& algorithm, const Workload& work,
                                   const Table& table, uint64_t* operations = nullptr);

}  // namespace weir::cost
