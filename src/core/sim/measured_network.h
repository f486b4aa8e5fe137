// SPDX-License-Identifier: Apache-2.0
// Converts a measured table of task times (cost/table.h) into the figures of network.h, for the
// simulation of that machine. Nothing is fitted. A pure function; thread-safe.
#pragma once

#include <cstdint>

#include "core/cost/table.h"
#include "core/sim/network.h"

namespace weir::sim {

// For operations whose largest buffer of a rank has `bytes`, which decides the regime of copies and
// reductions; data that goes over a network is in no cache. `network` connects the nodes; each has
// one rail, which all of its messages share. A message takes the overheads at both ends and is on
// its way for the rest of its time. Ports are as fast as the slower of the two copies at their
// ends. Rank counts above the cores of a host are not taken into account.
Network measured_network(const cost::Table& table, uint64_t bytes,
                         cost::Link network = cost::Link::kTcp);

}  // namespace weir::sim
