// SPDX-License-Identifier: Apache-2.0
// Forests: the trees of each collective on one graph, and its rings, found when they are first
// asked for, and kept. all_gather and reduce_scatter have trees of all ranks; broadcast and reduce
// of their root; all_reduce of those ranks with which it takes the least time, since one that is
// reached over a slow link need not be a root. A function of the graph and of the searches that are
// given: ranks with the same find the same. One thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "core/base/types.h"
#include "core/graph/forest.h"
#include "core/graph/link_graph.h"
#include "core/graph/rings.h"
#include "core/graph/routes.h"
#include "core/graph/searches.h"

namespace weir::graph {

class Forests {
 public:
  // Up to so many ranks trees are searched at once, beyond that host by host.
  static constexpr uint32_t kSearchedRanksMax = 16;

  // A finished graph. `searches`: forests of it, or of its hosts, that have been found before.
  explicit Forests(LinkGraph graph, Searches searches = {});

  const LinkGraph& graph() const { return graph_; }
  // What was given, and what has been searched since.
  const Searches& searches() const { return searches_; }
  Routes& routes() { return routes_; }
  // nullptr: none was found, or the collective does not go along trees. `root`: of broadcast and
  // reduce. Valid as long as this.
  const Forest* of(Collective collective, Rank root);
  // nullptr: none was found that is faster than the ring in the order of ranks. Valid as long as
  // this.
  const Rings* rings();

 private:
  enum class Use : uint8_t { kAll, kRoot, kAllReduce };
  using Key = std::pair<Use, Rank>;  // the rank: of the root
  std::optional<Forest> find(const Key& key);
  std::optional<Forest> find_for_all_reduce();

  LinkGraph graph_;
  Routes routes_;
  Searches searches_;
  std::map<Key, std::optional<Forest>> kept_;
};

// Hosts of which only the bandwidth of their network is known, and that of a rank within its host.
// `host_of_rank`: numbered from 0; `host_bandwidth`: of each host.
LinkGraph host_star(std::span<const uint32_t> host_of_rank,
                    std::span<const KilobytesPerSecond> host_bandwidth,
                    KilobytesPerSecond rank_bandwidth);

}  // namespace weir::graph
