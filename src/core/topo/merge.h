// SPDX-License-Identifier: Apache-2.0
// A topology file of this machine, completed by what is found in the machine. Pure; thread-safe.
#pragma once

#include "core/base/status.h"
#include "core/topo/topology.h"

namespace weir::topo {

// Merges as NCCL does with its topology file. Devices are the same if they have the same PCI
// address, network ports if they have the same name, NUMA nodes if they have the same number.
//
// - What the file has stays as and where it is; what it lacks, or leaves empty, is filled in.
// - Devices that only the machine has are added below the nearest bridge above them that the file
//   has, or else with the bridges of the machine.
// - Links: a GPU keeps those of a kind that the file gives it; one to which the file gives none of
//   the kind gets those of the machine.
// - Packages, caches and cores are the machine's; of a NUMA node in both, the file's attributes
//   come first.
//
// Notes are those of both; further ones name what only the file has. Error (kUnsupported, the text
// is the reason): one of them is not exactly one machine, or the file is of another machine, since
// none of its GPUs (where it has none: none of its network adapters) is in this one.
Result<Topology> merge(const Topology& file, const Topology& machine);

}  // namespace weir::topo
