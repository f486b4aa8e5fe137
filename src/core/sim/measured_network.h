// SPDX-License-Identifier: Apache-2.0
// The simulated network of a machine that was measured: what a table of task times (cost/table.h)
// says in the words of network.h. Nothing is fitted. A pure function; thread-safe.
#pragma once

#include <cstdint>

#include "core/cost/table.h"
#include "core/sim/network.h"

namespace weir::sim {

// For operations whose largest buffer of a rank has `bytes`, which decides in which regime copies
// and reductions run. `network` joins the nodes; they have one rail each, which all of their
// messages share. A message costs the ranks at both ends their overheads and is on its way for the
// rest of its time. Ports are as fast as the slower of the two copies at their ends. Rank counts
// above the cores of a host are not taken into account.
Network measured_network(const cost::Table& table, uint64_t bytes,
                         cost::Link network = cost::Link::kTcp);

}  // namespace weir::sim
