// SPDX-License-Identifier: Apache-2.0
// LinkPorts: the links of a graph as ports that messages claim one after another, and the way of
// each message. Private to the simulator. Not thread-safe.
#pragma once

#include <span>
#include <vector>

#include "core/graph/link_graph.h"
#include "core/graph/routes.h"
#include "core/sim/port.h"
#include "core/sim/simulator.h"

namespace weir::sim {

class LinkPorts {
 public:
  struct Link {
    Port port;
    graph::KilobytesPerSecond bandwidth = graph::kUnlimited;
    uint64_t factor_milli = 1000;
    Picoseconds latency = 0;
    uint64_t messages = 0;
    uint64_t bytes = 0;

    bool is_limited() const { return bandwidth != graph::kUnlimited; }
    // Rounded up, so that no link carries more than its bandwidth; 0 without a limit.
    Picoseconds time_of(uint64_t message_bytes) const {
      if (!is_limited()) return 0;
      __extension__ using Wide = unsigned __int128;
      const Wide scaled = static_cast<Wide>(message_bytes) * factor_milli * 1'000'000;
      const auto divisor = static_cast<uint64_t>(bandwidth);
      return static_cast<Picoseconds>((scaled + divisor - 1) / divisor);
    }
  };

  // The graph outlives this.
  LinkPorts(const graph::LinkGraph& graph, std::span<const SlowRank> slow);

  std::span<const graph::LinkId> way(Rank from, Rank to) { return routes_.links(from, to); }
  // Of the way from `from` to `to`, what an access takes: not the link between the memory and the
  // core of its owner, where that is a core.
  std::span<const graph::LinkId> way_of_read(Rank from, Rank to);
  std::span<const graph::LinkId> way_of_write(Rank from, Rank to);
  Link& link(graph::LinkId id) { return links_[id]; }
  // Of a whole way.
  Picoseconds latency(Rank from, Rank to);
  Picoseconds slowest(Rank from, Rank to, uint64_t bytes);

  std::vector<LinkUse> use() const;

 private:
  const graph::LinkGraph& graph_;
  graph::Routes routes_;
  std::vector<Link> links_;
};

}  // namespace weir::sim
