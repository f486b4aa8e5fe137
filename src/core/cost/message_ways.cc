// SPDX-License-Identifier: Apache-2.0
#include "core/cost/message_ways.h"

#include <utility>

#include "core/cost/task_costs.h"

namespace weir::cost {

MessageWays::MessageWays(graph::LinkGraph graph)
    : graph_(std::move(graph)), routes_(graph_), hash_(graph_.hash()) {
  for (const graph::Link& link : graph_.links()) {
    const bool limited = link.bandwidth != graph::kUnlimited;
    links_.push_back({.ps_per_byte = limited ? 1e9 / static_cast<double>(link.bandwidth) : 0,
                      .latency = ps_of_ns(link.latency_ns)});
  }
}

}  // namespace weir::cost
