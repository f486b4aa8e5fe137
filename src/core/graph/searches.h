// SPDX-License-Identifier: Apache-2.0
// Searches: the forests and rings that were found for graphs, by graph and roots: found once, and
// the same for all who have the same set. A function of its content: a forest that is not in it is
// searched (forest.h), with the same result everywhere. One thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/graph/forest.h"
#include "core/graph/link_graph.h"
#include "core/graph/rings.h"

namespace weir::graph {

// The roots of a forest's trees, ascending.
std::vector<Rank> roots_of(const Forest& forest);

class Searches {
 public:
  // Trees of these roots (ascending): those in the set, else searched now and added.
  Result<Forest> trees(const LinkGraph& graph, std::span<const Rank> roots,
                       const ForestOptions& options = {});
  // nullptr: not in the set. Valid until the next change.
  const Forest* find(uint64_t graph_hash, std::span<const Rank> roots) const;
  // Replaces one of the same graph and roots.
  void add(uint64_t graph_hash, Forest forest);

  // Trees for all_reduce, and rings (without any: none is worth it). nullptr: not in the set.
  const Forest* find_for_all_reduce(uint64_t graph_hash) const { return find(graph_hash, {}); }
  const Rings* find_rings(uint64_t graph_hash) const;
  void add(uint64_t graph_hash, Rings rings);

  using Key = std::pair<uint64_t, std::vector<Rank>>;  // graph and roots; of all_reduce: none
  const std::map<Key, Forest>& all() const { return forests_; }
  const std::map<uint64_t, Rings>& all_rings() const { return rings_; }

 private:
  std::map<uint64_t, Rings> rings_;
  std::map<Key, Forest> forests_;
};

// What is wrong with a forest that is to be used on `graph`: as flaw_of, and whether each of its
// links is a way that exists there; "" nothing is.
std::string flaw_of(const Forest& forest, const LinkGraph& graph);

}  // namespace weir::graph
