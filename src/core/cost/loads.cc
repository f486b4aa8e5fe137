// SPDX-License-Identifier: Apache-2.0
#include "core/cost/loads.h"

#include <algorithm>

namespace weir::cost {

Loads loads_of(OpStream* stream, std::span<const Rank> ranks, const Workload& work,
               const TaskCosts& costs, std::vector<std::vector<Rank>>* waited) {
  const Rank n = work.problem.rank_count;
  const RankLayout& layout = work.layout;
  std::vector<Picoseconds> cards_out(n, 0);
  std::vector<Picoseconds> cards_in(n, 0);
  std::vector<Picoseconds> ports(costs.ports().count(), 0);
  Loads loads;
  for (const Rank rank : ranks) {
    Picoseconds core = 0;
    for (uint32_t lane = 0; lane < stream->lane_count(); ++lane) {
      for (; const ShortOp* op = stream->peek(rank, lane); stream->advance(rank, lane)) {
        switch (op->code) {
          case ShortOp::Code::kRead:
          case ShortOp::Code::kWrite:
            costs.ports().for_each(rank, op->peer, op->code == ShortOp::Code::kWrite, op->amount,
                                   [&](uint32_t port, Picoseconds time) { ports[port] += time; });
            break;
          case ShortOp::Code::kCompute:
            core += op->amount;
            break;
          case ShortOp::Code::kSend:
            core += costs.send(rank, op->peer, op->amount);
            if (is_network(layout.link(rank, op->peer))) {
              cards_out[layout.card(rank)] += costs.wire_out(rank, op->peer, op->amount);
            }
            break;
          case ShortOp::Code::kRecv:
            core += costs.recv(op->peer, rank, op->amount);
            if (is_network(layout.link(op->peer, rank))) {
              cards_in[layout.card(rank)] += costs.wire_in(op->peer, rank, op->amount);
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
    loads.busiest = std::max(loads.busiest, core);
  }
  for (const auto* cards : {&cards_out, &cards_in}) {
    loads.busiest = std::max(loads.busiest, *std::max_element(cards->begin(), cards->end()));
  }
  for (const Picoseconds port : ports) loads.memory = std::max(loads.memory, port);
  loads.busiest = std::max(loads.busiest, loads.memory);
  return loads;
}

}  // namespace weir::cost
