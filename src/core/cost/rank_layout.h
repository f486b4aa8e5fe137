// SPDX-License-Identifier: Apache-2.0
// RankLayout: the places of a communicator's ranks, as far as they matter for the cost of
// communication. A view of arrays that the communicator owns, the same on all ranks. Thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "core/base/types.h"
#include "core/cost/table.h"

namespace weir::cost {

// What ranks of one host share when they read and write each other's memory, in ns per byte; 0: no
// limit that is known.
struct MemoryLinks {
  double package_ns_per_byte = 0;  // each way between a package and the others
  double node_ns_per_byte = 0;     // each way between a NUMA node and the others of its package
  double memory_ns_per_byte = 0;   // of a NUMA node

  bool operator==(const MemoryLinks&) const = default;
};

struct RankLayout {
  // One entry per rank; ranks with equal numbers share the host, socket or cache; an empty span
  // means that all ranks share it. Ranks that share a cache (socket) also share the socket (host).
  std::span<const uint32_t> host_of_rank;  // numbered from 0, below the rank count
  std::span<const uint32_t> socket_of_rank;
  std::span<const uint32_t> cache_of_rank;  // the last-level cache
  Link network = Link::kTcp;                // between hosts
  uint32_t cores_per_host = 0;              // that the ranks may use; 0: enough for all
  // Where hosts differ: the time on the wire of each card of a host, per byte, in place of the
  // table's figure for the network. Empty: all are alike.
  std::span<const double> wire_of_host;
  // The most ranks that share a last-level cache; 0: all ranks of a host share one.
  uint32_t ranks_per_cache = 0;
  // The network card of each rank, numbered from 0, below the rank count; ranks of different hosts
  // have different cards. Empty: one for each host.
  std::span<const uint32_t> card_of_rank;
  // Ranks with equal numbers share the NUMA node; empty: those of a package share one.
  std::span<const uint32_t> numa_of_rank = {};
  MemoryLinks memory_links = {};

  uint32_t host(Rank rank) const { return host_of_rank.empty() ? 0 : host_of_rank[rank]; }
  uint32_t card(Rank rank) const { return card_of_rank.empty() ? host(rank) : card_of_rank[rank]; }
  bool spans_hosts() const {
    return std::any_of(host_of_rank.begin(), host_of_rank.end(),
                       [&](uint32_t host) { return host != host_of_rank.front(); });
  }
  Link link(Rank a, Rank b) const {
    if (!same(host_of_rank, a, b)) return network;
    if (!same(socket_of_rank, a, b)) return Link::kShmCrossSocket;
    return same(cache_of_rank, a, b) ? Link::kShmSharedCache : Link::kShmSameSocket;
  }

 private:
  static bool same(std::span<const uint32_t> of_rank, Rank a, Rank b) {
    return of_rank.empty() || of_rank[a] == of_rank[b];
  }
};

}  // namespace weir::cost
