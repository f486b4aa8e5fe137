// SPDX-License-Identifier: Apache-2.0
// What rank 0 of a new communicator does with the link graph: decides whether trees may be faster
// than the algorithms that know nothing of links, and finds them, and rings: in this process, in
// the cache directory (graph/kept_searches.h), or by a search, bounded by steps. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "core/graph/link_graph.h"
#include "core/graph/searches.h"

namespace weir::comm {

// The ratio of the networks of two hosts from which on trees are offered: below kAlike
// (host_wires.h), since a measured network has been rounded (graph/host_networks.h).
inline constexpr double kNetworksDiffer = 1.5;
// Where networks are alike, trees are offered if they are faster by this factor, by the links
// alone.
inline constexpr double kTreesFaster = 1.1;

struct TreeSearch {
  bool offered = false;
  std::string reason;        // for people
  graph::Searches searches;  // empty where nothing is offered
};

// `directory`: where searches are kept; "": nowhere. What cannot be kept is an info line.
TreeSearch search_trees(const graph::LinkGraph& graph, const std::string& directory);

// The graphs that trees of `graph` may be found for: itself and, where it has several hosts, each
// different host; by hash.
std::map<uint64_t, graph::LinkGraph> searched_graphs(const graph::LinkGraph& graph);

}  // namespace weir::comm
