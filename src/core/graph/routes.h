// SPDX-License-Identifier: Apache-2.0
// Routes: the way that a message takes from one rank to another through a link graph: one way,
// through vertices that are no ranks; the widest (largest smallest bandwidth), of these the one
// with the fewest links, of these the one with the smallest latency. Where several are alike (the
// cards of a host), the sender's number within its host decides, at every vertex in the same way:
// neighbours of a host use different cards, and ranks that have the same number on two hosts use
// the same card at both ends.
//
// Ways from a rank are found when the first of them is asked for, and kept: about 4 bytes a link,
// 30 MB for all ways between 1,024 ranks over 5 links each. One thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/graph/link_graph.h"

namespace weir::graph {

struct Way {
  bool exists = false;            // not where only third ranks lead there
  std::span<const LinkId> links;  // in order; empty: from a rank to itself, or none
  // The smallest of the links; kUnlimited: none has a limit.
  KilobytesPerSecond bandwidth = kUnlimited;
  double latency_ns = 0;  // the sum of the links'
};

class Routes {
 public:
  // A finished graph that outlives this.
  explicit Routes(const LinkGraph& graph);

  // Valid as long as this. Both ranks must exist.
  std::span<const LinkId> links(Rank from, Rank to) {
    Source& source = sources_[from];
    if (source.first.empty()) source = find_ways(from);
    return std::span(source.links)
        .subspan(source.first[to], source.first[to + 1] - source.first[to]);
  }
  Way way(Rank from, Rank to);

 private:
  struct Source {
    std::vector<uint32_t> first;  // of each rank's way in `links`, and the end
    std::vector<LinkId> links;
  };

  Source find_ways(Rank from) const;

  const LinkGraph& graph_;
  std::vector<uint32_t> number_in_host_;  // of each rank
  std::vector<Source> sources_;
};

}  // namespace weir::graph
