// SPDX-License-Identifier: Apache-2.0
// RankLayout: the places of a communicator's ranks, as far as they matter for the cost of
// communication. A view of arrays that the communicator owns, the same on all ranks. Thread-safe.
#pragma once

#include <cstdint>
#include <span>

#include "core/base/types.h"
#include "core/cost/table.h"

namespace weir::cost {

class MessageWays;

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
  // The data lie on devices: messages take these links, and neither cards nor the table's times on
  // the wire (device_table() has the figures of the ranks). nullptr: in memory of the host.
  const MessageWays* ways = nullptr;
  // In memory of the host: the links that data take between ranks of one host, by mapped memory or
  // in messages. The table's times are those of ranks that have the links for themselves; no
  // program takes less than the busiest link. nullptr: no link is shared, or they are not known.
  const MessageWays* memory_ways = nullptr;

  uint32_t host(Rank rank) const { return host_of_rank.empty() ? 0 : host_of_rank[rank]; }
  uint32_t card(Rank rank) const { return card_of_rank.empty() ? host(rank) : card_of_rank[rank]; }
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
