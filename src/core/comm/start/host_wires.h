// SPDX-License-Identifier: Apache-2.0
// Which ranks measure the links of a new communicator, and what follows for each host: hosts whose
// network is slower than that of the others get figures of their own. Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/types.h"
#include "core/cost/table.h"

namespace weir::comm {

// Two ranks that measure a link; the first leads.
struct Pair {
  Rank first = 0;
  Rank second = 0;
  cost::Link link = cost::Link::kTcp;
};

// One pair within a host, where one has two ranks, and the first ranks of neighbouring hosts: each
// host and the next, and the last and the first where there are three. The order is that in which a
// rank measures: pairs of different hosts side by side, so that it takes as long as three. A rank
// leads one pair of hosts at most. `host_of_rank`: empty for one host.
std::vector<Pair> pairs_to_measure(std::span<const uint32_t> host_of_rank, Rank rank_count);

// The time per byte at the network of each host, from what the pairs of hosts measured
// (LinkTimes::wire_ns_per_byte, in the order of the pairs): that of the faster of its two pairs, since
// the slower of two hosts sets the pace. Hosts that are nearly as fast as the fastest count as
// equal, since a start is measured on busy machines; empty: all are.
inline constexpr double kAlike = 1.8;
std::vector<double> wire_of_host(std::span<const uint32_t> host_of_rank,
                                 std::span<const Pair> pairs, std::span<const double> wires);

}  // namespace weir::comm
