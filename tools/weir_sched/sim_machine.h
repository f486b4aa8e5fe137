// SPDX-License-Identifier: Apache-2.0
// The machine that a topology file describes, as a link graph with ranks on it. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/graph/link_graph.h"

namespace weir::sched_tool {

struct SimMachine {
  graph::LinkGraph graph;
  std::vector<uint32_t> nodes;  // the host of each rank; empty: one host
  // Of ranks on the cores of one host: by last-level cache and NUMA node; empty: one group.
  std::vector<uint32_t> cache_of_rank;
  std::vector<uint32_t> numa_of_rank;
  uint32_t host_count = 1;
  bool on_accelerators = false;
};

// `host_count` machines like the one of the file (hwloc's or NCCL's XML). Ranks fill the hosts in
// blocks as even as possible; those of a host run on its GPUs in the order of their numbers or,
// where it has none, on its cores, as far apart as possible. `rank_count` 0: one on each GPU or
// core.
Result<SimMachine> read_sim_machine(const std::string& file, uint32_t host_count, Rank rank_count);

}  // namespace weir::sched_tool
