// SPDX-License-Identifier: Apache-2.0
// Broadcom's PEX switches of the fourth and fifth PCIe generation show themselves as bridges on two
// levels, though all their ports are equal: no link inside them is narrower than a port. Pure;
// thread-safe.
#pragma once

#include "core/base/status.h"
#include "core/topo/topology.h"

namespace weir::topo {

// Joins the two levels of each such switch to one, as NCCL does, and leaves a note: what was below
// the second level is below the first. The bridges are known by their vendor and device numbers
// (those of the switch and of its subsystem); without these numbers they stay as they are.
Result<Topology> join_flat_switches(Topology topology);

}  // namespace weir::topo
