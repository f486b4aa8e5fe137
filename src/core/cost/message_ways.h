// SPDX-License-Identifier: Apache-2.0
// MessageWays: the links that messages between ranks take, one after another, where the data lie on
// devices: of a link graph, in place of the two-level network of a table. One thread at a time,
// since ways are found when they are first asked for.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "core/cost/op_stream.h"
#include "core/graph/link_graph.h"
#include "core/graph/routes.h"

namespace weir::cost {

class MessageWays {
 public:
  // A finished graph, with as many ranks as the problems.
  explicit MessageWays(graph::LinkGraph graph);
  MessageWays(const MessageWays&) = delete;
  MessageWays& operator=(const MessageWays&) = delete;

  const graph::LinkGraph& graph() const { return graph_; }
  uint64_t hash() const { return hash_; }  // of the graph
  // In order; empty where the links lead from one rank to the other through other ranks only.
  std::span<const graph::LinkId> way(Rank from, Rank to) const { return routes_.links(from, to); }
  // For how long a message takes a link; 0: the link has no limit.
  Picoseconds time(graph::LinkId link, uint64_t bytes) const {
    return static_cast<Picoseconds>(
        std::llround(static_cast<double>(bytes) * links_[link].ps_per_byte));
  }
  bool is_limited(graph::LinkId link) const { return links_[link].ps_per_byte > 0; }
  Picoseconds latency(std::span<const graph::LinkId> way) const {
    Picoseconds sum = 0;
    for (const graph::LinkId link : way) sum += links_[link].latency;
    return sum;
  }

 private:
  struct Link {
    double ps_per_byte = 0;
    Picoseconds latency = 0;
  };

  graph::LinkGraph graph_;
  mutable graph::Routes routes_;
  std::vector<Link> links_;
  uint64_t hash_;
};

}  // namespace weir::cost
