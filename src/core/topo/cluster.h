// SPDX-License-Identifier: Apache-2.0
// Several machines as one Topology, and one machine out of several. Pure functions; thread-safe.
#pragma once

#include <span>

#include "core/base/status.h"
#include "core/topo/topology.h"

namespace weir::topo {

// Joins machines under one network that reaches every NIC of each (the network between the NICs is
// not modelled). A part may itself hold several machines. Error: no part, an empty part, or more
// than kNodeCountMax nodes together.
Result<Topology> join(std::span<const Topology> parts);

// Extracts the `index`-th machine.
Result<Topology> machine(const Topology& topology, uint32_t index);

}  // namespace weir::topo
