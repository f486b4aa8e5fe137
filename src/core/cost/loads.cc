// SPDX-License-Identifier: Apache-2.0
#include "core/cost/loads.h"

#include <algorithm>

#include "core/cost/message_ways.h"

namespace weir::cost {

Picoseconds Loads::busiest() const {
  Picoseconds most = 0;
  for (const auto* of : {&cores, &cards_out, &cards_in, &links}) {
    for (const Picoseconds load : *of) most = std::max(most, load);
  }
  return most;
}

Loads loads_of(OpStream* stream, std::span<const Rank> ranks, const Workload& work,
               const TaskCosts& costs, std::vector<std::vector<Rank>>* waited) {
  const Rank n = work.problem.rank_count;
  const RankLayout& layout = work.layout;
  Loads loads;
  for (auto* of : {&loads.cores, &loads.cards_out, &loads.cards_in}) of->assign(n, 0);
  const MessageWays* const ways = layout.ways != nullptr ? layout.ways : layout.memory_ways;
  if (ways != nullptr) loads.links.assign(ways->graph().links().size(), 0);
  const auto take_links = [&](Rank from, Rank to, uint64_t bytes) {
    const auto way = ways->way(from, to);
    loads.has_no_way |= way.empty();
    for (const graph::LinkId link : way) loads.links[link] += ways->time(link, bytes);
  };
  for (const Rank rank : ranks) {
    Picoseconds& core = loads.cores[rank];
    for (uint32_t lane = 0; lane < stream->lane_count(); ++lane) {
      for (; const ShortOp* op = stream->peek(rank, lane); stream->advance(rank, lane)) {
        switch (op->code) {
          case ShortOp::Code::kRead:
            take_links(op->peer, rank, op->amount);
            break;
          case ShortOp::Code::kWrite:
            take_links(rank, op->peer, op->amount);
            break;
          case ShortOp::Code::kCompute:
            core += op->amount;
            break;
          case ShortOp::Code::kSend:
            core += costs.send(rank, op->peer, op->amount);
            if (layout.ways == nullptr && is_network(layout.link(rank, op->peer))) {
              loads.cards_out[layout.card(rank)] += costs.wire_out(rank, op->peer, op->amount);
            } else if (ways != nullptr) {
              take_links(rank, op->peer, op->amount);
            }
            break;
          case ShortOp::Code::kRecv:
            core += costs.recv(op->peer, rank, op->amount);
            if (layout.ways == nullptr && is_network(layout.link(op->peer, rank))) {
              loads.cards_in[layout.card(rank)] += costs.wire_in(op->peer, rank, op->amount);
            }
            break;
          case ShortOp::Code::kSignal:
            core += costs.operation();
            break;
          case ShortOp::Code::kWait: {
            if (waited == nullptr) break;
            const Rank first = op->peer < n ? op->peer : 0;
            const Rank end = op->peer < n ? op->peer + 1 : n;
            for (Rank peer = first; peer < end; ++peer) {
              if (peer != rank) (*waited)[rank].push_back(peer);
            }
            break;
          }
        }
      }
    }
  }
  return loads;
}

}  // namespace weir::cost
