// SPDX-License-Identifier: Apache-2.0
// Follows the programs of all ranks, or of those that stand for all, in virtual time with the
// table's task times. It is the simulator's model (sim::Options::tasks) without faults, reports and
// pictures, and with parts left out. Pure functions; thread-safe.
//
// A core does one thing at a time. The sender copies a message in while the receiver copies it out:
// the receiver finishes no sooner than the slowest of sender, receiver and wire allows. Messages
// between hosts queue for the card of either rank. With RankLayout::ways a message takes the links
// of its way one after another, cut-through, as with sim::Options::links. With
// RankLayout::memory_ways so do messages within a host, and accesses to memory of peers, which end
// when the core's part and the links' are over.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "core/cost/fold.h"
#include "core/cost/loads.h"
#include "core/cost/predict.h"
#include "core/cost/task_costs.h"

namespace weir::cost {

struct PathTime {
  double ns = -1;         // negative: the programs wait for each other and never end
  bool at_least = false;  // they were not followed further than `ns`
  double busy_ns = 0;     // of the busiest core or card
  double lane_ns = 0;     // of the lane that takes the longest from its first operation to its last
  uint64_t operations = 0;  // that were followed
};

// When programs need not be followed any further.
struct Limit {
  double ns_max = std::numeric_limits<double>::infinity();
  // What each core and each sending card has to do in any case: `times` as much. One that idles for
  // too long will end too late. nullptr: not known.
  const Loads* loads = nullptr;
  double times = 1;
};

// `part.rank_count` is ignored: `fold` says which ranks are followed. Ends, with `at_least`, when
// it turns out that the programs take longer than the limit.
PathTime critical_path(const algo::Algorithm& algorithm, const Workload& work,
                       const TaskCosts& costs, const Fold& fold, Part part = {},
                       const Limit& limit = {});

class Machine;

// critical_path of the first slices, and then of all that the part has, which costs only what comes
// after them. One thread at a time.
class PathInParts {
 public:
  // All references must outlive it.
  PathInParts(const algo::Algorithm& algorithm, const Workload& work, const TaskCosts& costs,
              const Fold& fold, Part part);
  ~PathInParts();

  // Once. Of at least as many slices as are in flight, and of fewer than the part has.
  PathTime first(uint64_t slices, const Limit& limit);
  // After first() has come to its end, once. PathTime::operations has those that are new.
  PathTime all(const Limit& limit);

 private:
  std::unique_ptr<Machine> machine_;
  std::unique_ptr<Machine> later_;
};

// An estimate for one rank alone, as if every message and signal that it waits for came from a peer
// at exactly the same point, and as if all ranks of a card used it at the same time. For programs
// that are too long to be followed.
double lockstep_ns(const algo::Algorithm& algorithm, const Workload& work, const TaskCosts& costs,
                   Rank rank, uint64_t slices_max);

}  // namespace weir::cost
