// SPDX-License-Identifier: Apache-2.0
// Which ranks measure the links of a new communicator, and what follows for each host: hosts whose
// network is slower than that of the others get figures of their own. Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/base/types.h"
#include "core/cost/table.h"

namespace weir::comm {

// Two ranks that measure a link; the first leads, and measures what it sends.
struct Pair {
  Rank first = 0;
  Rank second = 0;
  cost::Link link = cost::Link::kTcp;
  bool brief = false;  // only the time on the wire
};

// The pairs in the order in which a rank measures: ranks 0 and the first of another host; where
// there are three hosts or more, briefly, the first ranks of neighbouring hosts (each host and the
// next, and the last and the first), both ways, pairs of different hosts side by side; and one pair
// within a host, where one has two ranks. `host_of_rank`: empty for one host.
std::vector<Pair> pairs_to_measure(std::span<const uint32_t> host_of_rank, Rank rank_count);

// The time per byte at the network of each host, from those of the brief pairs
// (LinkTimes::wire_ns_per_byte, in their order; 0: as fast as any): in the slower direction, that
// of the faster of its two neighbours, since the slower of two hosts sets the pace. Hosts that are
// nearly as fast as the fastest count as equal to it, since a start is measured on busy machines;
// empty: all are.
inline constexpr double kAlike = 1.8;
std::vector<double> wire_of_host(std::span<const uint32_t> host_of_rank,
                                 std::span<const Pair> brief_pairs, std::span<const double> wires);

// The same from several rounds of measuring: on a busy machine a rank that waits for its core
// measures a slow link, but not twice the same one, nor the same slowness.
class HostWires {
 public:
  HostWires(std::vector<uint32_t> host_of_rank, std::vector<Pair> brief_pairs)
      : host_of_rank_(std::move(host_of_rank)), pairs_(std::move(brief_pairs)) {}

  static constexpr uint32_t kRoundsMax = 4;
  // The figures of one round. True: hosts differ, and it is not known yet whether that repeats.
  bool add(std::span<const double> wires);
  // By the least that was measured of each pair.
  std::vector<double> of_host() const;

 private:
  std::vector<uint32_t> host_of_rank_;
  std::vector<Pair> pairs_;
  std::vector<double> least_;
  uint32_t rounds_ = 0;
};
// The same from a figure of each host, one at least.
std::vector<double> different_wires(std::vector<double> of_host);

}  // namespace weir::comm
