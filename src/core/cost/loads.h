// SPDX-License-Identifier: Apache-2.0
// How long a program keeps the cores and cards that it uses, whatever waits for what: without
// following it in time, and so in a small part of the time that this takes. Pure functions;
// thread-safe.
#pragma once

#include <span>
#include <vector>

#include "core/cost/op_stream.h"
#include "core/cost/task_costs.h"

namespace weir::cost {

struct Loads {
  std::vector<Picoseconds> cores;      // by rank
  std::vector<Picoseconds> cards_out;  // by card
  std::vector<Picoseconds> cards_in;
  // With RankLayout::ways, in place of cards; with RankLayout::memory_ways beside cores.
  std::vector<Picoseconds> links;
  bool has_no_way = false;  // some message leads through a third rank only

  // No time of the whole program is less.
  Picoseconds busiest() const;
};

// As far as `ranks` use cores and cards: takes all that the stream has of these ranks. `waited`, if
// given, has an entry for each rank, to which those are appended for whose signals it waits.
Loads loads_of(OpStream* stream, std::span<const Rank> ranks, const Workload& work,
               const TaskCosts& costs, std::vector<std::vector<Rank>>* waited = nullptr);

}  // namespace weir::cost
