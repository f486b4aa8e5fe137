// SPDX-License-Identifier: Apache-2.0
// Algorithm: a pure generator of operations, (problem, rank, step) -> operations. It holds for any
// number of ranks, and one step of one rank can be made without making the others, so that 10,000
// ranks are simulated without ever holding 10,000 programs. Functions only, no state: thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/base/types.h"
#include "core/sched/program.h"

namespace weir::algo {

// What is to be done, and what may be assumed.
struct Problem {
  Collective collective = Collective::kAllReduce;
  Rank rank_count = 1;
  Rank root = 0;  // broadcast, reduce, gather, scatter

  // The Staging space of every rank can be read and written by every rank.
  bool mapped = false;
  // Input (Output) of every rank can be read (written) by every rank: user windows.
  bool inputs_mapped = false;
  bool outputs_mapped = false;

  // Topology view for hierarchical algorithms: the host (or NUMA node) of each rank, numbered from
  // 0 in order of first appearance. Empty: all ranks on one. Need not be even nor contiguous.
  std::span<const uint32_t> node_of_rank;

  // Input and Output share memory in the way that weir.h allows for the collective. Every algorithm
  // is correct both ways; one that needs other operations, or cannot do it, looks here.
  bool in_place = false;
};

struct Algorithm {
  const char* name;     // "ring", "recursive_doubling", …
  const char* summary;  // one line: idea and source (paper)
  Collective collective;
  bool needs_mapped;        // uses Staging at peers
  bool needs_user_windows;  // uses Input or Output at peers
  // Every output element is one fold over all ranks in rank order, made by a single reduce: the
  // only form whose bits do not depend on the algorithm. Tests hold this against the verifier.
  bool rank_order;

  // Whether `problem` can be solved at all (rank counts, mapping, hierarchy).
  bool (*supports)(const Problem& problem);
  // The same on all ranks.
  sched::Shape (*shape)(const Problem& problem);
  // Number of steps of `rank`; the operations of step s follow those of step s - 1 in each lane.
  uint32_t (*step_count)(const Problem& problem, Rank rank);
  // Emits the operations of one step of one rank.
  void (*step)(const Problem& problem, Rank rank, uint32_t step, sched::Builder& builder);
};

// Every algorithm, listed by hand in registry.cc.
std::span<const Algorithm* const> all_algorithms();
// By collective and name; nullptr when there is none.
const Algorithm* find_algorithm(Collective collective, std::string_view name);

// All steps of one rank.
sched::Program compile(const Algorithm& algorithm, const Problem& problem, Rank rank);

}  // namespace weir::algo
