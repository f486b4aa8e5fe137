// SPDX-License-Identifier: Apache-2.0
// Rings: cycles through all ranks, several at once (channels), each for an equal share of the data.
// A ring passes host by host, so that it crosses the network once a host, whatever the numbers of
// the ranks; rings after the first avoid the links of those before them, so that they are spread
// over the network cards and over links inside a host.
//
// Found one after the other: each by a depth-first search for the cycle whose most used link is
// used least, with the rings before it. The effort is bounded by steps (hops that are tried) and
// not by time, so that all machines give the same answer. Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/graph/link_graph.h"
#include "core/graph/routes.h"

namespace weir::graph {

struct Rings {
  uint32_t rank_count = 0;
  // Without any where it is kept that none is worth it.
  std::vector<std::vector<Rank>> orders;         // each of all ranks; the last sends to the first
  std::vector<std::vector<uint32_t>> positions;  // of each rank in each order
  friend bool operator==(const Rings&, const Rings&) = default;
};

struct RingOptions {
  uint32_t rings_max = 8;
  uint64_t steps_max = 200'000;
};

// With their positions. The orders must be without flaws (flaw_of).
Rings rings_of(std::vector<std::vector<Rank>> orders);

// As many rings as together are fastest; a ring more is worth it for 5 per cent. `routes`: of the
// graph. Errors: fewer than two ranks, or no cycle was found in `steps_max`.
Result<Rings> find_rings(const LinkGraph& graph, Routes* routes, const RingOptions& options = {});

// One ring that passes host by host, hosts and ranks in order.
Rings ring_by_host(std::span<const uint32_t> host_of_rank);
// How often the ring in the order of ranks goes from one host to another.
uint32_t crossings(std::span<const uint32_t> host_of_rank);

// Nanoseconds for each byte of all ranks' blocks together, in an all-gather, by the link that takes
// longest; 0: nothing limits it. As spread_ns_per_byte of forest_load.h.
double ring_ns_per_byte(const LinkGraph& graph, const Rings& rings, Routes* routes);

// What is wrong with orders of `rank_count` ranks; "" nothing is.
std::string flaw_of(const std::vector<std::vector<Rank>>& orders, uint32_t rank_count);

}  // namespace weir::graph
