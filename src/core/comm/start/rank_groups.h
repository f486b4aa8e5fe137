// SPDX-License-Identifier: Apache-2.0
// Which ranks of a communicator share a cache, a NUMA node and a package, from what each has told
// of its processors. Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "core/comm/start/host_wires.h"
#include "core/comm/start/introduction.h"
#include "core/cost/rank_layout.h"

namespace weir::comm {

// One number per rank, from 0 in order of first appearance; ranks with equal numbers share the
// part. A rank whose processors are on several parts shares none; ranks of a host of which the
// machine says nothing share one. Ranks that share a cache share the package, and never are ranks
// of different hosts together. Empty: all ranks of each host are together.
struct RankGroups {
  std::vector<uint32_t> cache_of_rank;
  std::vector<uint32_t> numa_of_rank;
  std::vector<uint32_t> package_of_rank;
  // The most ranks that share a last-level cache; ranks that may move between caches count as
  // sharing one with all of their host.
  uint32_t ranks_per_cache = 1;

  bool operator==(const RankGroups&) const = default;
};

RankGroups rank_groups(const std::vector<Introduction>& all);

// Of ranks of one host: for each kind of link that there is between two of them, the first such
// pair; ranks 0 and 1 first.
std::vector<Pair> pairs_by_link(const RankGroups& groups, Rank rank_count);

// What the ranks of a host share of its memory, from what rank 0 has told.
cost::MemoryLinks memory_links(const std::vector<Introduction>& all);

// The place of this process's processors as a topology file (WEIR_TOPOLOGY_FILE) describes the
// machine, and what joins its packages; what the file does not tell stays as it is. A file that
// cannot be read changes nothing: rank 0 says so where it reads the topology.
void place_by_file(const std::string& file, Introduction* self);

}  // namespace weir::comm
