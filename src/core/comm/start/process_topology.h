// SPDX-License-Identifier: Apache-2.0
// The topology of this machine as its user describes it (WEIR_TOPOLOGY_FILE), read once in a
// process: that takes tens of milliseconds, and the machine stays the same. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/base/settings.h"
#include "core/base/status.h"
#include "core/topo/cpu_place.h"
#include "core/topo/cpuset.h"
#include "core/topo/topology.h"

namespace weir::comm {

// Topology::hash; 0: it cannot be read, which is logged once: a topology never stops a start.
uint64_t topology_hash(const Settings& settings);

// Calls `use` with the topology; without it, if it cannot be read.
void with_topology(const Settings& settings,
                   const std::function<void(const topo::Topology& topology)>& use);

// topo::place_of on this machine, whose small files are read once for the same processors.
topo::CpuPlace place_on_machine(const topo::CpuSet& cpus);

// The device of a rank in the topology of its machine, by its PCI address or else its number
// (told_device); kNoNode: it is not there.
topo::NodeId device_of(const std::string& told, const topo::Topology& topology);

// A topology as it is told to other ranks: NCCL's XML, which keeps what a link graph needs. The
// hash is that of the topology that a reader of the text gets.
struct ToldTopology {
  uint64_t hash = 0;
  std::string text;
};
// Error: the topology cannot be read, or be told.
Result<ToldTopology> told_topology(const Settings& settings);

// The reader's side. kRefused: the text cannot be read, has more than kToldBytesMax, or has another
// hash.
inline constexpr size_t kToldBytesMax = 256 * 1024;
Result<topo::Topology> topology_as_told(const ToldTopology& told);

}  // namespace weir::comm
