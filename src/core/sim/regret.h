// SPDX-License-Identifier: Apache-2.0
// regret(): how much longer a chosen algorithm takes than the best candidate, both simulated with
// the table's task times or over links; where data flow one way over mapped memory
// (cost/run_ahead.h), a call takes the simulated time that it keeps the busiest rank busy, as in a
// row of calls. Thread-safe: no shared state but cost::RankLayout::ways.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/base/status.h"
#include "core/cost/router.h"
#include "core/cost/table.h"
#include "core/graph/link_graph.h"

namespace weir::sim {

struct Regret {
  double chosen_ns = 0;
  const algo::Algorithm* best = nullptr;
  double best_ns = 0;
  cost::Cut best_cut = {};
  // Candidates whose simulation needed more than the events that are allowed.
  std::vector<const algo::Algorithm*> left_out;
  uint64_t events = 0;  // of all simulations

  double value() const { return best_ns > 0 ? chosen_ns / best_ns : 1; }
};

// `decision`: the answer of cost::choose() to `request` with `table`. A simulation ends after about
// `events_max` events, which are checked every million; if it is that of the chosen algorithm,
// kAborted. A candidate is simulated until it is slower than the best before it. `progress` is
// called now and then, with the name of the algorithm; may be empty; returning false stops with
// kAborted. Over links (Options::links) are simulated requests with RankLayout::ways, each
// candidate with all cost::cuts_of; and others if `links` is given, which has the ranks of the
// problem, with the table's figures of cores.
Result<Regret> regret(const cost::Request& request, const cost::Decision& decision,
                      const cost::Table& table, uint64_t events_max,
                      const std::function<bool(const char* name, uint64_t events)>& progress = {},
                      const graph::LinkGraph* links = nullptr);

}  // namespace weir::sim
