// SPDX-License-Identifier: Apache-2.0
// Trees of many hosts, put together from those within a host: from its root, a block goes to one
// rank of each other host (its rail: the rank of the same place, where hosts have equally many),
// over the network, and within each host along the trees that were found for it alone. The hosts
// are a tree, too: a heap, in which those come first that have sent least so far for the bandwidth
// of their network, so that hosts that are alike pass on as much and one with a slow network
// nothing. With n hosts that are alike, a link within a host carries what it would for n blocks a
// rank, and the network (n - 1) blocks a rank, both at the same time.
//
// Trees of one root begin with those that were found for it in its host. Each part leaves the host
// once, from another rank, and reaches the other hosts on that rank's rail.
//
// The search is that of forest.h for each different host, whatever their number. Pure functions;
// thread-safe.
#pragma once

#include "core/base/status.h"
#include "core/graph/forest.h"
#include "core/graph/link_graph.h"
#include "core/graph/searches.h"

namespace weir::graph {

// The part of the graph that is one host: its ranks, in order, and the vertices between them that
// are not the network. Error: its ranks reach each other over the network only.
Result<LinkGraph> host_graph(const LinkGraph& graph, uint32_t host);

struct ClusterForestOptions {
  ForestOptions host;
  uint64_t links_max = 2'000'000;
  bool rated = true;  // whether to find Forest::block_gbs and bound_gbs: slow for many ranks
  Searches* searches = nullptr;  // where the trees of hosts are looked for, and kept
};
// Trees of all ranks. Errors: one host, more than `links_max` links of trees, and those of
// find_forest within a host.
Result<Forest> cluster_forest(const LinkGraph& graph, const ClusterForestOptions& options = {});
// Trees of one root, for broadcast and reduce. Errors: likewise.
Result<Forest> cluster_trees(const LinkGraph& graph, Rank root,
                             const ClusterForestOptions& options = {});

// The better of find_forest and cluster_forest: the first is tried up to `searched_ranks_max`
// ranks. The bound of what is returned is the cut bound of the whole graph. What `searches` has for
// the whole graph is taken as it is; beyond `searched_ranks_max`, trees are then not rated.
Result<Forest> best_forest(const LinkGraph& graph, uint32_t searched_ranks_max = 16,
                           Searches* searches = nullptr);
// Likewise, of one root: find_trees up to `searched_ranks_max` ranks and on one host, otherwise
// cluster_trees.
Result<Forest> best_trees(const LinkGraph& graph, Rank root, uint32_t searched_ranks_max = 16,
                          Searches* searches = nullptr);

}  // namespace weir::graph
